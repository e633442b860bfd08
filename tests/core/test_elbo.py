"""The likelihood bound of flows, against quadrature and exact likelihoods."""

import importlib
import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.linalg import expm
from torch import Tensor

import cwdfm
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.gidd import GIDD
from cwdfm.baselines.sedd import SEDD
from cwdfm.likelihood.bound import BoundBatch, stratified_variance, stratum_offsets
from cwdfm.likelihood.elbo import KAPPA_END, flow_terms
from cwdfm.method import Flow, Method
from tests.support.blocks import network as block_network
from tests.support.cases import slow
from tests.support.chains import SCHEDULE, model_of, source_of
from tests.support.exact import Chain, correlated_target
from tests.support.models import SmallModel, SmallSplitModel, constant
from tests.support.stats import assert_follows
from tests.support.weights import PositionalBias

MASK = cwdfm.MaskSource(3)
BOUNDS: list[Method] = [Flow(MASK, SCHEDULE), SEDD(3, "absorb"), SEDD(3, "uniform")]


def flawed(model: cwdfm.ExactPosterior) -> cwdfm.Model:
    """An inexact model: tempered posteriors with a preference for token 0."""

    def logits(x_t: Tensor, t: Tensor) -> Tensor:
        z = 0.6 * model(x_t, t).clamp(min=-20)
        z[..., 0] += 0.4
        return z

    return logits


def predictions(
    model: cwdfm.Model, chain: Chain, x: Sequence[tuple[int, ...]], kappa: float
) -> np.ndarray:
    """Predicted probabilities of all states, [S, N, V]."""
    t = torch.full((len(x),), math.sqrt(kappa), dtype=torch.float64)
    return model(torch.tensor(x), t)[..., : chain.vocab].double().softmax(-1).numpy()


def bound_by_quadrature(
    model: cwdfm.Model, chain: Chain, x_1: tuple[int, ...], end: float = KAPPA_END
) -> float:
    """The formula of the bound, with all x_t enumerated and the integral by quadrature."""
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


def assert_estimates(bound: cwdfm.Bound, truth: float, most: float = 0.02) -> None:
    """Nats per token within 5 standard errors, which is a false alarm in 2 million.

    most: bounds the standard error relative to the truth.
    """
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)
    assert bound.standard_error < most * truth


@pytest.mark.parametrize("mask", [True, False], ids=["mask", "uniform"])
@pytest.mark.parametrize("exact", [True, False], ids=["true posterior", "flawed model"])
def test_estimate_against_quadrature(mask: bool, exact: bool) -> None:
    chain = Chain(correlated_target(3, 2, seed=0), mask)
    source = source_of(chain)
    model = model_of(chain) if exact else flawed(model_of(chain))
    x_1 = (0, 2)
    truth = bound_by_quadrature(model, chain, x_1)
    bound = cwdfm.elbo(
        model, source, SCHEDULE, torch.tensor([x_1]).repeat(2_000, 1), draws=32, batch_size=2_000
    )
    assert_estimates(bound, truth / 2, most=0.01)
    assert bound.perplexity == pytest.approx(math.exp(bound.nats_per_token))


def test_tight_for_the_true_posterior_of_a_mask_source() -> None:
    chain = Chain(correlated_target(2, 3, seed=1), mask=True)
    model = model_of(chain)
    for x_1 in product(range(2), repeat=3):
        # up to the factorized last step, which costs O((1 - KAPPA_END)^2)
        truth = -math.log(chain.target[x_1])
        assert bound_by_quadrature(model, chain, x_1) == pytest.approx(truth, abs=1e-4)
    everything = model.states_SN.repeat(500, 1)
    bound = cwdfm.elbo(model, cwdfm.MaskSource(2), SCHEDULE, everything, batch_size=4_000)
    truth = -np.log(chain.target).mean() / 3
    assert_estimates(bound, truth, most=0.01)


