"""Accepting: plausibility by enumeration, the exact law of what is accepted, what it is given."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.main import main
from cwdfm.cli.sample import main as sample_main
from cwdfm.errors import InputError
from cwdfm.generation import generate, given
from cwdfm.method.base import DrawRequest
from cwdfm.method.flow import Flow
from cwdfm.metrics.molecule import score_molecules
from cwdfm.ops.random import derive_seed
from cwdfm.postprocess.reject import insist
from cwdfm.sample_file import read_samples
from tests.core.test_mend import (
    MASK,
    SCHEDULE,
    TARGET,
    UNIFORM,
    N,
    TwoHalves,
    V,
    conditional,
    posterior,
)
from tests.support.models import SmallModel
from tests.support.stats import assert_differs, assert_follows, histogram

B = 20_000
EVERY = torch.cartesian_prod(*[torch.arange(V)] * N)
ALONE = 1e-6  # so small a share that every token is hidden by itself
MODELS = {
    source: cwdfm.ExactPosterior(torch.from_numpy(TARGET), source, SCHEDULE)
    for source in (MASK, UNIFORM)
}


def geometric_mean(p_NV: np.ndarray, x: Sequence[int]) -> float:
    return float(np.exp(np.log(p_NV[np.arange(N), x]).mean()))


def alone() -> np.ndarray:
    """The plausibility of all V^N sequences with a mask source, each token hidden by itself."""
    return np.array([geometric_mean(conditional(x, range(N)), x) for x in EVERY.tolist()])


def test_plausibility_of_what_is_seen() -> None:
    found = cwdfm.plausibility(MODELS[UNIFORM], UNIFORM, SCHEDULE, EVERY, share=0.3)
    exact = [geometric_mean(posterior(x, 0.3), x) for x in EVERY.tolist()]
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-5)
    usual = cwdfm.plausibility(MODELS[UNIFORM], UNIFORM, SCHEDULE, EVERY)
    exact = [geometric_mean(posterior(x, 0.04), x) for x in EVERY.tolist()]
    np.testing.assert_allclose(usual.numpy(), exact, rtol=1e-5)


def test_plausibility_of_what_is_hidden() -> None:
    found = cwdfm.plausibility(MODELS[MASK], MASK, SCHEDULE, EVERY, share=ALONE)
    np.testing.assert_allclose(found.numpy(), alone(), rtol=1e-5)
    together = cwdfm.plausibility(MODELS[MASK], MASK, SCHEDULE, EVERY, share=1.0)
    exact = [geometric_mean(conditional(x, [0] * N), x) for x in EVERY.tolist()]
    np.testing.assert_allclose(together.numpy(), exact, rtol=1e-5)
    calls: list[int] = []  # unless told otherwise an eighth of the tokens is hidden at a time

    def model(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        calls.append(int((x_t == MASK.mask_id).sum()))
        return torch.zeros(*x_t.shape, MASK.num_tokens)

    cwdfm.plausibility(model, MASK, SCHEDULE, torch.zeros(1, 16, dtype=torch.int64))
    assert calls == [2] * 8


def test_given_tokens_do_not_count() -> None:
    x, fixed = EVERY[5:9], torch.tensor([True, False, False, True])
    found = cwdfm.plausibility(MODELS[UNIFORM], UNIFORM, SCHEDULE, x, share=0.3, fixed=fixed)
    chances = [posterior(y, 0.3)[np.arange(N), y][[1, 2]] for y in x.tolist()]
    np.testing.assert_allclose(found.numpy(), np.sqrt(np.prod(chances, axis=1)), rtol=1e-5)
    whole = cwdfm.plausibility(MODELS[UNIFORM], UNIFORM, SCHEDULE, x, fixed=torch.ones(N).bool())
    assert whole.tolist() == [1.0] * 4


def drawn(least: float, tries: int, share: float = ALONE) -> cwdfm.Samples:
    """One token at a time: without more ado, exactly the target's law."""
    asked = DrawRequest((B, N), steps=N, accept=cwdfm.Accept(least, tries, share))
    return Flow(MASK, SCHEDULE).draw(MODELS[MASK], cwdfm.FirstHitting(), asked)  # type: ignore[arg-type]


def test_the_law_given_that_it_is_accepted() -> None:
    """False-alarm rate 1e-6, with a control."""
    least = float(np.quantile(alone(), 0.705))
    good = alone() >= least
    law = np.where(good, TARGET.flatten(), 0.0)
    found = drawn(least, tries=60)
    counts = histogram(found.tokens, V)
    assert counts[~good].sum() == 0
    assert_follows(counts[good], law[good] / law.sum())
    assert_differs(counts, TARGET.flatten())
    assert found.plausibility is not None
    assert float(found.plausibility.min()) >= least


