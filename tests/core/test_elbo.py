"""The likelihood bound: against quadrature of the formula, and against exact likelihoods."""

import importlib
import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.linalg import expm
from torch import Tensor

import cwdfm
from cwdfm.likelihood.bound import stratified_variance, stratum_offsets
from cwdfm.likelihood.elbo import KAPPA_END, _integral
from tests.core.test_theorem1 import PositionalBias
from tests.support.exact import Chain, correlated_target
from tests.support.stats import assert_follows

SCHEDULE = cwdfm.Polynomial(2.0)


def flawed(model: cwdfm.ExactPosterior) -> cwdfm.Model:
    """A model that is wrong on purpose: tempered posteriors mixed with a preference for token 0."""

    def logits(x_t: Tensor, t: Tensor) -> Tensor:
        z = 0.6 * model(x_t, t).clamp(min=-20)
        z[..., 0] += 0.4
        return z

    return logits


def predictions(
    model: cwdfm.Model, chain: Chain, x: Sequence[tuple[int, ...]], kappa: float
) -> np.ndarray:
    """Of all states at once, [S, N, V]."""
    t = torch.full((len(x),), math.sqrt(kappa), dtype=torch.float64)
    return model(torch.tensor(x), t)[..., : chain.vocab].double().softmax(-1).numpy()


def bound_by_quadrature(
    model: cwdfm.Model, chain: Chain, x_1: tuple[int, ...], end: float = KAPPA_END
) -> float:
    """The bound's formula, with all x_t enumerated and the integral over kappa by quadrature."""
    n, vocab = chain.length, chain.vocab

    def states(kappa: float) -> tuple[list[tuple[int, ...]], list[float]]:
        options = []
        for token in x_1:
            noise = {vocab: 1.0} if chain.mask else dict.fromkeys(range(vocab), 1 / vocab)
            law = {v: (1 - kappa) * p for v, p in noise.items()}
            law[token] = law.get(token, 0.0) + kappa
            options.append(law.items())
        every = list(product(*options))
        return (
            [tuple(v for v, _ in combo) for combo in every],
            [math.prod(p for _, p in combo) for combo in every],
        )

    def integrand(kappa: float) -> float:
        total = 0.0
        xs, chances = states(kappa)
        for x, chance, p in zip(xs, chances, predictions(model, chain, xs, kappa), strict=True):
            for i in range(n):
                if x[i] == x_1[i]:
                    total += 0.0 if chain.mask else chance * (1 - p[i, x[i]])
                else:
                    stay = 0.0 if chain.mask else p[i, x[i]]
                    total += chance * (-math.log(p[i, x_1[i]]) - stay)
        return total / (1 - kappa)

    area, _ = integrate.quad(integrand, 0, end, limit=200, epsabs=1e-5)
    last = 0.0
    xs, chances = states(end)
    for x, chance, p in zip(xs, chances, predictions(model, chain, xs, end), strict=True):
        for i in range(n):
            if not (chain.mask and x[i] == x_1[i]):
                last -= chance * math.log(p[i, x_1[i]])
    return float(area + last)


@pytest.mark.parametrize("mask", [True, False], ids=["mask", "uniform"])
@pytest.mark.parametrize("exact", [True, False], ids=["true posterior", "flawed model"])
def test_estimate_against_quadrature(mask: bool, exact: bool) -> None:
    """Within 5 standard errors: a false alarm in 2 million."""
    chain = Chain(correlated_target(3, 2, seed=0), mask)
    source = (cwdfm.MaskSource if mask else cwdfm.UniformSource)(3)
    posterior = cwdfm.ExactPosterior(torch.from_numpy(chain.target), source, SCHEDULE)
    model = posterior if exact else flawed(posterior)
    x_1 = (0, 2)
    truth = bound_by_quadrature(model, chain, x_1)
    bound = cwdfm.elbo(
        model, source, SCHEDULE, torch.tensor([x_1]).repeat(2_000, 1), draws=32, batch_size=2_000
    )
    assert bound.nats_per_token * 2 == pytest.approx(truth, abs=10 * bound.standard_error)
    assert bound.standard_error * 2 < 0.01 * truth
    assert bound.perplexity == pytest.approx(math.exp(bound.nats_per_token))


