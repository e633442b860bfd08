"""Solvers with an unmasking order, compared with brute force and exact laws of small chains."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import expm
from torch import Tensor

import cwdfm
from tests.support.cases import slow
from tests.support.chains import (
    N_SAMPLES,
    SCHEDULE,
    WEIGHTS,
    Memory,
    counts_of,
    filled,
    law_of,
    masked_in,
    model_of,
    sample_chain,
)
from tests.support.exact import Array, Chain, LogWeight, State, alphas, correlated_target, neighbor
from tests.support.models import Recorder, SmallModel, SmallSplitModel, constant
from tests.support.stats import assert_differs, assert_follows, histogram

flat_model = constant(torch.zeros(3))
SCORES = ["confidence", "margin", "entropy"]
SOLVERS = [
    *(cwdfm.TopK(score) for score in SCORES),  # type: ignore[arg-type]
    cwdfm.TopK(temperature=0.7, top_p=0.9, dtype=torch.float32),
    *(cwdfm.EntropyBound(1.0, error) for error in SCORES),  # type: ignore[arg-type]
    cwdfm.EntropyBound(0.0, top_p=0.9),
    *(cwdfm.FirstHitting(weight) for weight, _ in WEIGHTS.values()),
    cwdfm.FirstHitting(cwdfm.Neighbor(2, 1.0), temperature=1.3, top_p=0.8),
]


class Uneven(SmallModel):
    """A model whose predictions differ between positions, so that scores never tie."""

    def hidden(self, x_t: Tensor, t: Tensor) -> Tensor:
        return super().hidden(x_t, t) * torch.linspace(0.5, 1.5, x_t.shape[1])[:, None]


class UnevenSplit(Uneven, SmallSplitModel):
    """The same model, split into trunk and head."""


def product_of_marginals(target: Array) -> Array:
    axes = range(target.ndim)
    singles = [target.sum(tuple(set(axes) - {i})) for i in axes]
    law = singles[0]
    for single in singles[1:]:
        law = np.multiply.outer(law, single)
    return np.asarray(law.flatten())


# The coordinates that a step unmasks, by definition.


def certainty(score: str, p: Array) -> float:
    """The score that sorts the coordinates, in descending order."""
    first, second = sorted(p, reverse=True)[:2]
    if score == "entropy":
        return float(sum(q * math.log(q) for q in p if q > 0))
    return float(first - second if score == "margin" else first)


def surest(score: str, masked: list[int], p_NV: Array) -> list[int]:
    return sorted(masked, key=lambda i: -certainty(score, p_NV[i]))


def top_k_choice(score: str, masked: list[int], p_NV: Array, free: int, t_next: float) -> list[int]:
    stay = math.floor(free * (1 - Fraction(t_next).limit_denominator(100) ** 2))
    return surest(score, masked, p_NV)[: max(1, len(masked) - stay)]


def entropy_bound_choice(gamma: float, error: str, masked: list[int], p_NV: Array) -> list[int]:
    order = surest(error, masked, p_NV)

    def fits(k: int) -> bool:
        terms = [-certainty("entropy", p_NV[i]) for i in order[:k]]
        return sum(terms) - max(terms) <= gamma

    return order[: max(k for k in range(1, len(order) + 1) if fits(k))]


def exact_law(
    chain: Chain, steps: int, choice: Callable[[list[int], Array, float], list[int]]
) -> Array:
    """The law of the samples [V^N], summed over all tokens of all chosen coordinates."""

    def rule(x: State, _: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
        p_NV, chosen = chain.posterior(x, 0.5), masked_in(chain, x)
        if chosen and k < steps - 1:
            chosen = choice(chosen, p_NV, (k + 1) / steps)
        for y, chance in filled(chain, x, chosen, chain.drawn_from(p_NV)):
            yield y, None, chance

    return law_of(chain, steps, rule)


# Top-k


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("grid", ["kappa", slow("t")])
def test_top_k_with_one_token_per_step_samples_the_target(score: str, grid: str) -> None:
    chain = Chain(correlated_target(3, 3, seed=0), mask=True)
    solver = cwdfm.TopK(score)  # type: ignore[arg-type]
    assert_follows(counts_of(chain, solver, 3, grid=grid), chain.target.flatten())
    # the control: fewer steps draw tokens together that are not independent
    assert_differs(counts_of(chain, solver, 2, grid=grid), chain.target.flatten())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.8}], ids=str)
def test_top_k_follows_the_exact_law_of_coarse_steps(score: Any, settings: Any) -> None:
    chain = Chain(correlated_target(3, 4, seed=2), True, **settings)
    counts = counts_of(chain, cwdfm.TopK(score, **settings), 3)
    assert_follows(counts, exact_law(chain, 3, lambda m, p, t: top_k_choice(score, m, p, 4, t)))
    worst = exact_law(chain, 3, lambda m, p, t: surest(score, m, p)[-1:])  # the least sure first
    assert_differs(counts, worst)


def test_a_random_order_reveals_every_set_of_coordinates_equally_often() -> None:
    """By enumeration of the sets. False-alarm rate 1e-6."""
    chain, steps = Chain(correlated_target(3, 4, seed=2), mask=True), 3

    def rule(x: State, _: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
        p_NV, masked, t_next = chain.posterior(x, 0.5), masked_in(chain, x), (k + 1) / steps
        size = len(masked) if k == steps - 1 else len(masked) - math.floor(4 * (1 - t_next**2))
        sets = list(combinations(masked, max(1, size)))
        for chosen in sets:
            for y, chance in filled(chain, x, list(chosen), chain.drawn_from(p_NV)):
                yield y, None, chance / len(sets)

    counts = counts_of(chain, cwdfm.TopK("random"), steps)
    assert_follows(counts, law_of(chain, steps, rule))
    assert_differs(counts, exact_law(chain, 3, lambda m, p, t: top_k_choice("margin", m, p, 4, t)))


def test_top_k_reveals_tokens_by_the_schedule() -> None:
    def counts(schedule: cwdfm.Schedule, length: int, steps: int, **options: Any) -> list[int]:
        seen: list[int] = []
        flow = (flat_model, cwdfm.MaskSource(2), schedule, cwdfm.TopK())
        options["callback"] = lambda state, info: seen.append(int(info.forward[0].sum()))
        cwdfm.sample(*flow, shape=(3, length), steps=steps, **options)
        return seen

    assert counts(SCHEDULE, 40, 4, grid="kappa") == [10] * 4
    assert counts(SCHEDULE, 64, 4) == [4, 12, 20, 28]  # 64 (1 - t^2) stay masked
    later = cwdfm.Start(torch.full((3, 40), 2), 0.5**0.5)  # halfway along the path
    assert counts(SCHEDULE, 40, 4, grid="kappa", start=later) == [10] * 4
    stays = [100, *(int(100 * math.cos(math.pi / 2 * k / 8)) for k in range(1, 9))]
    assert counts(cwdfm.Cosine(), 100, 8) == [a - b for a, b in pairwise(stays)]  # MaskGIT's
    assert counts(cwdfm.Linear(), 3, 5) == [1, 1, 1, 0, 0]
    for schedule in (cwdfm.Linear(), SCHEDULE, cwdfm.Cosine(), cwdfm.Polynomial(5.0)):
        for grid in ("t", "kappa"):
            assert counts(schedule, 37, 37, grid=grid) == [1] * 37


def test_time_of_the_revealed_fraction_with_a_later_start() -> None:
    solver, source, model = cwdfm.TopK(), cwdfm.MaskSource(3), Recorder(constant(torch.zeros(4)))
    tokens = torch.where(torch.arange(7)[None] < 3, source.mask_id, 0)
    begun = solver.init(source, torch.arange(1), 7)
    state = replace(begun, tokens=tokens, start_survival=0.1)
    solver.step(model, source, cwdfm.Linear(), state, 0.0, 0.5)
    assert torch.equal(model.asked[0][1], torch.tensor([1 - 0.1 * 3 / 7]))  # rounded only once


def test_ties_are_broken_evenly() -> None:
    """With equal scores all orders are equally likely. False-alarm rate 1e-6."""
    for solver in (cwdfm.TopK("margin"), cwdfm.EntropyBound(0.0)):
        counts = order_counts(solver, flat_model)
        assert_follows(counts, order_law(None))
        assert_differs(counts, order_law(neighbor(1, 2.0)))


# Entropy bound


@pytest.mark.parametrize("error", SCORES)
def test_entropy_bound_follows_its_exact_law(error: str) -> None:
    """gamma = 0 samples the target, gamma = inf independent marginals."""
    chain = Chain(correlated_target(3, 3, seed=1), mask=True)
    target, independent = chain.target.flatten(), product_of_marginals(chain.target)
    seen = {}
    for gamma in (0.0, 0.9, math.inf):
        solver = cwdfm.EntropyBound(gamma, error)  # type: ignore[arg-type]
        seen[gamma] = counts_of(chain, solver, 3)
    assert_follows(seen[0.0], target)
    assert_follows(seen[math.inf], independent)

    def choice(masked: list[int], p_NV: Array, t_next: float) -> list[int]:
        return entropy_bound_choice(0.9, error, masked, p_NV)

    assert_follows(seen[0.9], exact_law(chain, 3, choice))
    for wrong in (target, independent):
        assert_differs(seen[0.9], wrong)
    assert_differs(seen[0.0], independent)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("gamma", [None, 0.0, slow(0.3), 2.0, slow(9.0)])  # None: top-k
def test_a_step_picks_what_brute_force_picks(score: Any, gamma: float | None) -> None:
    """For prompts of all lengths. The model is conditioned on the revealed fraction."""
    source, n, steps = cwdfm.MaskSource(7), 20, 6 if gamma is None else 20
    solver = cwdfm.TopK(score) if gamma is None else cwdfm.EntropyBound(gamma, score)
    fixed = torch.rand(20, n, generator=torch.manual_seed(0)) < torch.linspace(0, 0.9, 20)[:, None]
    state = solver.init(source, torch.arange(20), n, prompt=torch.full((n,), 3), fixed=fixed)
    model, sizes = Recorder(Uneven(source.num_tokens)), set()
    for step in range(steps):
        before, t_next = state.tokens, (step + 1) / steps
        state, info = solver.step(model, source, SCHEDULE, state, step / steps, t_next)
        if not bool((before == 7).any()):
            assert info.logit_evaluations == 0
            break
        x, t = model.asked[-1]
        assert torch.equal(x, before)
        p = source.data_logits(model.model(x, t)).softmax(-1).detach().numpy()
        for b in range(20):
            masked = [i for i in range(n) if before[b, i] == 7]
            free = max(1, n - int(fixed[b].sum()))
            assert float(t[b]) == pytest.approx(math.sqrt(1 - len(masked) / free))
            assert bool(info.evaluated[b]) == bool(masked)
            expected = masked
            if masked and t_next < 1 and gamma is None:
                expected = top_k_choice(score, masked, p[b], free, t_next)
            elif masked and t_next < 1 and gamma is not None:
                expected = entropy_bound_choice(gamma, score, masked, p[b])
            assert sorted(expected) == info.forward[b].nonzero()[:, 0].tolist()
            sizes.add(len(expected))
    assert int(state.tokens.max()) < 7
    assert (sizes <= {0, 1}) == (gamma == 0)


def test_certain_tokens_are_revealed_at_no_cost() -> None:
    """With gamma = 0, tokens determined by the others need no evaluation of their own."""
    target = np.zeros((2, 2, 2))
    target[0, 0, 0], target[1, 1, 1] = 0.3, 0.7
    chain = Chain(target, mask=True)
    out = sample_chain(chain, cwdfm.EntropyBound(0.0), 10, 100)
    assert bool((out.tokens == out.tokens[:, :1]).all())
    assert out.evaluations.tolist() == [2] * 100


# First hitting


@pytest.mark.parametrize(
    "weight", [*(w for w, _ in WEIGHTS.values()), cwdfm.Distance(2.0)], ids=str
)
def test_first_hitting_samples_the_target(weight: cwdfm.Weight | None) -> None:
    chain = Chain(correlated_target(3, 3, seed=0), mask=True)
    target, independent = chain.target.flatten(), product_of_marginals(chain.target)
    counts = counts_of(chain, cwdfm.FirstHitting(weight), 3)
    assert_follows(counts, target)
    assert_differs(counts, independent)
    # a single step unmasks everything at once
    assert_follows(counts_of(chain, cwdfm.FirstHitting(weight), 1), independent)


def order_law(log_weight: LogWeight | None, length: int = 4) -> Array:
    """The probability of each order of `permutations`: a product of alpha^i / m."""
    law = []
    for order in permutations(range(length)):
        chance = 1.0
        for j, i in enumerate(order):
            revealed = np.array([k in order[:j] for k in range(length)])
            chance *= alphas(log_weight, revealed, np.empty((length, 0)))[i] / (length - j)
        law.append(chance)
    return np.array(law)


def order_counts(
    solver: cwdfm.Solver, model: Callable[[Tensor, Tensor], Tensor], length: int = 4
) -> NDArray[np.int64]:
    """How often each order of single reveals occurs."""
    chosen: list[Tensor] = []

    def note(state: cwdfm.State, info: cwdfm.Info) -> None:
        assert bool((info.forward.sum(1) == 1).all())
        chosen.append(info.forward.long().argmax(1))

    sampled = (model, cwdfm.MaskSource(2), SCHEDULE, solver)
    cwdfm.sample(*sampled, shape=(N_SAMPLES, length), steps=length, callback=note)
    codes = histogram(torch.stack(chosen, 1), length)
    places = [sum(i * length ** (length - 1 - j) for j, i in enumerate(order))
              for order in permutations(range(length))]  # fmt: skip
    assert codes.sum() == codes[places].sum()
    return np.asarray(codes[places])


def test_first_hitting_orders_follow_the_weighted_jump_chain() -> None:
    laws = {name: order_law(WEIGHTS[name][1]) for name in ("none", "neighbor")}
    for name, other in (("none", "neighbor"), ("neighbor", "none")):
        counts = order_counts(cwdfm.FirstHitting(WEIGHTS[name][0]), flat_model)
        assert_follows(counts, laws[name])
        assert_differs(counts, laws[other])


FOUR = correlated_target(2, 4, seed=1)


@cache
def hits_of(weight: str) -> tuple[Tensor, Tensor]:
    """kappa at every hit [N, B], and the states before, between and after them [N + 1, B, N]."""
    chain = Chain(FOUR, mask=True)
    model, source = Recorder(model_of(chain)), cwdfm.MaskSource(chain.vocab)
    solver, n = cwdfm.FirstHitting(WEIGHTS[weight][0]), chain.length
    state = solver.init(source, torch.arange(N_SAMPLES), n, seed=7)
    walk = [state.tokens]
    for step in range(n):
        state, _ = solver.step(model, source, SCHEDULE, state, step / n, (step + 1) / n)
        walk.append(state.tokens)
    kappa = torch.stack([t.double().square() for _, t in model.asked])
    assert kappa.shape == (n, N_SAMPLES)
    return kappa, torch.stack(walk)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_hitting_times_are_order_statistics(weight: str) -> None:
    """kappa at the j-th of N hits is the j-th smallest of N uniforms, for any weight."""
    n, cells = 4, 20
    kappa, _ = hits_of(weight)
    assert bool((kappa.diff(dim=0) >= 0).all())
    flat = np.full(cells, 1 / cells)

    def cell(u: Array) -> NDArray[np.int64]:
        return np.minimum(u * cells, cells - 1).astype(np.int64)

    u_N = []
    for j, k in enumerate(kappa.numpy()):
        beta = stats.beta.cdf(k, j + 1, n - j)
        assert_follows(np.bincount(cell(beta), minlength=cells), flat)
        wrong = stats.beta.cdf(k, j + 1, n - j + 1)  # one coordinate more
        assert_differs(np.bincount(cell(wrong), minlength=cells), flat)
        before = kappa[j - 1].numpy() if j else np.zeros(N_SAMPLES)
        u_N.append(cell(((1 - k) / (1 - before)) ** (n - j)))
    # and the waits are independent of each other
    for a, b in pairwise(u_N):
        law = np.full(cells**2, 1 / cells**2)
        assert_follows(np.bincount(a * cells + b, minlength=cells**2), law)


def test_fixed_tokens_do_not_change_hitting_times() -> None:
    """With 3 of 6 coordinates free the first hit is at the smallest of 3 uniforms."""
    model, source, solver = Recorder(flat_model), cwdfm.MaskSource(2), cwdfm.FirstHitting()
    prompt = torch.tensor([0, 2, 2, 1, 2, 0])
    state = solver.init(source, torch.arange(N_SAMPLES), 6, prompt=prompt)
    solver.step(model, source, SCHEDULE, state, 0.0, 0.5)
    kappa, cells = model.asked[0][1].double().square().numpy(), 20
    for free, holds in ((3, assert_follows), (6, assert_differs)):
        place = np.minimum(stats.beta.cdf(kappa, 1, free) * cells, cells - 1).astype(np.int64)
        holds(np.bincount(place, minlength=cells), np.full(cells, 1 / cells))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_first_hitting_is_the_chain_at_every_time(weight: str) -> None:
    """The state at any time follows a matrix exponential."""
    kappa, walk = hits_of(weight)
    start = Chain(FOUR, mask=True).start()
    right, wrong = (
        Chain(FOUR, True, log_weight).generator(0.5)  # at any time: rates do not depend on it
        for log_weight in (WEIGHTS[weight][1], neighbor(1, -1.0))
    )

    def law_at(moment: float, generator: Array) -> Array:
        law = (start @ expm(-math.log(1 - moment) * generator)).clip(min=0)
        return np.asarray(law / law.sum())

    for moment in (0.2, 0.5, 0.8):
        happened = (kappa <= moment).sum(0)
        counts = histogram(walk[happened, torch.arange(N_SAMPLES)], 3)
        assert_follows(counts, law_at(moment, right))
        assert_differs(counts, law_at(moment, wrong))
        assert_differs(counts, law_at(moment + 0.03, right))


# Properties of all solvers


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
class TestAll:
    def draw(self, model: Any, solver: cwdfm.Solver, **options: Any) -> cwdfm.Samples:
        settings: dict[str, Any] = {"shape": (24, 20), "steps": 9, "seed": 11, **options}
        return cwdfm.sample(model, cwdfm.MaskSource(7), SCHEDULE, solver, **settings)

    def test_tokens_change_once_and_prompts_never(self, solver: cwdfm.Solver) -> None:
        fixed = torch.rand(24, 20, generator=torch.manual_seed(0)) < 0.4
        fixed[0] = True  # nothing to do here
        prompt = torch.randint(0, 7, (24, 20), generator=torch.manual_seed(1))
        for steps in (1, 5, 30):
            out = self.draw(Uneven(8), solver, prompt=prompt, fixed=fixed, steps=steps)
            assert torch.equal(out.tokens[fixed], prompt[fixed])
            assert torch.equal(out.updates, (~fixed).int())
            assert int(out.loops.max()) == 0
            assert int(out.tokens.max()) < 7
            assert int(out.evaluations[0]) == 0

    @pytest.mark.parametrize("steps", [6, slow(1), slow(50)])
    def test_what_it_costs(self, solver: cwdfm.Solver, steps: int) -> None:
        fixed = torch.arange(20) < torch.arange(24)[:, None] % 12
        free = (~fixed).sum(1)
        model, asked = UnevenSplit(8), []

        def note(state: cwdfm.State, info: cwdfm.Info) -> None:
            asked.append(
                (info.evaluated, info.forward.any(1), info.forward.sum(1), info.logit_evaluations)
            )

        prompt = torch.full((20,), 3)
        out = self.draw(model, solver, prompt=prompt, fixed=fixed, steps=steps, callback=note)
        # plus four rows of one more sequence, used to compare trunk and head with the model
        assert model.rows - 4 == out.logit_evaluations == sum(rows for *_, rows in asked)
        assert model.sequences - 1 == int(out.evaluations.sum())
        assert torch.equal(out.evaluations, torch.stack([a for a, *_ in asked]).sum(0))
        left = free.clone()
        needs_logits = not isinstance(solver, cwdfm.FirstHitting) or (
            solver.weight is not None and solver.weight.needs_logits
        )
        for was_asked, moved, moves, rows in asked:
            assert torch.equal(was_asked, left > 0)  # a finished sequence costs nothing
            assert torch.equal(moved, left > 0)  # and every call brings a token
            assert rows == int((left if needs_logits else moves).sum())
            left = left - moves
        if not isinstance(solver, cwdfm.EntropyBound):
            assert torch.equal(out.evaluations, free.clamp(max=steps))