def test_the_law_of_two_tries() -> None:
    """The first if it is accepted, else the second, else the better one; false-alarm rate 1e-6."""
    score, p = alone(), TARGET.flatten()
    least = float(np.quantile(score, 0.905))
    good = score >= least
    law = np.where(good, p, 0.0)
    for x, y in product(np.flatnonzero(~good), range(V**N)):
        law[y if score[y] > score[x] else x] += p[x] * p[y]
    found = drawn(least, tries=2)
    counts = histogram(found.tokens, V)
    assert_follows(counts, law)
    assert_differs(counts, np.where(good, p, 0.0) / p[good].sum())
    # N evaluations to draw and N to read it, and as many for a second try.
    assert set(found.evaluations.tolist()) == {2 * N, 4 * N}
    again = float((found.evaluations == 4 * N).double().mean())
    assert abs(again - p[~good].sum()) < 5 * np.sqrt(0.25 / B)
    assert found.rows == 2 * N * B + 2 * N * int((found.evaluations == 4 * N).sum())


def test_the_law_with_random_groups() -> None:
    """Two groups of two tokens: the bar may let a sequence pass by one parting and not by another.

    A try has groups of its own: by the first one's, the law would be a mixture of three, one for
    each parting. False-alarm rate 1e-6, with controls.
    """
    parted = [[int(i in pair) for i in range(N)] for pair in combinations(range(N), 2)]
    scores = np.array(
        [[geometric_mean(conditional(x, part), x) for part in parted] for x in EVERY.tolist()]
    )
    least = float(np.quantile(scores, 0.9005))
    passing = (scores >= least).mean(1)
    assert ((passing > 0) & (passing < 1)).any()
    law = TARGET.flatten() * passing
    found = drawn(least, tries=60, share=0.5)
    assert_follows(histogram(found.tokens, V), law / law.sum())
    law = np.where(passing > 0.5, TARGET.flatten(), 0.0)
    assert_differs(histogram(found.tokens, V), law / law.sum())
    by_parting = TARGET.flatten()[:, None] * (scores >= least)
    assert_differs(histogram(found.tokens, V), (by_parting / by_parting.sum(0)).mean(1))