def test_tight_for_the_true_posterior_of_a_mask_source() -> None:
    chain = Chain(correlated_target(2, 3, seed=1), mask=True)
    model = cwdfm.ExactPosterior(torch.from_numpy(chain.target), cwdfm.MaskSource(2), SCHEDULE)
    for x_1 in product(range(2), repeat=3):
        # up to the factorised last draw, which costs O((1 - KAPPA_END)^2)
        truth = -math.log(chain.target[x_1])
        assert bound_by_quadrature(model, chain, x_1) == pytest.approx(truth, abs=1e-4)
    everything = model.states_SN.repeat(500, 1)
    bound = cwdfm.elbo(model, cwdfm.MaskSource(2), SCHEDULE, everything, batch_size=4_000)
    truth = -np.log(chain.target).mean() / 3
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)
    assert bound.standard_error < 0.01 * truth


def test_a_flawed_model_pays_more_than_its_own_likelihood() -> None:
    """Below the exact log-likelihood of the model itself, which is what its chain generates."""
    base = Chain(correlated_target(2, 3, seed=2), mask=True)
    posterior = cwdfm.ExactPosterior(torch.from_numpy(base.target), cwdfm.MaskSource(2), SCHEDULE)
    model = flawed(posterior)

    class Flawed(Chain):
        def posterior(self, x: tuple[int, ...], kappa: float) -> np.ndarray:
            return np.asarray(predictions(model, self, [x], kappa)[0])

    chain = Flawed(base.target, mask=True)
    # This model does not see the time, so the chain's law up to KAPPA_END is one exponential.
    hazard = -math.log(1 - KAPPA_END)
    before = chain.start() @ expm(hazard * chain.generator(0.5))
    law = chain.data_law(before @ chain.step_matrix(0.5, math.inf))
    gaps = []
    for s, x_1 in enumerate(product(range(2), repeat=3)):
        bound = bound_by_quadrature(model, chain, x_1)
        assert bound > -math.log(law[s]) - 1e-5
        gaps.append(bound + math.log(law[s]))
    assert max(gaps) > 5e-3  # strictly below somewhere


def test_uniform_source_is_below_and_not_tight() -> None:
    """Even the true posterior's bound is loose with a uniform source: the conditional path jumps
    once a coordinate, the marginal chain may jump more often, and a path's law is not its own.
    """
    chain = Chain(correlated_target(3, 2, seed=0), mask=False)
    model = cwdfm.ExactPosterior(torch.from_numpy(chain.target), cwdfm.UniformSource(3), SCHEDULE)
    gaps = [
        bound_by_quadrature(model, chain, x_1) + math.log(chain.target[x_1])
        for x_1 in ((0, 0), (0, 2), (2, 1))
    ]
    assert min(gaps) > 0.1


def test_the_last_draw_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping at kappa = 0.7 moves a good part of the bound into the last step's cross-entropy."""
    monkeypatch.setattr(importlib.import_module("cwdfm.likelihood.elbo"), "KAPPA_END", 0.7)
    for mask in (True, False):
        chain = Chain(correlated_target(3, 2, seed=0), mask)
        source = (cwdfm.MaskSource if mask else cwdfm.UniformSource)(3)
        posterior = cwdfm.ExactPosterior(torch.from_numpy(chain.target), source, SCHEDULE)
        model, x_1 = flawed(posterior), (0, 2)
        truth = bound_by_quadrature(model, chain, x_1, end=0.7)
        copies = torch.tensor([x_1]).repeat(4_000, 1)
        bound = cwdfm.elbo(model, source, SCHEDULE, copies, draws=16, batch_size=4_000)
        assert bound.nats_per_token * 2 == pytest.approx(truth, abs=10 * bound.standard_error)
        assert bound.standard_error * 2 < 0.02 * truth


def test_weighted_bound_of_a_flawed_model() -> None:
    """Path and rates both carry alpha, or the sum comes out wrong.

    A model that sees no context, with another cross-entropy at each position, under a weight that
    prefers the left. Every coordinate jumps exactly once whatever its alpha, so the truth is the
    plain sum. Without alpha in the integrand the estimate is off by more than 100 standard errors,
    with the unweighted path by more than 50.
    """
    source = cwdfm.MaskSource(3)
    table = torch.zeros(4, 4, dtype=torch.float64)
    table[:, 0] = torch.tensor([0.0, 1.0, 2.0, 4.0])

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        return table.expand(len(x_t), 4, 4)

    x_1 = torch.ones(2_000, 4, dtype=torch.int64)
    truth = float(-table[:, :3].log_softmax(-1)[:, 1].mean())
    bound = cwdfm.elbo(
        model, source, SCHEDULE, x_1, weight=PositionalBias(1.5), batch_size=2_000, draws=16
    )
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)
    plain = cwdfm.elbo(model, source, SCHEDULE, x_1, batch_size=2_000, draws=16)
    assert plain.nats_per_token == pytest.approx(truth, abs=5 * plain.standard_error)
    # the control: the weighted path without alpha, by the same estimator's parts
    path = cwdfm.ContextPath(source, SCHEDULE, PositionalBias(1.5))
    late = path.sample(x_1, torch.full((2_000,), 0.7))
    alpha, ce = PositionalBias(1.5)(late.revealed), -table[:, :3].log_softmax(-1)[:, 1]
    weighted, bare = (alpha * ce).sum(1).mean(), (~late.revealed * ce).sum(1).mean()
    assert abs(float(weighted - bare)) > 0.2 * float(bare)


