"""Resampling: exact distributions by enumeration, thresholds, seeds, statistics and errors."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.generation import generate
from cwdfm.postprocess.token_scores import TokenScorer
from cwdfm.solver.base import DrawOptions
from tests.support.cases import slow
from tests.support.exact import Array, Chain, ordered_draws
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

B = 40_000
START = (0, 2, 1, 1)


def law(p_NV: Array, threshold: float, config: cwdfm.Resample) -> Array:
    """The distribution over all V^N sequences after one round from START."""
    score = p_NV[np.arange(N), START]
    rate = np.where(score < threshold, 1 - score, 0.0)
    draws = Chain(TARGET, False, top_p=config.top_p or 1.0, temperature=config.temperature or 1.0)
    drawn_NV = draws.drawn_from(p_NV)
    found = np.zeros(TARGET.shape)
    for positions, probability in ordered_draws(rate, config.tokens_per_round).items():
        for tokens in product(range(V), repeat=len(positions)):
            y = np.array(START)
            y[list(positions)] = tokens
            found[tuple(y)] += probability * drawn_NV[list(positions), tokens].prod()
    return found.flatten()


CONFIGS = [
    (0.5, 1.0, cwdfm.Resample(rounds=1)),
    (0.3, 0.8, cwdfm.Resample(rounds=1, temperature=0.5)),
    (0.5, 1.0, cwdfm.Resample(rounds=1, temperature=2.0, top_p=0.7, tokens_per_round=2)),
    (0.8, 0.55, cwdfm.Resample(rounds=1, tokens_per_round=9)),
]


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
@pytest.mark.parametrize(
    ("fraction", "threshold", "config"),
    [slow(*CONFIGS[0]), *CONFIGS[1:3], slow(*CONFIGS[3])],
)
def test_distribution_after_one_round(
    fraction: float, threshold: float, config: cwdfm.Resample, source: cwdfm.Source
) -> None:
    """With a mask source, averaged over all partitions into groups: two, three or one of them."""
    config = replace(config, noise_fraction=fraction, threshold=threshold)
    found = cwdfm.resample(*FLOWS[source], torch.tensor(START).expand(B, N), config)
    groups, p_NV, wrong_NV = 1, [posterior(START, fraction)], posterior(START, fraction / 2)
    if source == MASK:
        groups, wrong_NV = round(1 / fraction), p_NV[0]
        partitions = [[rank % groups for rank in order] for order in permutations(range(N))]
        p_NV = [conditional(START, part) for part in partitions]
    counts = histogram(found.tokens, V)
    assert_follows(counts, np.mean([law(p, threshold, config) for p in p_NV], axis=0))
    assert_differs(counts, law(wrong_NV, threshold, config))
    assert found.evaluations.tolist() == [groups] * B


@pytest.mark.parametrize(
    ("source", "fraction", "noise"),
    [(MASK, 0.3, 1 / 3), (MASK, 0.35, 1 / 3), (MASK, 0.01, 1 / N), (UNIFORM, 0.3, 0.3)],
    ids=str,
)
def test_models_are_conditioned_on_the_noise_level(
    source: cwdfm.Source, fraction: float, noise: float
) -> None:
    """kappa_t = t^2 = 1 - noise. With a mask source a group is masked: 1/3 or 1/N of the tokens."""
    model = Recorder(constant(torch.zeros(source.num_tokens)))
    start = torch.zeros(3, N, dtype=torch.int64)
    config = cwdfm.Resample(rounds=2, noise_fraction=fraction)
    cwdfm.resample(model, source, SCHEDULE, start, config)
    assert model.times.unique().tolist() == [pytest.approx((1 - noise) ** 0.5)]


@pytest.mark.parametrize(
    ("source", "threshold", "groups", "noise"),
    [(MASK, 0.05, 8, 1 / 8), (UNIFORM, 0.8, 1, 0.5)],
    ids=str,
)
def test_defaults_depend_on_the_source(
    source: cwdfm.Source, threshold: float, groups: int, noise: float
) -> None:
    start = torch.zeros(2, 16, dtype=torch.int64)
    progress: list[int] = []
    for score in (threshold - 0.01, threshold + 0.01):
        logits = torch.tensor([score, *[(1 - score) / (V - 1)] * (V - 1), 1.0]).log()
        model = Recorder(constant(logits[: source.num_tokens]))
        found = cwdfm.resample(model, source, SCHEDULE, start, progress=progress.append)
        once = found.evaluations.tolist() == [groups] * 2
        assert once == torch.equal(found.tokens, start) == (score > threshold)
        assert model.times.unique().tolist() == [pytest.approx((1 - noise) ** 0.5)]
    assert sum(progress) == 2 * 2 * 40


def test_sequences_above_the_threshold_do_not_change() -> None:
    """They cost one evaluation."""
    x, fraction, threshold = torch.cartesian_prod(*[torch.arange(V)] * N), 0.4, 0.5
    config = cwdfm.Resample(rounds=9, noise_fraction=fraction, threshold=threshold)
    found = cwdfm.resample(*FLOWS[UNIFORM], x, config)
    lowest = [posterior(y, fraction)[np.arange(N), y].min() for y in x.tolist()]
    kept = torch.tensor(np.array(lowest) >= threshold)
    assert 0 < int(kept.sum()) < len(x)
    assert torch.equal(found.tokens[kept], x[kept])
    assert bool((found.evaluations[kept] == 1).all())
    assert bool((found.evaluations[~kept] > 1).all())
    assert int(found.updates[kept].sum()) == 0
    assert found.logit_evaluations == N * int(found.evaluations.sum())


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_errors_in_a_repetition_code_are_corrected(source: cwdfm.Source) -> None:
    """Each word repeats one token with rare errors: a single error is found and corrected."""
    letter = torch.full((V, V), 0.01 / (V - 1), dtype=torch.float64).fill_diagonal_(0.99)
    target = torch.einsum("wa,wb,wc,wd,we->abcde", *[letter] * 5)
    model = cwdfm.ExactPosterior(target, source, SCHEDULE)
    right = torch.arange(V).repeat(100)[:, None].expand(-1, 5)
    wrong = right.clone()
    g = torch.Generator().manual_seed(0)
    place = torch.randint(5, (len(wrong), 1), generator=g)
    wrong.scatter_(1, place, (wrong[:, :1] + torch.randint(1, V, (len(wrong), 1), generator=g)) % V)
    config = cwdfm.Resample(rounds=30, noise_fraction=0.2, threshold=0.4, temperature=0.1)
    found = cwdfm.resample(model, source, SCHEDULE, wrong, config)
    assert torch.equal(found.tokens, right)
    assert torch.equal(found.updates.sum(1), torch.ones(len(wrong), dtype=torch.int64))
    assert int(found.loops.sum()) == 0


def flipping(count: int) -> cwdfm.Model:
    """A model that is certain that the first `count` tokens flip between 0 and 1."""

    def model(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        predicted = torch.cat([1 - x_t[:, :count], x_t[:, count:]], dim=1)
        return 50.0 * torch.nn.functional.one_hot(predicted, V)

    return model


@pytest.mark.parametrize("count", [0, 1, 2])
def test_loops_are_counted(count: int) -> None:
    """Each round draws one token. Certain tokens are kept at any threshold, in one evaluation."""
    start = torch.zeros(20, N, dtype=torch.int64)
    config = cwdfm.Resample(rounds=9, threshold=0.8 if count else 1.0)
    found = cwdfm.resample(flipping(count), UNIFORM, SCHEDULE, start, config)
    assert torch.equal(found.tokens, found.updates.long() % 2)
    assert found.updates[:, :count].sum(1).tolist() == [9 if count else 0] * 20
    assert (len(found.updates[:, 0].unique()) > 2) == (count == 2)
    assert torch.equal(found.loops, (found.updates - 1).clamp(min=0))
    assert found.evaluations.tolist() == [9 if count else 1] * 20


def test_draw_options_default_to_those_of_the_solver() -> None:
    """Temperature and nucleus. There are at most as many groups as tokens."""
    trained, options = cwdfm.load("qm9-uniform-small"), {"n": 6, "steps": 4, "seed": 1}
    cold = cwdfm.Euler(temperature=0.3, top_p=0.9)
    found = generate(trained, cold, **options, resample=cwdfm.Resample(rounds=3))
    config = cwdfm.Resample(rounds=3, temperature=0.3, top_p=0.9)
    same = generate(trained, cold, **options, resample=config)
    other = generate(trained, cold, **options, resample=replace(config, temperature=3.0))
    assert torch.equal(found.tokens, same.tokens)
    assert not torch.equal(found.tokens, other.tokens)
    x = torch.zeros(2, N, dtype=torch.int64)
    one = cwdfm.resample(*FLOWS[MASK], x, cwdfm.Resample(rounds=1, noise_fraction=1e-6))
    assert one.evaluations.tolist() == [N, N]


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_batch_padding_does_not_change_scores(source: cwdfm.Source) -> None:
    """Three sequences have the same scores and cost in a batch padded to four."""
    model, tokens = SmallModel(source.num_tokens), torch.tensor([START] * 3)
    arguments = (tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(3), 0)
    scorer = TokenScorer(model, source, SCHEDULE, N, 0.5, 1, DrawOptions())
    alone, filled = scorer.score(*arguments), scorer.score(*arguments, unit=4)
    assert alone.logit_evaluations == filled.logit_evaluations == tokens.numel()
    for field in ("probability", "proposal", "evaluations"):
        torch.testing.assert_close(getattr(alone, field), getattr(filled, field))
