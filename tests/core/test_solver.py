"""Solvers against the exact law of small chains: transition matrices, `expm`, closed forms."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import expm

import cwdfm
from cwdfm.solver import euler
from tests.support.cases import slow
from tests.support.chains import (
    N_SAMPLES,
    SCHEDULE,
    counts_of,
    exact_law,
    hazards,
    model_of,
    sample_chain,
    source_of,
)
from tests.support.chains import WEIGHTS as COMMON_WEIGHTS
from tests.support.exact import Array, Chain, correlated_target, entropy, neighbor
from tests.support.models import SmallModel, constant
from tests.support.stats import assert_differs, assert_follows, binomial, histogram


def test_exact_posterior_of_counts_is_float64() -> None:
    counts = torch.tensor([[1, 2], [3, 5]])
    p = cwdfm.ExactPosterior(counts, cwdfm.MaskSource(2), SCHEDULE).probabilities_S
    assert p.tolist() == [1 / 11, 2 / 11, 3 / 11, 5 / 11]


def test_exact_posterior_is_bayes_rule() -> None:
    target = correlated_target(3, 3, seed=0)
    for mask in (True, False):
        chain = Chain(target, mask)
        states = torch.tensor(chain.states)
        for t in (0.0, 0.4, 0.9):
            logits = model_of(chain)(states, torch.full((len(states),), t))
            p = source_of(chain).data_logits(logits).softmax(-1).numpy()
            for s, x in enumerate(chain.states):
                np.testing.assert_allclose(p[s], chain.posterior(x, t**2), atol=1e-6)


def share(revealed: NDArray[np.bool_], p: Array) -> Array:
    """Proportional to the revealed neighbors, and uniform if no masked coordinate has any."""
    counts = neighbor(1, 1.0)(revealed, p)
    some = (counts * ~revealed).any(-1, keepdims=True)
    return np.log(np.where(some, np.where(counts > 0, counts, 1e-300), 1.0))


WEIGHTS = COMMON_WEIGHTS | {
    "share": (cwdfm.NeighborShare(1), share),
    "inverse": (
        cwdfm.EntropyInverse(),
        lambda r, p: -np.log(np.maximum(-entropy(1.0)(r, p), 1e-6)),
    ),
}
both_sources = pytest.mark.parametrize("mask", [True, False], ids=["mask", "uniform"])
HAZARDS = ("euler", "integrated")
both_hazards = pytest.mark.parametrize("hazard", HAZARDS)


def assert_first_order(errors: Sequence[float], rel: float) -> None:
    """Every error is half of the one before."""
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(2, rel=rel)


CORRECTOR = cwdfm.Corrector(3.0, 0.5, 0.25)
QUICK_WEIGHTS = ("none", "neighbor", "entropy")


@both_sources
@pytest.mark.parametrize(
    ("weight", "hazard", "corrector"),
    [  # `test_nucleus_and_temperature` has Euler's hazard without a corrector
        *((weight, "euler", CORRECTOR) for weight in QUICK_WEIGHTS),
        *((weight, "integrated", None) for weight in WEIGHTS if weight not in QUICK_WEIGHTS),
        ("entropy", "integrated", CORRECTOR),
        *(slow(weight, "euler", CORRECTOR) for weight in WEIGHTS if weight not in QUICK_WEIGHTS),
        *(slow(weight, "integrated", None) for weight in QUICK_WEIGHTS),
        slow("none", "integrated", CORRECTOR),
    ],
    ids=lambda value: value if isinstance(value, str) else "corrector" if value else "",
)
def test_samples_follow_the_exact_law_of_the_discretized_chain(
    mask: bool, weight: str, hazard: str, corrector: cwdfm.Corrector | None
) -> None:
    """Five coarse steps, so that most details affect the law.

    Which of two jumps of a token comes first hardly does; the next test covers that.
    """
    ours, referee = WEIGHTS[weight]
    chain = Chain(correlated_target(2, 4, seed=1), mask, referee)
    steps = 5
    grid = np.linspace(0, 1, steps + 1)
    law = exact_law(chain, grid, exact=hazard == "integrated", corrector=corrector)
    solver = cwdfm.Euler(weight=ours, hazard=hazard, corrector=corrector)  # type: ignore[arg-type]
    counts = counts_of(chain, solver, steps)
    assert_follows(counts, law)
    assert_differs(counts, chain.target.flatten())  # the error of coarse steps is visible


@pytest.mark.parametrize("weight", ["none", "entropy"])
@both_hazards
def test_the_earlier_of_two_jumps_happens(weight: str, hazard: str) -> None:
    """One long step, in which forward and backward jumps of a token often both occur.

    Only with a uniform source: with a mask source each token has one clock. A solver in which the
    same direction always wins when both jumps occur would fail.
    """
    ours, referee = WEIGHTS[weight]
    chain = Chain(correlated_target(3, 3, seed=1), False, referee)
    t, t_next = 0.4, 0.8
    rates = hazards(t, t_next, hazard == "integrated", CORRECTOR)
    assert min(rates) > 1
    solver = cwdfm.Euler(weight=ours, hazard=hazard, corrector=CORRECTOR)  # type: ignore[arg-type]
    source = source_of(chain)
    state = solver.init(source, torch.arange(N_SAMPLES), 3)
    after, _ = solver.step(model_of(chain), source, SCHEDULE, state, t, t_next)
    matrix = chain.step_matrix(t**2, *rates)
    assert_follows(histogram(after.tokens, 3), chain.start() @ matrix)
    # From one state, where it shows in which tokens the jumps back land, and not only how many.
    one = (0, 2, 1)
    state = replace(state, tokens=torch.tensor(one).repeat(N_SAMPLES, 1))
    after, _ = solver.step(model_of(chain), source, SCHEDULE, state, t, t_next)
    assert_follows(histogram(after.tokens, 3), matrix[chain.states.index(one)])


@both_sources
@pytest.mark.parametrize("weight", ["none", "neighbor", "entropy"])
def test_nucleus_and_temperature(mask: bool, weight: str) -> None:
    ours, referee = WEIGHTS[weight]
    chain = Chain(correlated_target(3, 3, seed=2), mask, referee, top_p=0.6, temperature=1.3)
    law = exact_law(chain, np.linspace(0, 1, 5))
    solver = cwdfm.Euler(weight=ours, top_p=0.6, temperature=1.3)
    assert_follows(counts_of(chain, solver, 4), law)


@both_sources
@pytest.mark.parametrize("weight", ["none", "neighbor", "entropy"])
def test_prompts_are_kept_and_count_as_context(mask: bool, weight: str) -> None:
    ours, referee = WEIGHTS[weight]
    if weight == "neighbor":
        referee = neighbor(1, 2.0, cut=True)
    fixed, prompt = (False, True, False, False), (0, 1, 0, 0)
    chain = Chain(correlated_target(2, 4, seed=3), mask, referee, fixed=fixed)
    corrector = cwdfm.Corrector(2.0)
    law = exact_law(chain, np.linspace(0, 1, 6), corrector=corrector, prompt=prompt)
    solver = cwdfm.Euler(weight=ours, corrector=corrector)
    kept = torch.tensor(fixed)
    out = sample_chain(chain, solver, 5, prompt=torch.tensor(prompt), fixed=kept)
    assert bool((out.tokens[:, 1] == 1).all())
    assert int(out.updates[:, 1].max()) == 0
    assert_follows(histogram(out.tokens, 2), law)


def errors_by_doubling(chain: Chain, limit: np.ndarray, exact: bool, **options: Any) -> list[float]:
    """The L1 error of the law of 32, 64 and 128 steps."""
    grids = [np.linspace(0, 1, k + 1) for k in (32, 64, 128)]
    laws = [exact_law(chain, grid, exact=exact, **options) for grid in grids]
    return [float(np.abs(law - limit).sum()) for law in laws]


def test_infilling_converges_to_the_conditional_target() -> None:
    """As 1/K. Tokens are fixed where the prompt is not the mask id, 2."""
    target, prompt = correlated_target(2, 3, seed=3), (1, 2, 2)
    chain = Chain(target, True, neighbor(1, 1.0, cut=True), fixed=(True, False, False))
    conditional = np.zeros_like(target)
    conditional[1] = target[1] / target[1].sum()
    errors = errors_by_doubling(chain, conditional.flatten(), False, prompt=prompt)
    assert errors[-1] < 0.01
    assert_first_order(errors, 0.15)
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 1.0))
    counts = counts_of(chain, solver, 5, prompt=torch.tensor(prompt))
    assert_follows(counts, exact_law(chain, np.linspace(0, 1, 6), prompt=prompt))


@pytest.mark.parametrize(
    ("weight", "hazard"),
    [
        ("entropy", "integrated"),
        slow("entropy", "euler"),
        *(slow(weight, hazard) for weight in ("none", "neighbor") for hazard in HAZARDS),
    ],
)
def test_mask_source_converges_to_the_target_at_first_order(weight: str, hazard: str) -> None:
    """The law of K steps converges to the target as 1/K, for any weight.

    The law of the chain itself, a matrix exponential in integrated hazard, is the target.
    """
    chain = Chain(correlated_target(2, 3, seed=4), True, WEIGHTS[weight][1])
    target = chain.target.flatten()
    limit = chain.start() @ expm(40 * chain.generator(0.5))
    np.testing.assert_allclose(limit[[max(x) < 2 for x in chain.states]], target, atol=1e-5)
    errors = errors_by_doubling(chain, target, hazard == "integrated")
    assert errors[-1] > 1e-4
    assert_first_order(errors, 0.15)


@pytest.mark.parametrize("weight", ["neighbor", slow("none")])
def test_uniform_source_converges_to_its_chain_at_first_order(weight: str) -> None:
    """With the integrated hazard: as 1/K towards the chain's own law, a product of expm.

    Unweighted, that law is the target. With weights it is not: what counts as revealed is then
    guessed from the proposal, so alpha is no function of the state. The test pins that down.
    """
    chain = Chain(correlated_target(2, 4, seed=4), False, WEIGHTS[weight][1])
    target, limit = chain.target.flatten(), _continuous_law(chain)
    bias = np.abs(limit - target).sum()
    assert bias < 1e-4 if weight == "none" else bias > 3e-3
    law = target if weight == "none" else limit
    assert_first_order(errors_by_doubling(chain, law, exact=True), 0.2)


@both_sources
def test_corrector_converges_to_the_target(mask: bool) -> None:
    """With a corrector the target is still the limit, at first order."""
    chain = Chain(correlated_target(2, 3, seed=4), mask)
    errors = errors_by_doubling(chain, chain.target.flatten(), True, corrector=cwdfm.Corrector(2.0))
    assert errors[-1] < 0.02
    assert_first_order(errors, 0.2)


@pytest.mark.slow  # about the chain itself, without the solver
@pytest.mark.parametrize("weight", ["neighbor", "entropy"])
def test_corrector_with_a_mask_source_and_a_weight(weight: str) -> None:
    """A weight of the reveal mask keeps the target, because the mask is independent of the tokens.

    A weight of the prediction does not: re-masking a token keeps those that were revealed because
    of it. Without a corrector both keep the target (see above).
    """
    chain = Chain(correlated_target(2, 4, seed=4), True, WEIGHTS[weight][1])
    coarse, fine = (
        exact_law(chain, np.linspace(0, 1, k + 1), exact=True, corrector=cwdfm.Corrector(2.0))
        for k in (64, 128)
    )
    bias = np.abs(2 * fine - coarse - chain.target.flatten()).sum()  # the limit's, at first order
    assert bias < 1e-3 if weight == "neighbor" else bias > 3e-3


def test_uniform_source_with_euler_hazard_converges_more_slowly() -> None:
    """h lambda_t is too small near t = 1, which a uniform source does not compensate."""
    chain = Chain(correlated_target(2, 3, seed=4), False)
    euler = errors_by_doubling(chain, chain.target.flatten(), exact=False)
    integrated = errors_by_doubling(chain, chain.target.flatten(), exact=True)
    assert euler[2] > 2 * integrated[2]
    assert 1.3 < euler[1] / euler[2] < 1.7
    assert 1.7 < integrated[1] / integrated[2] < 2.1


def _continuous_law(chain: Chain, pieces: int = 150) -> np.ndarray:
    """expm over pieces of constant generator, uniform in integrated hazard, then one last step."""
    law, step = chain.start(), math.log(1e4) / pieces
    for k in range(pieces):
        law = law @ expm(step * chain.generator(1 - math.exp(-(k + 0.5) * step)))
    return chain.data_law(law @ chain.step_matrix(1 - 1e-4, math.inf))


@both_sources
def test_integrated_hazard_is_exact_for_factorized_targets(mask: bool) -> None:
    """alpha = 1 and independent coordinates: p_t holds at every time of every grid."""
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    chain = Chain(np.einsum("a,b->ab", p[0], p[1]), mask)
    source, model = source_of(chain), model_of(chain)
    for hazard in ("integrated", "euler"):
        solver = cwdfm.Euler(hazard=hazard)
        state = solver.init(source, torch.arange(N_SAMPLES), 2)
        for t, t_next in [(0.0, 0.5), (0.5, 0.6), (0.6, 0.8)]:
            state, _ = solver.step(model, source, SCHEDULE, state, t, t_next)
        kappa = 0.8**2
        noise = np.array([0, 0, 0, 1.0]) if mask else np.full(3, 1 / 3)
        for i in range(2):
            data = np.append(p[i], 0) if mask else p[i]
            counts = np.bincount(state.tokens[:, i].numpy(), minlength=len(data))
            law = kappa * data + (1 - kappa) * noise
            (assert_follows if hazard == "integrated" else assert_differs)(counts, law)


def test_one_step_is_the_paper_s_update_rule() -> None:
    """P(move) = 1 - exp(-alpha h lambda_t), checked for each coordinate of one state."""
    source, weight = cwdfm.MaskSource(4), cwdfm.Neighbor(1, 1.5)
    x = torch.tensor([[4, 0, 4, 4, 4, 4, 1, 4]])
    alpha = weight(x != 4)[0]
    t, h = 0.4, 0.2
    model = constant(torch.tensor([0.0, 1.0, 2.0, 3.0, 9.0]))
    solver = cwdfm.Euler(weight=weight)
    state = solver.init(source, torch.arange(N_SAMPLES), 8)
    state = replace(state, tokens=x.repeat(N_SAMPLES, 1))
    after, _ = solver.step(model, source, SCHEDULE, state, t, t + h)
    values = np.exp(np.arange(4.0)) / np.exp(np.arange(4.0)).sum()
    for i in range(8):
        counts = np.bincount(after.tokens[:, i].numpy(), minlength=5)
        if x[0, i] != 4:
            assert counts[x[0, i]] == N_SAMPLES  # carried over
        else:
            move = 1 - math.exp(-float(alpha[i]) * h * 2 * t / (1 - t**2))
            assert_follows(counts, np.append(move * values, 1 - move))


def test_corrector_keeps_the_marginals_of_the_path() -> None:
    """Many small steps with a strong corrector: kappa_t of the coordinates are revealed at t."""
    source = cwdfm.MaskSource(3)
    solver = cwdfm.Euler(corrector=cwdfm.Corrector(4.0, 0.5, 0.5), hazard="integrated")
    model = constant(torch.zeros(4))
    state = solver.init(source, torch.arange(4_000), 8)
    grid = np.linspace(0, 0.7, 150)
    for a, b in pairwise(grid):
        state, _ = solver.step(model, source, SCHEDULE, state, float(a), float(b))
    counts = np.bincount(source.revealed(state.tokens).sum(1).numpy(), minlength=9)
    assert_follows(counts, binomial(8, 0.49))
    assert float(state.updates.double().mean()) > 1.5  # it did correct


@both_hazards
def test_corrector_strength_is_that_at_the_start_of_the_step(hazard: str) -> None:
    """One long step, in which the strength would grow eightfold: number of jumps each way."""
    source, corrector, (t, t_next) = cwdfm.MaskSource(3), cwdfm.Corrector(4.0, 1.5, 0.0), (0.2, 0.8)
    solver = cwdfm.Euler(corrector=corrector, hazard=hazard)  # type: ignore[arg-type]
    state = solver.init(source, torch.arange(N_SAMPLES), 2)
    state = replace(state, tokens=torch.tensor([source.mask_id, 1]).repeat(N_SAMPLES, 1))
    flat = torch.zeros(N_SAMPLES, 2, 4)
    _, info = solver.step(lambda x, t: flat[: len(x)], source, SCHEDULE, state, t, t_next)
    rates = hazards(t, t_next, hazard == "integrated", corrector)
    moved = (info.forward[:, 0], info.backward[:, 1])
    for jumps, rate in zip(moved, rates, strict=True):
        stay = math.exp(-rate)
        assert_follows(np.bincount(jumps.numpy(), minlength=2), np.array([stay, 1 - stay]))


@pytest.mark.parametrize("a", [0.0, 0.25, 1.0])
def test_corrector_is_safe_at_both_ends(a: float) -> None:
    for source in (cwdfm.MaskSource(3), cwdfm.UniformSource(3)):
        for schedule in (cwdfm.Polynomial(2.0), cwdfm.Linear(), cwdfm.Cosine()):
            model = SmallModel(source.num_tokens)
            solver = cwdfm.Euler(corrector=cwdfm.Corrector(5.0, a, a))
            out = cwdfm.sample(model, source, schedule, solver, shape=(8, 6), steps=12)
            assert int(out.tokens.max()) < 3


@both_sources
def test_updates_and_loops_are_counted(mask: bool) -> None:
    """Compared with the states of a callback. Masks in between do not count as tokens."""
    chain = Chain(correlated_target(3, 4, seed=6), mask)
    seen = []
    solver = cwdfm.Euler(corrector=cwdfm.Corrector(3.0))
    out = sample_chain(chain, solver, 30, 200, callback=lambda state, _: seen.append(state.tokens))
    start = source_of(chain).noise(torch.arange(200), 4, seed=0)
    walk = torch.stack([start, *seen]).permute(1, 2, 0).reshape(-1, 31).tolist()
    updates, loops = [], []
    for tokens in walk:
        updates.append(sum(a != b for a, b in pairwise(tokens)))
        held: list[int] = []  # the data tokens it held, one after the other
        loop = 0
        for before, now in pairwise(tokens):
            if now != before:
                loop += bool(held) and now == held[-1]
                if before < 3:
                    held.append(before)
        loops.append(loop)
    assert out.updates.flatten().tolist() == updates
    assert out.loops.flatten().tolist() == loops
    assert sum(loops) > 0


def test_grids_and_callback() -> None:
    chain = Chain(correlated_target(2, 3, seed=5), mask=True)
    times: list[tuple[float, float]] = []
    grid = torch.tensor([0.0, 0.3, 0.35, 1.0], dtype=torch.float64)

    def note(state: cwdfm.State, info: cwdfm.Info) -> None:
        times.append((info.t, info.t_next))

    out = sample_chain(chain, cwdfm.Euler(), 3, grid=grid, callback=note)
    assert times == [(0.0, 0.3), (0.3, 0.35), (0.35, 1.0)]
    assert_follows(histogram(out.tokens, 2), exact_law(chain, grid.numpy()))


class Own(cwdfm.Neighbor):
    """A user-defined weight, which may synchronize with the device."""


@pytest.mark.parametrize(
    ("weight", "ours"),
    [
        (None, True),
        (cwdfm.Neighbor(1, 1.0) + cwdfm.Distance(1.0) + cwdfm.Neighbor(2, 1.0), True),
        (Own(1, 1.0), False),
        (Own(1, 1.0) + cwdfm.Neighbor(1, 1.0) + cwdfm.Distance(1.0), False),
        (cwdfm.Neighbor(1, 1.0) + (cwdfm.Distance(1.0) + Own(1, 1.0)), False),
    ],
    ids=["none", "ours", "own", "own-first", "own-last"],
)
def test_a_user_defined_weight_is_found_in_a_sum(
    weight: cwdfm.Weight | None, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only weights known not to synchronize are captured without a trial run."""
    known: list[bool] = []
    monkeypatch.setattr(euler, "replay_loop", lambda *_, **kw: known.append(kw["sync_free"]))
    solver, source = cwdfm.Euler(weight), cwdfm.MaskSource(3)
    state = solver.init(source, torch.arange(2), 4)
    solver.precompute_reveals(source, SCHEDULE, state, [0.0, 0.5, 1.0])
    assert known == [ours]