@pytest.mark.parametrize("weight", [cwdfm.Neighbor(1, 2.0), cwdfm.Distance(1.0, 2)], ids=str)
def test_weighted_bound_is_tight_too(weight: cwdfm.Weight) -> None:
    """The fourth proposition at work: with weighted path and rates, the true posterior of a mask
    source still attains the exact likelihood, since any reveal order does.
    """
    target = correlated_target(2, 4, seed=3)
    source = cwdfm.MaskSource(2)
    model = cwdfm.ExactPosterior(torch.from_numpy(target), source, SCHEDULE)
    x_1 = model.states_SN.repeat(250, 1)
    bound = cwdfm.elbo(model, source, SCHEDULE, x_1, weight=weight, batch_size=4_000)
    truth = -np.log(target).mean() / 4
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)
    assert bound.standard_error < 0.015 * truth


def test_fixed_tokens_give_the_conditional_likelihood() -> None:
    target = correlated_target(2, 3, seed=4)
    source = cwdfm.MaskSource(2)
    model = cwdfm.ExactPosterior(torch.from_numpy(target), source, SCHEDULE)
    x_1 = torch.tensor([[1, 0, 1]]).repeat(4_000, 1)
    fixed = torch.tensor([True, False, False]).expand_as(x_1)
    bound = cwdfm.elbo(model, source, SCHEDULE, x_1, fixed=fixed, batch_size=4_000)
    truth = -math.log(target[1, 0, 1] / target[1].sum()) / 2
    assert bound.tokens == 8_000
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)


def test_independent_of_batch_size_and_of_the_part_evaluated() -> None:
    source = cwdfm.UniformSource(3)
    model = cwdfm.ExactPosterior(
        torch.from_numpy(correlated_target(3, 3, seed=5)), source, SCHEDULE
    )
    x_1 = model.states_SN
    whole = cwdfm.elbo(model, source, SCHEDULE, x_1, draws=4)
    small = cwdfm.elbo(model, source, SCHEDULE, x_1, draws=4, batch_size=5)
    torch.testing.assert_close(whole.nats_B, small.nats_B)
    part = cwdfm.elbo(model, source, SCHEDULE, x_1[10:], draws=4, index=torch.arange(10, 27))
    torch.testing.assert_close(part.nats_B, whole.nats_B[10:])


@pytest.mark.parametrize("first", [0, 10**5, 2**30])
def test_sequences_in_a_row_share_a_stratum_evenly(first: int) -> None:
    """Wherever in a data set they stand: no two of a thousand are farther apart than 3 / 1000."""
    place = stratum_offsets(0, 3, torch.arange(first, first + 1000))
    assert place.dtype == torch.float64
    around = place.sort().values
    assert float(torch.cat([around.diff(), around[:1] + 1 - around[-1:]]).max()) < 3e-3
    assert float(around.diff().min()) > 1e-4


def test_every_stratum_offsets_a_sequence_anew() -> None:
    """Those of a stratum and of the next are uniform and independent, in 5 x 5 cells."""
    one = torch.zeros(1, dtype=torch.int64)
    cell = (torch.cat([stratum_offsets(0, d, one) for d in range(4_000)]) * 5).long()
    counts = (cell[::2] * 5 + cell[1::2]).bincount(minlength=25)
    assert_follows(counts.numpy(), np.full(25, 1 / 25))


def test_one_sequence_is_unbiased_over_seeds() -> None:
    """Its times, too, are a seed's own. Tokens predicted apart, so that the bound is tight.

    The mean of 150 seeds lies within 5 of its standard errors: a false alarm in 6e-7 of them.
    """
    length, source = 48, cwdfm.MaskSource(4)
    table = torch.randn(length, 5, generator=torch.manual_seed(1), dtype=torch.float64)
    x_1 = torch.randint(4, (1, length), generator=torch.manual_seed(2))

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        return table.expand(len(x_t), length, 5)

    truth = -table[:, :4].log_softmax(-1).gather(1, x_1.T).mean()
    found = [
        cwdfm.elbo(model, source, SCHEDULE, x_1, seed=s, draws=2).nats_per_token for s in range(150)
    ]
    assert abs(np.mean(found) - float(truth)) < 5 * np.std(found, ddof=1) / math.sqrt(150)