def test_groups_are_others_than_those_of_mending() -> None:
    """By one seed: a sequence is not judged by the very parting by which it was mended."""
    parts: list[tuple[int, ...]] = []

    def model(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        parts.append(tuple((x_t[0] == MASK.mask_id).nonzero()[:, 0].tolist()))
        return torch.zeros(*x_t.shape, MASK.num_tokens)

    ask, start = (model, MASK, SCHEDULE), torch.zeros(1, 12, dtype=torch.int64)
    cwdfm.mend(*ask, start, cwdfm.Mend(rounds=3, share=1 / 3, trust=1.0), seed=5)
    mended = {frozenset(parts[k : k + 3]) for k in range(0, 9, 3)}
    parts.clear()
    cwdfm.plausibility(*ask, start, share=1 / 3, seed=5)
    assert sorted(i for part in parts for i in part) == list(range(12))
    assert len(mended | {frozenset(parts)}) == 4


def test_tries_have_seeds_of_their_own() -> None:
    """Others than each other's, and than those that rework makes of the first one's seed."""
    seeds: list[int] = []

    def attempt(place: torch.Tensor | None, seed: int) -> cwdfm.Samples:
        seeds.append(seed)
        count = 3 if place is None else len(place)
        blank, none = torch.zeros(count, N, dtype=torch.int64), torch.zeros(count)
        return cwdfm.Samples(blank, blank, blank, blank[:, 0], 0, none)

    insist(attempt, cwdfm.Accept(0.5, tries=8), 5, lambda tries: None)
    assert seeds[0] == 5
    assert len(set(seeds)) == 8
    assert not set(seeds) & {derive_seed(5, number) for number in range(100)}


def test_a_better_try_is_taken_with_all_that_it_took() -> None:
    """The bar itself passes; a second try that is worse than the first counts, and is not taken."""
    scores = {0: [0.1, 0.5, 0.3], 1: [0.2, 0.1]}
    places: list[list[int] | None] = []
    spared: list[int] = []

    def attempt(place: torch.Tensor | None, seed: int) -> cwdfm.Samples:
        number = len(places)
        places.append(None if place is None else place.tolist())
        score = torch.tensor(scores[number], dtype=torch.float64)
        count = len(score)
        tokens, updates, loops = (torch.full((count, N), 10 * i + number) for i in range(3))
        return cwdfm.Samples(tokens, updates, loops, torch.full((count,), 4), count, score)

    found = insist(attempt, cwdfm.Accept(0.5, tries=2), 5, spared.append)
    assert (places, sum(spared)) == ([None, [0, 2]], 1)
    for tensor, first in ((found.tokens, 0), (found.updates, 10), (found.loops, 20)):
        assert tensor[:, 0].tolist() == [first + 1, first, first]
    assert (found.evaluations.tolist(), found.rows) == ([8, 4, 8], 5)
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
def test_what_is_refused_without_is_refused_with_it(wrong: dict[str, Any]) -> None:
    asked = DrawRequest((4, 6), steps=3, accept=cwdfm.Accept(0.9))
    with pytest.raises(InputError):
        Flow(UNIFORM, SCHEDULE).draw(SmallModel(V), None, replace(asked, **wrong))


def test_all_may_be_accepted_to_learn_how_plausible_they_are() -> None:
    """A first token that is never drawn does not count."""
    trained = cwdfm.load("qm9-mask-small")
    out = generate(trained, n=6, steps=4, seed=2, accept=cwdfm.Accept(0.0))
    assert torch.equal(out.tokens, generate(trained, n=6, steps=4, seed=2).tokens)
    assert out.plausibility is not None
    ask = (trained.model, trained.source, trained.schedule, out.tokens)
    with_it = cwdfm.plausibility(*ask, seed=2, fixed=given(trained)[1])
    torch.testing.assert_close(out.plausibility, with_it)
    assert bool((cwdfm.plausibility(*ask, seed=2) < with_it).all())
    joined = cwdfm.Samples.joined([out, out])
    assert joined.plausibility is not None
    assert torch.equal(joined.plausibility, out.plausibility.repeat(2))
    assert cwdfm.Samples.joined([out, replace(out, plausibility=None)]).plausibility is None


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_batches_numbers_and_what_is_given(source: cwdfm.Source) -> None:
    model = SmallModel(source.num_tokens)
    told: list[int] = []
    g = torch.Generator().manual_seed(0)
    prompt = torch.randint(V, (40, 12), generator=g)
    fixed = torch.rand(40, 12, generator=g) < 0.3
    plain = DrawRequest((40, 12), steps=5, seed=3, prompt=prompt, fixed=fixed)
    flow = Flow(source, SCHEDULE)
    once = flow.draw(model, None, plain)
    scores = cwdfm.plausibility(model, source, SCHEDULE, once.tokens, seed=3, fixed=fixed)
    least = float(scores.quantile(0.6))
    mended = (cwdfm.Mend(rounds=2),)
    asked = replace(plain, accept=cwdfm.Accept(least, 4), tick=told.append)
    whole = flow.draw(model, None, asked)
    assert sum(told) == 40 * 4 * 5
    assert torch.equal(whole.tokens[fixed], prompt[fixed])
    kept = scores >= least
    assert torch.equal(whole.tokens[kept], once.tokens[kept])
    assert not torch.equal(whole.tokens, once.tokens)
    assert whole.plausibility is not None
    assert bool((whole.plausibility >= scores).all())
    again = cwdfm.plausibility(
        model,
        source,
        SCHEDULE,
        whole.tokens[kept],
        seed=3,
        fixed=fixed[kept],
        index=torch.arange(40)[kept],
    )
    torch.testing.assert_close(again, whole.plausibility[kept])
    parts = flow.draw(model, None, replace(asked, batch_size=7, tick=None))
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.equal(whole.evaluations, parts.evaluations)
    assert whole.rows == parts.rows
    some = replace(asked, shape=(15, 12), prompt=prompt[25:], fixed=fixed[25:], tick=None)
    some = replace(some, index=torch.arange(25, 40))
    assert torch.equal(flow.draw(model, None, some).tokens, whole.tokens[25:])
    told.clear()
    flow.draw(model, None, replace(asked, after=mended))
    assert sum(told) == 40 * 4 * (5 + 2)


def test_more_molecules_are_valid() -> None:
    """What the network finds implausible is seldom valid."""
    trained = cwdfm.load("qm9-uniform-small")

    def valid(samples: cwdfm.Samples) -> float:
        texts = [trained.tokenizer.decode(row) for row in samples.tokens.tolist()]
        return float(score_molecules(texts, None, fold_size=16).valid.mean)

    plain = generate(trained, n=16, steps=16, seed=4)
    accepted = generate(trained, n=16, steps=16, seed=4, accept=cwdfm.Accept(0.999, tries=6))
    assert valid(plain) < 12
    assert valid(accepted) > 13


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, common = tmp_path / "a.jsonl", ["--n", "8", "--steps", "6", "--seed", "3"]
    flags = ["--accept", "0.9999", "--accept-tries", "3", "--accept-share", "0.1", "--prompt", "CC"]
    flags += ["--mend", "2", "--refine", "1", "--batch-size", "5"]
    sample_main(["qm9-uniform-small", "--out", str(out), *common, *flags])
    trained = cwdfm.load("qm9-uniform-small")
    found = generate(
        trained,
        n=8,
        steps=6,
        seed=3,
        prompt="CC",
        refine=cwdfm.Refine(rounds=1),
        mend=cwdfm.Mend(rounds=2),
        accept=cwdfm.Accept(0.9999, 3, 0.1),
    )
    assert found.plausibility is not None
    accepted = int((found.plausibility >= 0.9999).sum())
    assert 0 < accepted < 8
    assert f"accepted: {accepted} of 8; the others are" in capsys.readouterr().out
    file = read_samples(out)
    assert file.tokens == found.tokens.tolist()
    assert file.head["accepted"] == accepted
    assert file.head["evaluations"] == int(found.evaluations.sum())
    assert list(tmp_path.iterdir()) == [out]


def test_holes_are_filled() -> None:
    trained = cwdfm.load("qm9-mask-small")
    ask = {"n": 6, "steps": 4, "seed": 1, "template": "c1ccccc1***"}
    found = generate(trained, **ask, accept=cwdfm.Accept(1.0, 2))  # type: ignore[arg-type]
    one = generate(trained, **ask, accept=cwdfm.Accept(1.0, 2), batch_size=1)  # type: ignore[arg-type]
    assert torch.equal(found.tokens, one.tokens)
    texts = [trained.tokenizer.decode(row) for row in found.tokens.tolist()]
    assert all(len(text) == len("c1ccccc1***") and text.startswith("c1ccccc1") for text in texts)


def test_only_flows_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = cwdfm.load("qm9-mask-small")
    other = replace(trained, method=Autoregressive(trained.source.vocab_size))
    with pytest.raises(InputError, match="accepting ask as a flow does, and this model is trained"):
        generate(other, n=1, steps=4, accept=cwdfm.Accept(0.5))
    ask = ["sample", "qm9-mask-small", "--out", str(tmp_path / "a.smi")]
    for flags, said in (
        (["--accept", "-3"], "--accept must lie in [0, 1]"),
        (["--accept", "0.9", "--accept-tries", "0"], "--accept-tries must be"),
        (["--accept", "0.9", "--accept-share", "2"], "--accept-share must lie between"),
    ):
        monkeypatch.setattr("sys.argv", ["cwdfm", *ask, *flags])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bad_settings() -> None:
    for least in (1.01, -1, "a", float("nan")):
        with pytest.raises(InputError, match=r"least must lie in \[0, 1\]"):
            cwdfm.Accept(least)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tries must be"):
        cwdfm.Accept(0.5, tries=0)
    with pytest.raises(InputError, match="share must lie between"):
        cwdfm.Accept(0.5, share=2.0)
    with pytest.raises(InputError, match="share must lie between"):
        cwdfm.plausibility(MODELS[MASK], MASK, SCHEDULE, EVERY, share=0.0)
    with pytest.raises(InputError, match="tokens contains ids"):
        cwdfm.plausibility(MODELS[MASK], MASK, SCHEDULE, EVERY + V)
    with pytest.raises(InputError, match="batch_size"):
        cwdfm.plausibility(MODELS[MASK], MASK, SCHEDULE, EVERY, batch_size=0)
    with pytest.raises(InputError, match=r"head\(trunk\(x, t\)\) is not model\(x, t\)"):
        cwdfm.plausibility(TwoHalves(V), UNIFORM, SCHEDULE, EVERY)
    causal = SmallModel(V)
    causal.config = SimpleNamespace(attention="causal")  # type: ignore[assignment]
    with pytest.raises(InputError, match="needs a network with full attention"):
        cwdfm.plausibility(causal, UNIFORM, SCHEDULE, EVERY)
    with pytest.raises(InputError, match="accept must be"):
        generate(cwdfm.load("qm9-uniform-small"), n=1, steps=4, accept=3)  # type: ignore[arg-type]
