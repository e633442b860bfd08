"""Solvers that decide how many tokens to reveal, or to mask again, against enumerated laws."""

import math
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.path import MixturePath
from cwdfm.solver.jump_your_steps import best_path, step_costs
from tests.support.chains import (
    SCHEDULE,
    Memory,
    counts_of,
    exact_law,
    filled,
    law_of,
    masked_in,
    model_of,
    source_of,
)
from tests.support.exact import (
    Array,
    Chain,
    State,
    alphas,
    correlated_target,
    neighbor,
    ordered_draws,
)
from tests.support.stats import assert_differs, assert_follows, histogram

MASKED = Chain(correlated_target(3, 3, seed=1), mask=True)


def test_threshold_follows_its_exact_law() -> None:
    """False-alarm rate 1e-6."""

    def law(threshold: float) -> Array:
        def rule(x: State, _: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
            p_NV, masked = MASKED.posterior(x, 0.5), masked_in(MASKED, x)
            sure = [i for i in masked if p_NV[i].max() >= threshold]
            if not sure:
                sure = sorted(masked, key=lambda i: -p_NV[i].max())[:1]
            for y, chance in filled(MASKED, x, masked if k == 2 else sure, p_NV):
                yield y, None, chance

        return law_of(MASKED, 3, rule)

    counts = counts_of(MASKED, cwdfm.Threshold(0.35), 3)
    assert_follows(counts, law(0.35))
    assert_differs(counts, law(0.99))
    assert_follows(counts_of(MASKED, cwdfm.Threshold(1.0), 3), MASKED.target.ravel())


def test_klass_follows_its_exact_law() -> None:
    """A coordinate waits for two stable predictions. False-alarm rate 1e-6."""
    chain, threshold, kl, history, steps = Chain(MASKED.target**0.5, True), 0.4, 0.15, 1, 4

    def law(kl: float) -> Array:
        def rule(x: State, memory: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
            p_NV, masked = chain.posterior(x, 0.5), masked_in(chain, x)
            before, stable = memory or (None, (0,) * chain.length)
            now = list(stable)
            for i in masked:
                if before is not None:
                    old = chain.posterior(before, 0.5)[i]
                    near = float((p_NV[i] * np.log(p_NV[i] / old)).sum()) < kl
                    now[i] = stable[i] + 1 if near else 0
            ready = [i for i in masked if now[i] >= history and p_NV[i].max() >= threshold]
            chosen = ready or sorted(masked, key=lambda i: -p_NV[i].max())[:1]
            for y, chance in filled(chain, x, masked if k == steps - 1 else chosen, p_NV):
                yield y, (x, tuple(now)), chance

        return law_of(chain, steps, rule)

    counts = counts_of(chain, cwdfm.KLASS(threshold, kl, history), steps)
    assert_follows(counts, law(kl))
    assert_differs(counts, law(0.0))
    assert np.allclose(law(0.0), chain.target.ravel() / chain.target.sum())  # one at a time


def test_klass_prefers_a_stable_token_to_a_more_confident_one() -> None:
    """The last token is revealed first, which changes the prediction of the first one."""
    source = cwdfm.MaskSource(2)

    def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        first = torch.where(x[:, 2] == source.mask_id, 0.95, 0.05)
        p_BN = torch.stack([first, torch.full_like(first, 0.92), torch.full_like(first, 0.99)], 1)
        return torch.stack([p_BN, 1 - p_BN, torch.zeros_like(p_BN)], -1).log()

    solver = cwdfm.KLASS(threshold=0.9, kl=0.01, history=1)
    state, hidden = solver.init(source, torch.arange(1), 3), []
    for t in (0.0, 0.25):
        state, _ = solver.step(model, source, SCHEDULE, state, t, t + 0.25)
        hidden.append((state.tokens == source.mask_id).tolist()[0])
    assert hidden == [[True, True, False], [True, False, False]]


@pytest.mark.parametrize("eta", [0.0, 1.0, 3.0])
def test_path_planning_follows_its_exact_law(eta: float) -> None:
    """For a model that predicts revealed tokens too. False-alarm rate 1e-6."""
    source, steps = cwdfm.MaskSource(2), 4
    chain = Chain(correlated_target(2, 3, seed=1), mask=True)
    table = np.random.default_rng(0).normal(size=(3, 3, 2))

    def logits(x: Any) -> Any:
        """Depends on the token itself and on its left neighbor."""
        return table[x, np.roll(x, 1, -1)]

    def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        values = torch.from_numpy(logits(x.numpy()))
        return torch.cat([values, torch.zeros(*x.shape, 1)], -1)

    def rule(x: State, _: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
        raw = logits(np.array(x))
        p_NV = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
        masked = masked_in(chain, x)
        keep = 3 - math.floor(3 * (1 - ((k + 1) / steps) ** 2) + 1e-9)
        for y, chance in filled(chain, x, masked, p_NV):
            score = [
                math.log(p_NV[i, y[i]]) * (1.0 if i in masked else eta) for i in range(chain.length)
            ]
            # revealed tokens tie at eta = 0: average over the orders
            best = sorted(
                {tuple(sorted(o, key=lambda i: -score[i])) for o in permutations(range(3))}
            )
            for order in best:
                kept = set(order[:keep])
                z = tuple(v if i in kept else 2 for i, v in enumerate(y))
                yield z, None, chance / len(best)

    shape = (60_000, 3)
    out = cwdfm.sample(model, source, SCHEDULE, cwdfm.PathPlanning(eta), shape=shape, steps=steps)
    assert_follows(histogram(out.tokens, 2), law_of(chain, steps, rule))


def test_entropy_bound_renoises_with_a_uniform_source() -> None:
    """The time is that of the accepted fraction. False-alarm rate 1e-6."""
    chain = Chain(correlated_target(2, 3, seed=1, power=5.0), mask=False)

    def law(gamma: float, steps: int) -> Array:
        def rule(x: State, accepted: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
            p_NV = chain.posterior(x, (accepted or 0) / 3)
            entropy = -(p_NV * np.log(np.where(p_NV > 0, p_NV, 1.0))).sum(1)
            order = np.argsort(entropy)
            sizes = [
                n for n in (1, 2, 3) if entropy[order[:n]].sum() - entropy[order[:n]].max() <= gamma
            ]
            kept = list(range(3)) if k == steps - 1 else sorted(order[: max(sizes)].tolist())
            law_NV = np.where(np.isin(np.arange(3), kept)[:, None], p_NV, 0.5)
            for y, chance in filled(chain, x, [0, 1, 2], law_NV):
                yield y, len(kept), chance

        return law_of(chain, steps, rule)

    counts = counts_of(chain, cwdfm.EntropyBound(0.3), 4)
    assert_follows(counts, law(0.3, 4))
    assert_differs(counts, law(9.0, 4))


def test_a_weight_orders_the_coordinates_of_top_k() -> None:
    """One at a time, in proportion to alpha; several, without replacement."""
    chain, log_weight = Chain(correlated_target(2, 4, seed=1), True), neighbor(1, 2.0)
    solver = cwdfm.TopK(cwdfm.Neighbor(1, 2.0))
    assert_follows(counts_of(chain, solver, 4, grid="kappa"), chain.target.ravel())

    def rule(x: State, _: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
        p_NV = chain.posterior(x, 0.5)
        alpha = alphas(log_weight, np.array(x) != chain.vocab, p_NV)
        for order, chance in ordered_draws(alpha, 2).items():
            for y, drawn in filled(chain, x, [*order], p_NV):
                yield y, None, chance * drawn

    assert_follows(counts_of(chain, solver, 2, grid="kappa"), law_of(chain, 2, rule))


# Grids


def grid_error(chain: Chain, times: list[float]) -> float:
    """The total variation between the law of exact steps on a grid and the target."""
    law = exact_law(chain, np.array(times), exact=True)
    return float(np.abs(law - chain.target.ravel()).sum() / 2)


@pytest.mark.parametrize("mask", [True, False])
def test_jump_your_steps_beats_the_other_grids(mask: bool) -> None:
    target = np.full((2, 2, 2, 2), 0.004)
    target[0, 0, 0, 0], target[1, 1, 1, 1] = 0.6, 0.4  # the first token decides about the others
    chain = Chain(target / target.sum(), mask)
    data = np.random.default_rng(0).choice(chain.target.size, 2000, p=chain.target.ravel())
    tokens = torch.from_numpy(chain.data_YN[data])
    flow = (model_of(chain), source_of(chain), SCHEDULE)
    grid = cwdfm.jump_your_steps(*flow, tokens, 4, resolution=24)
    assert (float(grid[0]), float(grid[-1])) == (0.0, 1.0)
    even = np.linspace(0, 1, 5)
    for other in (even, even**0.5):
        assert grid_error(chain, grid.tolist()) < 0.95 * grid_error(chain, other.tolist())
    out = cwdfm.sample(*flow, cwdfm.Euler(), shape=(2, 4), steps=4, grid=grid)
    assert out.tokens.shape == (2, 4)


def test_step_costs_are_the_divergence_of_a_mask_source() -> None:
    """Drawing all tokens at once costs sum of entropies - joint entropy, their dependence."""
    chain = Chain(correlated_target(2, 3, seed=5), mask=True)
    p = chain.target
    single = [p.sum(tuple({0, 1, 2} - {i})) for i in range(3)]
    dependence = sum(-(q * np.log(q)).sum() for q in single) + (p * np.log(p)).sum()
    data = np.repeat(chain.data_YN, np.round(20000 * p.ravel()).astype(int), axis=0)
    path = MixturePath(source_of(chain), SCHEDULE)
    times = cwdfm.time_grid(SCHEDULE, 50, "kappa")
    cost = step_costs(model_of(chain), path, torch.from_numpy(data), times, 0)
    assert float(cost[0, -1]) == pytest.approx(dependence, rel=0.03)


def test_best_path_is_the_best_of_all() -> None:
    cost = torch.from_numpy(np.random.default_rng(0).random((7, 8)))
    cost[torch.arange(7)[:, None] >= torch.arange(8)] = torch.inf
    found = best_path(cost, 4).tolist()
    paths = [[0, *middle, 7] for middle in combinations(range(1, 7), 3)]
    assert found == min(paths, key=lambda p: sum(float(cost[a, b]) for a, b in pairwise(p)))


def test_invalid_options() -> None:
    flow = (model_of(MASKED), source_of(MASKED), SCHEDULE)
    for make, reason in (
        (lambda: cwdfm.Threshold(0.0), "threshold"),
        (lambda: cwdfm.Threshold(1.5), "threshold"),
        (lambda: cwdfm.KLASS(kl=-1.0), "kl"),
        (lambda: cwdfm.PathPlanning(-1.0), "eta"),
        (lambda: cwdfm.TopK("best"), "score"),  # type: ignore[arg-type]
        (lambda: cwdfm.jump_your_steps(*flow, torch.zeros(2, 3).long(), 9, resolution=4), "steps"),
    ):
        with pytest.raises(cwdfm.InputError, match=reason):
            make()