def test_standard_error_covers() -> None:
    """Over 200 seeds the truth lies within 2 standard errors in at least 90%.

    At a true coverage of 95.4%, fewer would have probability 1e-3.
    """
    chain = Chain(correlated_target(2, 2, seed=6), mask=True)
    source = cwdfm.MaskSource(2)
    model = cwdfm.ExactPosterior(torch.from_numpy(chain.target), source, SCHEDULE)
    x_1 = model.states_SN.repeat(25, 1)
    truth = float(-np.log(chain.target).mean() / 2)
    bounds = [cwdfm.elbo(model, source, SCHEDULE, x_1, seed=s, draws=8) for s in range(200)]
    off = np.array([b.nats_per_token - truth for b in bounds])
    errors = np.array([b.standard_error for b in bounds])
    assert np.mean(np.abs(off) < 2 * errors) >= 0.9
    # and it is no larger than it needs to be
    assert 0.8 < errors.mean() / np.sqrt((off**2).mean()) < 1.5


@pytest.mark.parametrize("draws", [4, 16])
def test_standard_error_credits_the_strata(draws: int) -> None:
    """Over 60 seeds the mean reported variance is 0.6 to 1.8 times that of the bounds.

    Tokens predicted apart, so that the integrand is a line in v plus noise; sequences are long
    enough for the line to be most of the spread between strata. The variance of 60 bounds has a
    relative standard deviation of 18%, and the true ratio is 1.3 with 4 draws and 1.1 with 16: one
    choice of seeds in 25 would fail, so they are fixed.
    """
    length, source = 32, cwdfm.MaskSource(4)
    generator = torch.manual_seed(0)
    table = torch.randn(length, 5, generator=generator, dtype=torch.float64)

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        return table.expand(len(x_t), length, 5)

    x_1 = torch.randint(4, (24, length), generator=generator)
    bounds = [cwdfm.elbo(model, source, SCHEDULE, x_1, seed=s, draws=draws) for s in range(60)]
    real = np.var([b.nats_per_token for b in bounds], ddof=1)
    assert 0.6 < np.mean([b.standard_error**2 for b in bounds]) / real < 1.8
    # the control: draws taken for independent ones
    path = cwdfm.MixturePath(source, SCHEDULE)
    index, fixed = torch.arange(24), torch.zeros_like(x_1, dtype=torch.bool)
    parts = [
        _integral(model, path, x_1, fixed, index, seed=s, draws=draws).var(0) / draws
        for s in range(10)
    ]
    assert float(torch.stack(parts).sum(1).mean()) / x_1.numel() ** 2 > 2 * real


def test_standard_error_counts_the_last_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """With most of the bound in the last draw, whose noise is none of the integral's.

    20,000 times the same sequence, so that the spread of the estimates is the error of each. It is
    known to 1%, the standard deviation of a variance of so many: within 10% in all but 1e-6 of
    seeds. Counting one draw for two would give a ratio of 1.8, noise that is shared one of 0.6.
    """
    monkeypatch.setattr(importlib.import_module("cwdfm.likelihood.elbo"), "KAPPA_END", 0.5)
    source, x_1 = cwdfm.MaskSource(3), torch.tensor([[0, 1, 2, 1]]).expand(20_000, 4)

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0, 0.5, 0.0]).expand(*x_t.shape, 4)

    bound = cwdfm.elbo(model, source, SCHEDULE, x_1, draws=4, batch_size=20_000)
    spread = float(bound.nats_B.var()) / len(x_1)
    assert (bound.standard_error * bound.tokens / len(x_1)) ** 2 == pytest.approx(spread, rel=0.1)


def test_stratified_variance_leaves_a_line_out() -> None:
    """Noise of variance 1 on a steep line: unbiased to 3%, 4 standard errors of 20,000 draws."""
    noise = torch.randn(5, 20_000, generator=torch.manual_seed(0), dtype=torch.float64)
    line = 100 * torch.arange(5.0, dtype=torch.float64)[:, None]
    assert float(stratified_variance(noise + line).mean()) == pytest.approx(1 / 5, rel=0.03)
    two = torch.tensor([[1.0], [4.0]])
    assert float(stratified_variance(two)) == pytest.approx(float(two.var()) / 2)
