"""Correctors, remasking, Gibbs steps and edits, compared with exact laws."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.solver.base import with_draws
from tests.support.cases import slow
from tests.support.chains import (
    SCHEDULE,
    Memory,
    counts_of,
    exact_law,
    hazards,
    law_of,
    masked_in,
    sample_chain,
)
from tests.support.edits import published_edits
from tests.support.exact import Array, Chain, State, correlated_target, entropy
from tests.support.stats import assert_differs, assert_follows

BETA = 2.0


def weighted_matrix(chain: Chain, t: float, t_next: float, scale: float) -> Array:
    """One step of the corrector with strengths exp(-beta H) of the leave-one-out posterior."""
    if t_next == 1:
        return chain.step_matrix(t**2, math.inf)
    p_SNV = np.array(
        [[chain.conditional(x, i, t**2) for i in range(chain.length)] for x in chain.states]
    )
    strength_SN = np.exp(entropy(BETA)(np.zeros(0, bool), p_SNV)) * scale * math.sqrt(t * (1 - t))
    forward, _ = hazards(t, t_next, exact=True, corrector=None)
    backward = 2 * math.log(t_next / t) if t > 0 else 0.0
    return chain.step_matrix(t**2, (1 + strength_SN) * forward, strength_SN * backward)


def weighted_law(chain: Chain, steps: int, scale: float) -> Array:
    law = chain.start()
    for t, t_next in pairwise(np.linspace(0, 1, steps + 1) ** 0.5):  # equally spaced in kappa
        law = law @ weighted_matrix(chain, t, t_next, scale)
    return chain.data_law(law)


def weighted_solver(scale: float) -> cwdfm.Euler:
    weight = cwdfm.Entropy(BETA)
    return cwdfm.Euler(hazard="integrated", corrector=cwdfm.Corrector(scale, weight=weight))


def test_weighted_corrector_follows_its_exact_law() -> None:
    """False-alarm rate 1e-6."""
    chain = Chain(correlated_target(3, 3, seed=1), mask=False)
    counts = counts_of(chain, weighted_solver(30.0), 5, grid="kappa")
    assert_follows(counts, weighted_law(chain, 5, 30.0))
    assert_differs(counts, weighted_law(chain, 5, 0.0))


def test_weighted_corrector_preserves_the_marginals() -> None:
    """Its rates add nothing to the flow of p_t: forward and backward jumps balance exactly."""
    chain, t, small = Chain(correlated_target(3, 3, seed=2), mask=False), 0.6, 1e-6
    p_S = chain.marginal(t**2)
    plain, weighted = (weighted_matrix(chain, t, t + small, scale) for scale in (0.0, 5.0))
    assert np.abs(p_S @ (weighted - plain)).max() < 1e-4 * small
    assert np.abs(p_S @ plain - p_S).max() > 0.02 * small  # the flow itself is not small


def test_weights_of_a_uniform_source_are_exact_in_the_corrector_alone() -> None:
    """The error of the corrector vanishes with the steps; that of a weighted chain does not."""
    chain = Chain(correlated_target(2, 3, seed=3), mask=False)
    biased = Chain(chain.target, mask=False, log_weight=entropy(BETA))

    def error(law: Array) -> float:
        return float(np.abs(law - chain.target.ravel()).sum() / 2)

    exact = [error(weighted_law(chain, steps, 2.0)) for steps in (64, 128, 256)]
    grids = [np.linspace(0, 1, steps + 1) ** 0.5 for steps in (64, 128, 256)]
    weighted = [error(exact_law(biased, grid, exact=True)) for grid in grids]
    assert np.allclose(np.log2(np.array(exact[:-1]) / exact[1:]), 1, atol=0.15)
    extrapolated = [2 * fine - coarse for coarse, fine in pairwise(exact)]
    bias = [2 * fine - coarse for coarse, fine in pairwise(weighted)]
    assert max(map(abs, extrapolated)) < 1e-3
    assert min(bias) > 5e-3


# Remasking


def looped(t: float) -> float:
    """The path waits at kappa = 0.5 between the times 0.4 and 0.8."""
    wait = math.sqrt(0.5)
    if t <= 0.4:
        return wait * t / 0.4
    return wait if t <= 0.8 else wait + (1 - wait) * (t - 0.8) / 0.2


def remask_law(chain: Chain, times: list[float], rule: str, eta: float, loop: bool) -> Array:
    """By enumeration over states with the probabilities at which their tokens were drawn."""

    def step(x: State, drawn: Memory, k: int) -> Iterator[tuple[State, Memory, float]]:
        t, t_next, drawn = times[k], times[k + 1], drawn or (0.0,) * chain.length
        kappa, after = t**2, t_next**2
        if loop:
            kappa, after = looped(t) ** 2, looped(t_next) ** 2
        largest = min(1.0, (1 - after) / kappa) if kappa > 0 else 0.0
        largest *= not loop or (t >= 0.4 and t_next <= 0.8)
        sigma = min(eta, largest) if rule == "cap" else eta * largest
        p_NV, masked = chain.posterior(x, kappa), masked_in(chain, x)
        total = sum(math.exp(-drawn[i]) for i in range(chain.length) if i not in masked)
        lost = 0.0 if rule == "confidence" else sigma
        reveal = 1.0 if t_next == 1 else (after - (1 - lost) * kappa) / (1 - kappa)
        branches: list[tuple[State, tuple[float, ...], float]] = [((), (), 1.0)]
        for i in range(chain.length):
            if i in masked:
                ways = [(v, p_NV[i, v], reveal * p_NV[i, v]) for v in range(chain.vocab)]
                ways.append((chain.vocab, 0.0, 1 - reveal))
            else:
                share = math.exp(-drawn[i]) / total if rule == "confidence" else 1.0
                away = sigma * share if t_next < 1 else 0.0
                ways = [(x[i], drawn[i], 1 - away), (chain.vocab, 0.0, away)]
            branches = [
                ((*y, v), (*d, round(q, 12)), c * w)
                for y, d, c in branches
                for v, q, w in ways
                if w > 0
            ]
        yield from branches

    return law_of(chain, len(times) - 1, step)


@pytest.mark.parametrize(
    ("rule", "eta", "loop"),
    [
        slow("cap", 0.2, None),
        ("rescale", 0.5, None),
        ("confidence", 0.9, None),
        ("cap", 0.6, (0.4, 0.8, 0.5)),
    ],
)
def test_remasking_follows_its_exact_law(
    rule: Literal["cap", "rescale", "confidence"], eta: float, loop: tuple[float, ...] | None
) -> None:
    """False-alarm rate 1e-6."""
    chain = Chain(correlated_target(2, 3, seed=1), mask=True)
    remask = cwdfm.Remask(rule, eta, loop)  # type: ignore[arg-type]
    solver = cwdfm.Euler(hazard="integrated", corrector=remask)
    counts = counts_of(chain, solver, 5, n=120_000)
    times = np.linspace(0, 1, 6).tolist()
    assert_follows(counts, remask_law(chain, times, rule, eta, loop is not None))
    if rule != "confidence":  # a single token is lost too rarely to show
        assert_differs(counts, remask_law(chain, times, rule, 0.0, loop is not None))


def test_remasking_keeps_the_revealed_fraction_and_waits_in_its_loop() -> None:
    source, waits = cwdfm.MaskSource(4), []
    loop = cwdfm.Remask("rescale", 0.5, loop=(0.3, 0.7, 0.5))
    for remask in (cwdfm.Remask("cap", 0.1), cwdfm.Remask("rescale", 1.0), loop):
        shown: list[float] = []
        cwdfm.sample(
            lambda x, t: torch.zeros(*x.shape, 5),
            source,
            SCHEDULE,
            cwdfm.Euler(hazard="integrated", corrector=remask),
            shape=(400, 64),
            steps=10,
            callback=lambda state, info: shown.append(  # noqa: B023 (called at once)
                float((state.tokens < 4).double().mean())
            ),
        )
        waits.append(shown)
    for shown in waits[:2]:  # 25,600 coordinates: the standard deviation is below 0.0032
        assert np.allclose(shown, [(k / 10) ** 2 for k in range(1, 11)], atol=0.02)
    assert np.allclose(waits[2][2:7], 0.5, atol=0.02)
    assert waits[2][-1] == 1


# Gibbs


def gibbs_matrix(chain: Chain, kappa: float, select: str = "random") -> Array:
    """One coordinate, random or the least likely, is drawn from p_t given the others."""
    p_S = dict(zip(chain.states, chain.marginal(kappa), strict=True))
    matrix = np.zeros((len(p_S),) * 2)
    for s, x in enumerate(chain.states):
        sites = [i for i in range(chain.length) if x[i] < chain.vocab]
        if select == "unlikely":
            sites = [min(sites, key=lambda i: chain.conditional(x, i, kappa)[x[i]])]
        for i in sites:
            others = [(*x[:i], v, *x[i + 1 :]) for v in range(chain.vocab)]
            chance = np.array([p_S[y] for y in others])
            for y, c in zip(others, chance / chance.sum(), strict=True):
                matrix[s, chain.states.index(y)] += c / len(sites)
        if not sites:
            matrix[s, s] = 1.0
    return matrix


@pytest.mark.parametrize(
    ("mask", "select"), [(True, "random"), (False, "random"), (False, "unlikely")]
)
def test_gibbs_follows_its_exact_law_and_leaves_the_marginals(
    mask: bool, select: Literal["random", "unlikely"]
) -> None:
    """False-alarm rate 1e-6."""
    chain, times = Chain(correlated_target(2, 3, seed=4), mask), [0.0, 0.6, 0.8, 0.9, 0.95, 1.0]
    law = chain.start()
    for t, t_next in pairwise(times):
        law = law @ chain.step_matrix(t**2, *hazards(t, t_next, True, None))
        if t_next < 1:
            law = law @ gibbs_matrix(chain, t_next**2, select)
    solver = cwdfm.Gibbs(cwdfm.Euler(hazard="integrated"), select=select)
    grid = torch.tensor(times, dtype=torch.float64)
    counts = counts_of(chain, solver, 5, n=60_000, grid=grid)
    assert_follows(counts, chain.data_law(law))
    assert_differs(counts, exact_law(chain, np.array(times), exact=True))
    p_S = chain.marginal(0.4)
    unchanged = np.allclose(p_S @ gibbs_matrix(chain, 0.4, select), p_S)
    assert unchanged == (select == "random")


def test_unlikely_tokens_are_drawn_first() -> None:
    """Of two tokens, the one that does not fit the others is drawn again."""
    source, target = cwdfm.UniformSource(8), torch.full((8, 8, 8), 1e-9)
    for v in range(8):
        target[v, v, v] = 1.0
    model = cwdfm.ExactPosterior(target, source, SCHEDULE)
    solver = cwdfm.Gibbs(cwdfm.Euler(), select="unlikely")
    state = solver.init(source, torch.arange(200), 3)
    broken = torch.tensor([[1, 1, 5]]).expand(200, -1)
    state = cwdfm.State(**{**vars(state), "tokens": broken})
    after, info = solver.step(model, source, SCHEDULE, state, 0.9, 0.9001)
    assert int((after.tokens[:, :2] != 1).sum()) <= 6  # only Euler's jumps, at a hazard of 0.001
    assert float((after.tokens[:, 2] == 1).double().mean()) > 0.7
    assert bool((info.evaluated >= 1).all())


def test_draws_of_the_solver_inside() -> None:
    solver = with_draws(cwdfm.Gibbs(cwdfm.Euler()), temperature=0.5, top_p=None)
    assert solver == cwdfm.Gibbs(cwdfm.Euler(temperature=0.5))
    for other in (cwdfm.Euler, cwdfm.Entropy(1.0), 0.7):
        with pytest.raises(cwdfm.InputError, match="has no temperature"):
            with_draws(other, temperature=0.5)


# Edits


@pytest.mark.parametrize(
    ("threshold", "edit_threshold", "post_steps"),
    [(0.3, 0.0, 16), (0.3, 0.35, 16), (0.5, 0.4, 3), (0.5, 0.3, 0), (1e-9, 0.2, 2), (1.0, 1.0, 5)],
)
@pytest.mark.parametrize("steps", [12, slow(40)])
def test_edits_are_those_of_the_published_algorithm(
    threshold: float, edit_threshold: float, post_steps: int, steps: int
) -> None:
    """Each model is one sequence of the batch; the grid has enough steps to reveal everything."""
    batch, length, vocab = 24, 12, 7
    random = np.random.default_rng(0)
    tables = random.normal(size=(batch, 3, vocab + 1, vocab))
    places = random.normal(size=(batch, length, vocab))

    def logits(k: int, x: Any) -> Any:
        """Depends on the token, on its neighbors and on the position."""
        near = [np.roll(x, shift) for shift in (0, 1, -1)]
        return sum(tables[k, i, near[i]] for i in range(3)) + places[k]

    def model(x_BN: Tensor, t_B: Tensor) -> Tensor:
        found = np.stack([logits(k, x) for k, x in enumerate(x_BN.numpy())])
        return torch.nn.functional.pad(torch.from_numpy(found), (0, 1))

    inner = cwdfm.Threshold(threshold, temperature=0.0)
    solver = cwdfm.Edit(inner, edit_threshold, post_steps)
    source, shape = cwdfm.MaskSource(vocab), (batch, length)
    out = cwdfm.sample(model, source, SCHEDULE, solver, shape=shape, steps=steps)
    options = (np.full(length, vocab), vocab, (threshold, edit_threshold), post_steps)
    found = [published_edits(partial(logits, k), *options) for k in range(batch)]
    assert out.tokens.tolist() == [tokens.tolist() for tokens, _ in found]
    assert out.evaluations.tolist() == [count for _, count in found]
    plain = cwdfm.sample(model, source, SCHEDULE, inner, shape=shape, steps=steps)
    assert torch.equal(plain.tokens, out.tokens) == (edit_threshold == 1.0)


def test_edits_with_any_solver_of_a_mask_source() -> None:
    """The result is stable under the model: no other token reaches the threshold."""
    source, vocab = cwdfm.MaskSource(5), 5
    table = torch.randn(6, 5, generator=torch.manual_seed(1), dtype=torch.float64)
    table[:5].fill_diagonal_(1.5)  # so that edits end

    def model(x: Tensor, t: Tensor) -> Tensor:
        return torch.nn.functional.pad(table[x] + table[x.roll(1, 1)] * 0.8, (0, 1))

    for solver in (
        cwdfm.Euler(),
        cwdfm.FirstHitting(),
        cwdfm.KLASS(0.5),
        cwdfm.Gibbs(cwdfm.Euler()),
        cwdfm.ThetaTrapezoidal(),
        cwdfm.Euler(hazard="integrated", corrector=cwdfm.Remask("cap", 0.2)),
    ):
        edit = cwdfm.Edit(solver, 0.5, 200)
        out = cwdfm.sample(model, source, SCHEDULE, edit, shape=(50, 9), steps=9)
        p_BNV = model(out.tokens, torch.ones(50))[..., :vocab].softmax(-1)
        others_BNV = p_BNV.scatter(-1, out.tokens[..., None], 0.0)
        assert float(others_BNV.max()) < 0.5, solver
        plain = cwdfm.sample(model, source, SCHEDULE, solver, shape=(50, 9), steps=9)
        assert bool((out.evaluations > plain.evaluations).all())
        assert not torch.equal(out.tokens, plain.tokens)


def test_combinations_that_do_not_make_sense() -> None:
    remask, weight = cwdfm.Remask(), cwdfm.Entropy(1.0)
    weighted = cwdfm.Corrector(weight=weight)
    for make, reason in (
        (lambda: cwdfm.Euler(corrector=remask), "hazard='integrated'"),
        (lambda: cwdfm.Euler(weight, corrector=weighted), "omit"),
        (lambda: cwdfm.Corrector(weight=cwdfm.Neighbor()), "weight"),  # type: ignore[arg-type]
        (lambda: cwdfm.Remask("loop"), "rule"),  # type: ignore[arg-type]
        (lambda: cwdfm.Remask(loop=(0.5, 0.2, 0.9)), "first < last"),
        (lambda: cwdfm.Remask(eta=2.0), "eta"),
        (lambda: cwdfm.Edit(cwdfm.Threshold(), 1.5), "edit_threshold.*1.5"),
        (lambda: cwdfm.Edit(cwdfm.Threshold(), 0.5, -1), "post_steps.*-1"),
        (lambda: cwdfm.Edit(cwdfm.Edit(cwdfm.Threshold())), "must not edit"),
        (lambda: cwdfm.Edit(0.7), "Solver"),  # type: ignore[arg-type]
    ):
        with pytest.raises(cwdfm.InputError, match=reason):
            make()
    target = correlated_target(2, 3, seed=1)
    for mask, solver, reason in (
        (False, cwdfm.Euler(corrector=remask, hazard="integrated"), "use Corrector"),
        (True, cwdfm.Euler(corrector=weighted), "uniform source"),
        (True, cwdfm.Gibbs(cwdfm.Euler(), select="unlikely"), "PathPlanning"),
        (False, cwdfm.Edit(cwdfm.EntropyBound(0.1)), "use a MaskSource"),
    ):
        with pytest.raises(cwdfm.InputError, match=reason):
            sample_chain(Chain(target, mask), solver, 3, n=4)