def test_bound_of_an_inexact_model_exceeds_its_negative_log_likelihood() -> None:
    """The exact likelihood is that of the distribution that the model's chain generates."""
    base = Chain(correlated_target(2, 3, seed=2), mask=True)
    model = flawed(model_of(base))

    class Flawed(Chain):
        def posterior(self, x: tuple[int, ...], kappa: float) -> np.ndarray:
            return np.asarray(predictions(model, self, [x], kappa)[0])

    chain = Flawed(base.target, mask=True)
    # The model does not depend on time, so one matrix exponential reaches KAPPA_END.
    hazard = -math.log(1 - KAPPA_END)
    before = chain.start() @ expm(hazard * chain.generator(0.5))
    law = chain.data_law(before @ chain.step_matrix(0.5, math.inf))
    gaps = []
    for s, x_1 in enumerate(product(range(2), repeat=3)):
        bound = bound_by_quadrature(model, chain, x_1)
        assert bound > -math.log(law[s]) - 1e-5
        gaps.append(bound + math.log(law[s]))
    assert max(gaps) > 5e-3  # not tight everywhere


def test_bound_of_a_uniform_source_is_not_tight() -> None:
    """Even the true posterior has a loose bound with a uniform source.

    The conditional path jumps once per position, and the marginal chain may jump more often.
    """
    chain = Chain(correlated_target(3, 2, seed=0), mask=False)
    model = model_of(chain)
    gaps = [
        bound_by_quadrature(model, chain, x_1) + math.log(chain.target[x_1])
        for x_1 in ((0, 0), (0, 2), (2, 1))
    ]
    assert min(gaps) > 0.1


