"""Rejection sampling: plausibility by enumeration, exact distributions, seeds and errors."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.method.base import SampleRequest
from cwdfm.method.flow import Flow
from cwdfm.ops.random import derive_seed
from cwdfm.postprocess.reject import rejection_sample
from cwdfm.trained import prompt_tokens
from tests.support.models import Recorder, SmallModel, constant
from tests.support.postprocess import (
    FLOWS,
    MASK,
    SCHEDULE,
    TARGET,
    UNIFORM,
    N,
    V,
    conditional,
    posterior,
)
from tests.support.stats import assert_differs, assert_follows, histogram

B = 20_000
EVERY = torch.cartesian_prod(*[torch.arange(V)] * N)
SINGLE = 1e-6  # a noise fraction so small that every token is masked by itself


def geometric_mean(p_NV: np.ndarray, x: Sequence[int]) -> float:
    return float(np.exp(np.log(p_NV[np.arange(N), x]).mean()))


def exact_plausibility() -> np.ndarray:
    """The plausibility of all V^N sequences with a mask source, each token masked by itself."""
    return np.array([geometric_mean(conditional(x, range(N)), x) for x in EVERY.tolist()])


def test_plausibility_with_a_uniform_source() -> None:
    for options, fraction in (({"noise_fraction": 0.3}, 0.3), ({}, 0.04)):
        found = cwdfm.plausibility(*FLOWS[UNIFORM], EVERY, **options)  # type: ignore[arg-type]
        exact = [geometric_mean(posterior(x, fraction), x) for x in EVERY.tolist()]
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5)


def test_plausibility_with_a_mask_source() -> None:
    found = cwdfm.plausibility(*FLOWS[MASK], EVERY, noise_fraction=SINGLE)
    np.testing.assert_allclose(found.numpy(), exact_plausibility(), rtol=1e-5)
    all_masked = cwdfm.plausibility(*FLOWS[MASK], EVERY, noise_fraction=1.0)
    exact = [geometric_mean(conditional(x, [0] * N), x) for x in EVERY.tolist()]
    np.testing.assert_allclose(all_masked.numpy(), exact, rtol=1e-5)
    model = Recorder(constant(torch.zeros(MASK.num_tokens)))
    cwdfm.plausibility(model, MASK, SCHEDULE, torch.zeros(1, 16, dtype=torch.int64))
    # By default an eighth of the tokens is masked at a time.
    assert [int((x == MASK.mask_id).sum()) for x, _ in model.asked] == [2] * 8


def test_fixed_tokens_do_not_count() -> None:
    x, fixed = EVERY[5:9], torch.tensor([True, False, False, True])
    found = cwdfm.plausibility(*FLOWS[UNIFORM], x, noise_fraction=0.3, fixed=fixed)
    scores = [posterior(y, 0.3)[np.arange(N), y][[1, 2]] for y in x.tolist()]
    np.testing.assert_allclose(found.numpy(), np.sqrt(np.prod(scores, axis=1)), rtol=1e-5)
    whole = cwdfm.plausibility(*FLOWS[UNIFORM], x, fixed=torch.ones(N).bool())
    assert whole.tolist() == [1.0] * 4


def sampled(threshold: float, tries: int, fraction: float = SINGLE) -> cwdfm.Samples:
    """First hitting samples the target exactly, before rejection."""
    request = SampleRequest((B, N), steps=N, reject=cwdfm.Reject(threshold, tries, fraction))
    return Flow(MASK, SCHEDULE).sample(FLOWS[MASK][0], cwdfm.FirstHitting(), request)


def test_distribution_conditioned_on_acceptance() -> None:
    """False-alarm rate 1e-6, with a control."""
    threshold = float(np.quantile(exact_plausibility(), 0.705))
    good = exact_plausibility() >= threshold
    law = np.where(good, TARGET.flatten(), 0.0)
    found = sampled(threshold, 60)
    counts = histogram(found.tokens, V)
    assert counts[~good].sum() == 0
    assert_follows(counts[good], law[good] / law.sum())
    assert_differs(counts, TARGET.flatten())
    assert found.plausibility is not None
    assert float(found.plausibility.min()) >= threshold


def test_distribution_with_two_tries() -> None:
    """The first accepted try, or else the more plausible one. False-alarm rate 1e-6."""
    score, p = exact_plausibility(), TARGET.flatten()
    threshold = float(np.quantile(score, 0.905))
    good = score >= threshold
    law = np.where(good, p, 0.0)
    for x, y in product(np.flatnonzero(~good), range(V**N)):
        law[y if score[y] > score[x] else x] += p[x] * p[y]
    found = sampled(threshold, 2)
    counts = histogram(found.tokens, V)
    assert_follows(counts, law)
    assert_differs(counts, np.where(good, p, 0.0) / p[good].sum())
    # N evaluations to sample and N to score, and the same for a second try.
    assert set(found.evaluations.tolist()) == {2 * N, 4 * N}
    again = float((found.evaluations == 4 * N).double().mean())
    assert abs(again - p[~good].sum()) < 5 * np.sqrt(0.25 / B)
    assert found.logit_evaluations == 2 * N * B + 2 * N * int((found.evaluations == 4 * N).sum())


def test_distribution_with_random_groups() -> None:
    """With two groups of two tokens, acceptance depends on the random partition.

    Each try draws its own partition: with a common one the distribution would be a mixture over the
    three partitions. False-alarm rate 1e-6, with controls.
    """
    partitions = [[int(i in pair) for i in range(N)] for pair in combinations(range(N), 2)]
    scores = np.array(
        [[geometric_mean(conditional(x, part), x) for part in partitions] for x in EVERY.tolist()]
    )
    threshold = float(np.quantile(scores, 0.9005))
    passing = (scores >= threshold).mean(1)
    assert ((passing > 0) & (passing < 1)).any()
    law = TARGET.flatten() * passing
    found = sampled(threshold, 60, fraction=0.5)
    assert_follows(histogram(found.tokens, V), law / law.sum())
    law = np.where(passing > 0.5, TARGET.flatten(), 0.0)
    assert_differs(histogram(found.tokens, V), law / law.sum())
    by_partition = TARGET.flatten()[:, None] * (scores >= threshold)
    assert_differs(histogram(found.tokens, V), (by_partition / by_partition.sum(0)).mean(1))


def test_groups_differ_from_those_of_resampling() -> None:
    """With the same seed, scoring does not use the partition that resampling used."""
    model = Recorder(constant(torch.zeros(MASK.num_tokens)))
    flow, start = (model, MASK, SCHEDULE), torch.zeros(1, 12, dtype=torch.int64)
    cwdfm.resample(
        *flow, start, cwdfm.Resample(rounds=3, noise_fraction=1 / 3, threshold=1.0), seed=5
    )
    cwdfm.plausibility(*flow, start, noise_fraction=1 / 3, seed=5)
    parts = [tuple((x_t[0] == MASK.mask_id).nonzero()[:, 0].tolist()) for x_t, _ in model.asked]
    assert sorted(i for part in parts[9:] for i in part) == list(range(12))
    assert len({frozenset(parts[k : k + 3]) for k in range(0, 12, 3)}) == 4


def test_tries_have_different_seeds() -> None:
    """They also differ from the seeds that postprocessing derives from the first one."""
    seeds: list[int] = []

    def attempt(index: torch.Tensor | None, seed: int) -> cwdfm.Samples:
        seeds.append(seed)
        count = 3 if index is None else len(index)
        blank, none = torch.zeros(count, N, dtype=torch.int64), torch.zeros(count)
        return cwdfm.Samples(blank, blank, blank, blank[:, 0], 0, none)

    rejection_sample(attempt, cwdfm.Reject(0.5, max_tries=8), 5, lambda tries: None)
    assert seeds[0] == 5
    assert len(set(seeds)) == 8
    assert not set(seeds) & {derive_seed(5, number) for number in range(100)}


def test_the_most_plausible_try_is_kept() -> None:
    """The threshold itself is accepted. A less plausible second try counts only as a cost."""
    scores = {0: [0.1, 0.5, 0.3], 1: [0.2, 0.1]}
    places: list[list[int] | None] = []
    skipped: list[int] = []

    def attempt(index: torch.Tensor | None, seed: int) -> cwdfm.Samples:
        number = len(places)
        places.append(None if index is None else index.tolist())
        score = torch.tensor(scores[number], dtype=torch.float64)
        count = len(score)
        tokens, updates, loops = (torch.full((count, N), 10 * i + number) for i in range(3))
        return cwdfm.Samples(tokens, updates, loops, torch.full((count,), 4), count, score)

    found = rejection_sample(attempt, cwdfm.Reject(0.5, max_tries=2), 5, skipped.append)
    assert (places, sum(skipped)) == ([None, [0, 2]], 1)
    for tensor, first in ((found.tokens, 0), (found.updates, 10), (found.loops, 20)):
        assert tensor[:, 0].tolist() == [first + 1, first, first]
    assert (found.evaluations.tolist(), found.logit_evaluations) == ([8, 4, 8], 5)
    assert found.plausibility is not None
    assert found.plausibility.tolist() == [0.2, 0.5, 0.3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": torch.zeros(9, 6).long(), "fixed": torch.ones(9, 6).bool()},
        {"prompt": torch.zeros(3, 6).long(), "fixed": torch.ones(3, 6).bool()},
        {"index": torch.arange(9)},
        {"index": torch.arange(2)},
        {"index": [0, 1, 2, 3]},
        {"shape": (4, 6, 7)},
        {"shape": (-1, 6)},
        {"shape": ("a", 6)},
        {"steps": "a"},
        {"seed": -1},
    ],
    ids=str,
)
def test_invalid_requests_are_errors_with_rejection(wrong: dict[str, Any]) -> None:
    request = SampleRequest((4, 6), steps=3, reject=cwdfm.Reject(0.9))
    with pytest.raises(InputError):
        Flow(UNIFORM, SCHEDULE).sample(SmallModel(V), None, replace(request, **wrong))


def test_threshold_zero_only_reports_the_plausibility() -> None:
    """A fixed first token does not count."""
    trained = cwdfm.load("qm9-mask-small")
    out = generate(trained, n=6, steps=4, seed=2, reject=cwdfm.Reject(0.0))
    assert torch.equal(out.tokens, generate(trained, n=6, steps=4, seed=2).tokens)
    assert out.plausibility is not None
    arguments = (trained.model, trained.source, trained.schedule, out.tokens)
    with_it = cwdfm.plausibility(*arguments, seed=2, fixed=prompt_tokens(trained)[1])
    torch.testing.assert_close(out.plausibility, with_it)
    assert bool((cwdfm.plausibility(*arguments, seed=2) < with_it).all())
    joined = cwdfm.Samples.cat([out, out])
    assert joined.plausibility is not None
    assert torch.equal(joined.plausibility, out.plausibility.repeat(2))
    assert cwdfm.Samples.cat([out, replace(out, plausibility=None)]).plausibility is None


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_batches_sample_numbers_and_fixed_tokens(source: cwdfm.Source) -> None:
    model = SmallModel(source.num_tokens)
    progress: list[int] = []
    g = torch.Generator().manual_seed(0)
    prompt = torch.randint(V, (40, 12), generator=g)
    fixed = torch.rand(40, 12, generator=g) < 0.3
    plain = SampleRequest((40, 12), steps=5, seed=3, prompt=prompt, fixed=fixed)
    flow = Flow(source, SCHEDULE)
    once = flow.sample(model, None, plain)
    scores = cwdfm.plausibility(model, source, SCHEDULE, once.tokens, seed=3, fixed=fixed)
    threshold = float(scores.quantile(0.6))
    resampled = (cwdfm.Resample(rounds=2),)
    request = replace(plain, reject=cwdfm.Reject(threshold, 4), progress=progress.append)
    whole = flow.sample(model, None, request)
    assert sum(progress) == 40 * 4 * 5
    assert torch.equal(whole.tokens[fixed], prompt[fixed])
    kept = scores >= threshold
    assert torch.equal(whole.tokens[kept], once.tokens[kept])
    assert not torch.equal(whole.tokens, once.tokens)
    assert whole.plausibility is not None
    assert bool((whole.plausibility >= scores).all())
    some: dict[str, Any] = {"fixed": fixed[kept], "index": torch.arange(40)[kept]}
    again = cwdfm.plausibility(model, source, SCHEDULE, whole.tokens[kept], seed=3, **some)
    torch.testing.assert_close(again, whole.plausibility[kept])
    parts = flow.sample(model, None, replace(request, batch_size=7, progress=None))
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.equal(whole.evaluations, parts.evaluations)
    assert whole.logit_evaluations == parts.logit_evaluations
    some = {"prompt": prompt[25:], "fixed": fixed[25:], "index": torch.arange(25, 40)}
    last = flow.sample(model, None, replace(request, shape=(15, 12), progress=None, **some))
    assert torch.equal(last.tokens, whole.tokens[25:])
    progress.clear()
    flow.sample(model, None, replace(request, postprocess=resampled))
    assert sum(progress) == 40 * 4 * (5 + 2)


def test_templates_are_filled() -> None:
    trained = cwdfm.load("qm9-mask-small")
    options = {"n": 6, "steps": 4, "seed": 1, "template": "c1ccccc1***"}
    found = generate(trained, **options, reject=cwdfm.Reject(1.0, 2))
    one = generate(trained, **options, reject=cwdfm.Reject(1.0, 2), batch_size=1)
    assert torch.equal(found.tokens, one.tokens)
    texts = [trained.tokenizer.decode(row) for row in found.tokens.tolist()]
    assert all(len(text) == len("c1ccccc1***") and text.startswith("c1ccccc1") for text in texts)