def test_bound_includes_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping at kappa = 0.7 moves much of the bound into the cross-entropy of the last step."""
    monkeypatch.setattr(importlib.import_module("cwdfm.likelihood.elbo"), "KAPPA_END", 0.7)
    for mask in (True, False):
        chain = Chain(correlated_target(3, 2, seed=0), mask)
        source, model, x_1 = source_of(chain), flawed(model_of(chain)), (0, 2)
        truth = bound_by_quadrature(model, chain, x_1, end=0.7)
        copies = torch.tensor([x_1]).repeat(4_000, 1)
        bound = cwdfm.elbo(model, source, SCHEDULE, copies, draws=16, batch_size=4_000)
        assert_estimates(bound, truth / 2)


def test_weighted_bound_of_an_inexact_model() -> None:
    """The path and the rates must both be weighted by alpha.

    The model ignores the context and has a different cross-entropy at each position, and the weight
    prefers the left. Every position jumps exactly once for any alpha, so the true value is the
    plain sum. Without alpha in the integrand the estimate is off by more than 100 standard errors,
    with the unweighted path by more than 50.
    """
    source = cwdfm.MaskSource(3)
    table = torch.zeros(4, 4, dtype=torch.float64)
    table[:, 0] = torch.tensor([0.0, 1.0, 2.0, 4.0])
    model = constant(table)
    x_1 = torch.ones(2_000, 4, dtype=torch.int64)
    truth = float(-table[:, :3].log_softmax(-1)[:, 1].mean())
    bound = cwdfm.elbo(
        model, source, SCHEDULE, x_1, weight=PositionalBias(1.5), batch_size=2_000, draws=16
    )
    assert_estimates(bound, truth)
    plain = cwdfm.elbo(model, source, SCHEDULE, x_1, batch_size=2_000, draws=16)
    assert_estimates(plain, truth)
    # control: the integrand on the weighted path differs without alpha
    path = cwdfm.ContextPath(source, SCHEDULE, PositionalBias(1.5))
    late = path.sample(x_1, torch.full((2_000,), 0.7))
    alpha, ce = PositionalBias(1.5)(late.revealed), -table[:, :3].log_softmax(-1)[:, 1]
    weighted, bare = (alpha * ce).sum(1).mean(), (~late.revealed * ce).sum(1).mean()
    assert abs(float(weighted - bare)) > 0.2 * float(bare)


@pytest.mark.parametrize("weight", [cwdfm.Neighbor(1, 2.0), cwdfm.Distance(1.0, 2)], ids=str)
def test_weighted_bound_is_tight(weight: cwdfm.Weight) -> None:
    """The fourth proposition: with weighted path and rates, the true posterior of a mask source
    attains the exact likelihood, since every reveal order does.
    """
    chain = Chain(correlated_target(2, 4, seed=3), mask=True)
    model, source = model_of(chain), source_of(chain)
    x_1 = model.states_SN.repeat(250, 1)
    bound = cwdfm.elbo(model, source, SCHEDULE, x_1, weight=weight, batch_size=4_000)
    truth = -np.log(chain.target).mean() / 4
    assert_estimates(bound, truth, most=0.015)


def test_fixed_tokens_give_the_conditional_likelihood() -> None:
    target = correlated_target(2, 3, seed=4)
    model, source = model_of(Chain(target, mask=True)), cwdfm.MaskSource(2)
    x_1 = torch.tensor([[1, 0, 1]]).repeat(4_000, 1)
    fixed = torch.tensor([True, False, False]).expand_as(x_1)
    bound = cwdfm.elbo(model, source, SCHEDULE, x_1, fixed=fixed, batch_size=4_000)
    truth = -math.log(target[1, 0, 1] / target[1].sum()) / 2
    assert bound.tokens == 8_000
    assert_estimates(bound, truth)


@pytest.mark.parametrize(
    "method", [*BOUNDS, GIDD(3, 0.2), BlockDiffusion(MASK, SCHEDULE, 3)], ids=str
)
def test_bound_does_not_depend_on_batch_size_and_subset(method: Method) -> None:
    blocks = isinstance(method, BlockDiffusion)
    model: Any = block_network(3, 3, double=True) if blocks else SmallModel(method.num_tokens)
    other = model if blocks else SmallSplitModel(method.num_tokens)
    x_1 = torch.randint(3, (7, 12), generator=torch.manual_seed(0))
    fixed = torch.zeros(7, 12, dtype=torch.bool)
    fixed[:, 0], fixed[2], fixed[5, :5] = True, True, True
    whole = method.likelihood(model.train(), x_1, fixed=fixed, draws=4)
    assert model.training, "the mode must be restored"
    assert whole.tokens == int((~fixed).sum())
    assert float(whole.nats_B[2]) == 0.0
    for size in (1, 2, 3):
        small = method.likelihood(other, x_1, fixed=fixed, draws=4, batch_size=size)
        torch.testing.assert_close(small.nats_B, whole.nats_B, rtol=1e-9, atol=1e-9)
        assert small.standard_error == pytest.approx(whole.standard_error, rel=1e-9)
    index = torch.arange(4, 7)
    part = method.likelihood(model, x_1[4:], fixed=fixed[4:], index=index, draws=4)
    torch.testing.assert_close(part.nats_B, whole.nats_B[4:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first", [0, 10**5, 2**30])
def test_consecutive_sequences_share_a_stratum_evenly(first: int) -> None:
    """Anywhere in a dataset, the gaps between 1000 offsets are below 3 / 1000."""
    place = stratum_offsets(0, 3, torch.arange(first, first + 1000))
    assert place.dtype == torch.float64
    around = place.sort().values
    assert float(torch.cat([around.diff(), around[:1] + 1 - around[-1:]]).max()) < 3e-3
    assert float(around.diff().min()) > 1e-4


def test_strata_have_independent_offsets() -> None:
    """The offsets of adjacent strata are uniform and independent, in 5 x 5 cells."""
    one = torch.zeros(1, dtype=torch.int64)
    cell = (torch.cat([stratum_offsets(0, d, one) for d in range(4_000)]) * 5).long()
    counts = (cell[::2] * 5 + cell[1::2]).bincount(minlength=25)
    assert_follows(counts.numpy(), np.full(25, 1 / 25))


def test_one_sequence_is_unbiased_over_seeds() -> None:
    """The times depend on the seed, too. Tokens are independent, so the bound is tight.

    The mean of 150 seeds lies within 5 standard errors: false-alarm rate 6e-7.
    """
    length, source = 48, cwdfm.MaskSource(4)
    table = torch.randn(length, 5, generator=torch.manual_seed(1), dtype=torch.float64)
    x_1 = torch.randint(4, (1, length), generator=torch.manual_seed(2))
    model = constant(table)
    truth = -table[:, :4].log_softmax(-1).gather(1, x_1.T).mean()
    found = [
        cwdfm.elbo(model, source, SCHEDULE, x_1, seed=s, draws=2).nats_per_token for s in range(150)
    ]
    assert abs(np.mean(found) - float(truth)) < 5 * np.std(found, ddof=1) / math.sqrt(150)


def test_coverage_of_the_standard_error() -> None:
    """Over 100 seeds the truth lies within 2 standard errors in at least 88%.

    At a true coverage of 95.4%, fewer would have probability 1e-3.
    """
    chain = Chain(correlated_target(2, 2, seed=6), mask=True)
    source, model = source_of(chain), model_of(chain)
    x_1 = model.states_SN.repeat(25, 1)
    truth = float(-np.log(chain.target).mean() / 2)
    bounds = [cwdfm.elbo(model, source, SCHEDULE, x_1, seed=s, draws=8) for s in range(100)]
    off = np.array([b.nats_per_token - truth for b in bounds])
    errors = np.array([b.standard_error for b in bounds])
    assert np.mean(np.abs(off) < 2 * errors) >= 0.88
    # and it is not much too large
    assert 0.8 < errors.mean() / np.sqrt((off**2).mean()) < 1.5


@pytest.mark.parametrize("draws", [4, slow(16)])
def test_standard_error_accounts_for_stratification(draws: int) -> None:
    """Over 60 seeds the mean reported variance is 0.6 to 1.8 times that of the bounds.

    Tokens are independent, so the integrand is linear in v plus noise. Sequences are long enough
    for the linear trend to dominate the spread between strata. The variance of 60 bounds has a
    relative standard deviation of 18%, and the true ratio is 1.3 with 4 draws and 1.1 with 16: one
    choice of seeds in 25 would fail, so the seeds are fixed.
    """
    length, source = 32, cwdfm.MaskSource(4)
    generator = torch.manual_seed(0)
    table = torch.randn(length, 5, generator=generator, dtype=torch.float64)
    model = constant(table)
    x_1 = torch.randint(4, (24, length), generator=generator)
    bounds = [cwdfm.elbo(model, source, SCHEDULE, x_1, seed=s, draws=draws) for s in range(60)]
    real = np.var([b.nats_per_token for b in bounds], ddof=1)
    assert 0.6 < np.mean([b.standard_error**2 for b in bounds]) / real < 1.8
    # control: the variance of independent draws is far too large
    path = cwdfm.MixturePath(source, SCHEDULE)
    index, fixed = torch.arange(24), torch.zeros_like(x_1, dtype=torch.bool)
    batches = [BoundBatch(x_1, fixed, index, seed, draws) for seed in range(10)]
    parts = [flow_terms(model, path, batch).integral.var(0) / draws for batch in batches]
    assert float(torch.stack(parts).sum(1).mean()) / x_1.numel() ** 2 > 2 * real


@pytest.mark.parametrize("method", BOUNDS, ids=str)
def test_standard_error_includes_the_last_step(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the bound is in the last step, whose noise is independent of the integral's.

    With 20,000 copies of a sequence the spread of the estimates is the error of each. It is known
    to 1%, so it is within 10% for all but 1e-6 of seeds. Counting one draw instead of two would
    give a ratio of 1.8, shared noise one of 0.6.
    """
    monkeypatch.setattr(importlib.import_module("cwdfm.likelihood.elbo"), "KAPPA_END", 0.5)
    monkeypatch.setattr("cwdfm.baselines.sedd.likelihood.TIME_EPSILON", 0.5)
    x_1 = torch.tensor([[0, 1, 2, 1]]).expand(20_000, 4)
    model: Any = constant(torch.tensor([0.0, 1.0, 0.5, 0.0])[: method.num_tokens])
    bound = method.likelihood(model, x_1, draws=4, batch_size=20_000)
    spread = float(bound.nats_B.var()) / len(x_1)
    assert (bound.standard_error * bound.tokens / len(x_1)) ** 2 == pytest.approx(spread, rel=0.1)


def test_stratified_variance_ignores_a_linear_trend() -> None:
    """Unit-variance noise on a steep line: unbiased to 3%, 4 standard errors of 20,000 draws."""
    noise = torch.randn(5, 20_000, generator=torch.manual_seed(0), dtype=torch.float64)
    line = 100 * torch.arange(5.0, dtype=torch.float64)[:, None]
    assert float(stratified_variance(noise + line).mean()) == pytest.approx(1 / 5, rel=0.03)
    two = torch.tensor([[1.0], [4.0]])
    assert float(stratified_variance(two)) == pytest.approx(float(two.var()) / 2)
