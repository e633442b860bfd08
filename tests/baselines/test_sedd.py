"""SEDD: graphs, loss and likelihood, against matrix exponentials, sums and quadrature."""

import json
import math
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.baselines.sedd import objective as objective_module
from cwdfm.baselines.sedd.graph import Absorb, Graph, LogitSums, Uniform
from cwdfm.baselines.sedd.method import SEDD
from cwdfm.baselines.sedd.noise import Geometric, LogLinear, Noise
from cwdfm.baselines.sedd.objective import ScoreEntropyObjective, head_sums, masked_head_sums
from cwdfm.config import from_config, to_config
from cwdfm.loss import NELBO
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method import Flow, FlowObjective
from cwdfm.method.base import DataBatch
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from cwdfm.path import MixturePath
from cwdfm.schedule import stratified_times
from tests.support.cases import slow
from tests.support.exact import correlated_target
from tests.support.exact_score import (
    FLOOR,
    SETTINGS,
    ExactScore,
    Model,
    Process,
    flawed,
    rate_matrix,
)
from tests.support.models import SmallModel, constant

GRAPHS = ["absorb", "uniform"]
NOISES: list[Noise] = [LogLinear(), Geometric()]
TARGET = correlated_target(3, 2, seed=0)


def ends(method: SEDD) -> tuple[float, float]:
    """The noise levels at the ends of the bound's integral."""
    return method.noise_process.sigma_at(1.0), method.noise_process.sigma_at(TIME_EPSILON)


def network(graph: str, exact: bool) -> Model:
    model = ExactScore(TARGET, graph == "absorb")
    return model if exact else flawed(model, graph == "absorb")


@pytest.mark.parametrize("graph", GRAPHS)
def test_ratio_follows_the_matrix_exponential(graph: str) -> None:
    chain = SEDD(5, graph).forward_graph  # type: ignore[arg-type]
    q = torch.from_numpy(rate_matrix(5, graph == "absorb"))
    for sigma in (1e-4, 0.1, 1.0, 7.0):
        truth = torch.matrix_exp(sigma * q)
        # for a changed token x: P(unchanged) / P(changed to x)
        x = 5 if graph == "absorb" else 3
        ratio = chain.ratio(torch.tensor(sigma, dtype=torch.float64))
        torch.testing.assert_close(ratio, truth[0, 0] / truth[0, x], rtol=1e-9, atol=0)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_noise(noise: Noise) -> None:
    s = torch.linspace(0, 1, 21, dtype=torch.float64, requires_grad=True)
    sigma = noise.sigma(s)
    (slope,) = torch.autograd.grad(sigma.sum(), s)
    torch.testing.assert_close(noise.rate(s.detach()), slope)
    torch.testing.assert_close(noise.inverse(sigma).detach(), s.detach())
    assert bool((sigma.diff() > 0).all())
    first, last = (0.0, -math.log(1e-3)) if isinstance(noise, LogLinear) else (1e-4, 20.0)
    assert (noise.sigma_at(0.0), noise.sigma_at(1.0)) == pytest.approx((first, last))


@pytest.mark.parametrize("graph", GRAPHS)
def test_corruption_follows_the_chain(graph: str) -> None:
    """Frequencies within 5 standard deviations: a false alarm in 2 million, for each of 8."""
    chain, draws = SEDD(3, graph).forward_graph, 40_000  # type: ignore[arg-type]
    x_1 = torch.tensor([[0, 2]]).repeat(draws, 1)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    index = torch.arange(draws)
    sigma = torch.full((draws,), 0.7, dtype=torch.float64)
    x = chain.corrupt(x_1, sigma, fixed, seed=0, step=3, index=index)
    truth = torch.matrix_exp(0.7 * torch.from_numpy(rate_matrix(3, graph == "absorb")))
    for i, token in enumerate((0, 2)):
        for y, p in enumerate(truth[token].tolist()):
            share = float((x[:, i] == y).double().mean())
            assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / draws)
    kept = chain.corrupt(x_1, sigma, ~fixed, seed=0, step=3, index=index)
    assert torch.equal(kept, x_1)


def test_every_training_step_has_its_own_noise() -> None:
    """At sigma = 15 only noise is left: two steps agree in 1 of V tokens, within 5 deviations."""
    chain, x_1 = SEDD(4, "uniform").forward_graph, torch.zeros(3_000, 4, dtype=torch.int64)
    fixed, index = torch.zeros_like(x_1, dtype=torch.bool), torch.arange(len(x_1))
    sigma = torch.full((len(x_1),), 15.0, dtype=torch.float64)
    ways = [{"seed": 0, "step": 0}, {"seed": 0, "step": 1}, {"seed": 1, "step": 0}]
    first, *others = (chain.corrupt(x_1, sigma, fixed, index=index, **way) for way in ways)
    for other in others:
        share = float((first == other).double().mean())
        assert abs(share - 1 / 4) <= 5 * math.sqrt(3 / 16 / x_1.numel())


def entropy_by_sum(chain: Graph, logits: Tensor, x: int, x_1: int, sigma: float) -> float:
    """sum_{y != x} Q(y, x) [s - r log s + r (log r - 1)], term by term."""
    vocab, absorb = len(logits), chain.source.num_tokens > len(logits)
    q = rate_matrix(vocab, absorb)
    kernel = torch.matrix_exp(sigma * torch.from_numpy(q))
    log_s = (logits - math.log(vocab * math.expm1(sigma)) * absorb).tolist()
    total = 0.0
    for y in range(vocab):
        if y != x:
            r = float(kernel[x_1, y] / kernel[x_1, x])
            constant = r * (math.log(r) - 1) if r > 0 else 0.0
            total += q[y, x] * (math.exp(log_s[y]) - r * log_s[y] + constant)
    return total


@pytest.mark.parametrize("graph", GRAPHS)
def test_score_entropy_is_the_sum_over_tokens(graph: str) -> None:
    vocab = 6
    chain = SEDD(vocab, graph).forward_graph  # type: ignore[arg-type]
    rows = torch.randn(40, vocab, dtype=torch.float64, generator=torch.manual_seed(0))
    x_1 = torch.arange(40) % vocab
    x = torch.full_like(x_1, vocab) if graph == "absorb" else torch.arange(40) // 3 % vocab
    assert graph == "absorb" or 0 < int((x == x_1).sum()) < 40
    for sigma in (1e-3, 0.3, 6.9):
        sigmas = torch.full((40,), sigma, dtype=torch.float64)
        found = chain.score_entropy(LogitSums.of(rows, x, x_1), x == x_1, sigmas)
        truth = [
            entropy_by_sum(chain, *row, sigma)
            for row in zip(rows, x.tolist(), x_1.tolist(), strict=True)
        ]
        torch.testing.assert_close(found, torch.tensor(truth).double(), rtol=1e-9, atol=1e-9)
        assert bool((found > -1e-9).all())


@pytest.mark.parametrize("bias", [True, False])
def test_head_sums_and_their_gradients(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of three positions, against all logits at once."""
    monkeypatch.setattr(objective_module, "MAX_ELEMENTS", {"cpu": 3 * 7})
    generator = torch.manual_seed(0)
    hidden = torch.randn(10, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    readout = nn.Linear(5, 8, bias=bias).double()
    x_1, x = torch.arange(10) % 7, torch.arange(10) // 2 % 7
    mask = torch.full_like(x, 7)
    leaves = [hidden, *readout.parameters()]

    def gradient(parts: LogitSums, total: float) -> list[Tensor]:
        mix = parts.log_sum.exp() - 2 * parts.target
        return list(
            torch.autograd.grad((mix + total * parts.total if total else mix).sum(), leaves)
        )

    plain = LogitSums.of(readout(hidden)[:, :7], x, x_1)
    chunked = head_sums(hidden, readout, x, x_1, 7)
    torch.testing.assert_close(chunked, plain)
    torch.testing.assert_close(gradient(chunked, 0.3), gradient(plain, 0.3))
    plain = LogitSums.of(readout(hidden)[:, :7], mask, x_1)
    masked = masked_head_sums(hidden, readout, x_1, 7)
    torch.testing.assert_close((masked.log_sum, masked.target), (plain.log_sum, plain.target))
    torch.testing.assert_close(gradient(masked, 0.0), gradient(plain, 0.0))


def test_head_sums_in_half_precision() -> None:
    """The logit of x_1 is rounded like the logits in the sum, so most positions agree."""
    generator = torch.manual_seed(0)
    hidden = torch.randn(200, 32, generator=generator).bfloat16() * 3
    readout = nn.Linear(32, 50)
    nn.init.normal_(readout.weight, generator=generator)
    x_1 = torch.arange(200) % 49
    found = masked_head_sums(hidden, readout, x_1, 49)
    weight, shift = (p.detach().bfloat16() for p in (readout.weight, readout.bias))
    logits = nn.functional.linear(hidden, weight, shift).float()[:, :49]
    off = (found.log_sum.detach() - logits.logsumexp(-1)).abs()
    assert float(off.median()) < 1e-5
    assert float(off.max()) < 0.3  # where two orders of summation round differently


@pytest.mark.parametrize("graph", GRAPHS)
def test_true_score_minimizes_the_loss(graph: str) -> None:
    """The exact expectation over data and noise has zero gradient at the true score."""
    absorb = graph == "absorb"
    chain, sigma = SEDD(3, graph).forward_graph, 0.8  # type: ignore[arg-type]
    model = ExactScore(TARGET, absorb)
    states = torch.tensor(list(product(range(3 + absorb), repeat=2)))
    level = torch.full((len(states),), sigma, dtype=torch.float64)
    kernel = torch.matrix_exp(sigma * torch.from_numpy(rate_matrix(3, absorb)))

    def loss(logits: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for x_1 in product(range(3), repeat=2):
            chance = TARGET[x_1] * kernel[x_1[0]][states[:, 0]] * kernel[x_1[1]][states[:, 1]]
            for i in range(2):
                rows = states[:, i] == 3 if absorb else torch.ones(len(states)).bool()
                x, y = states[rows, i], torch.full((int(rows.sum()),), x_1[i])
                parts = LogitSums.of(logits[rows, i, :3], x, y)
                total = (
                    total + (chance[rows] * chain.score_entropy(parts, x == y, level[rows])).sum()
                )
        return total

    true = model(states, level).requires_grad_()
    value = loss(true)
    (slope,) = torch.autograd.grad(value, true)
    least = float(value.detach())
    assert float(slope.abs().max()) < 1e-12
    generator = torch.manual_seed(0)
    for size in (0.01, 0.3):
        for _ in range(5):
            noise = torch.randn(true.shape, dtype=torch.float64, generator=generator)
            assert float(loss(true.detach() + size * noise)) > least + 1e-7
    brute = sum(
        TARGET[x_1] * Process(model, 3, 2, absorb).entropy(x_1, sigma)
        for x_1 in product(range(3), repeat=2)
    )
    assert least == pytest.approx(brute, rel=1e-6)  # its network receives float32 sigmas


@pytest.mark.parametrize("noise", [*SETTINGS][:1] + [slow(name) for name in [*SETTINGS][1:]])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("exact", [slow(True), False], ids=["true score", "flawed network"])
def test_bound_against_quadrature(graph: str, noise: str, exact: bool) -> None:
    """Within 5 standard errors: a false alarm in 2 million, for each of 16."""
    method = SEDD(3, graph, **SETTINGS[noise])  # type: ignore[arg-type]
    model = network(graph, exact)
    x_1 = (2, 1)
    truth = Process(model, 3, 2, graph == "absorb").bound(x_1, *ends(method))
    copies = torch.tensor([x_1]).repeat(2_000, 1)
    bound = method.likelihood(model, copies, draws=32, batch_size=2_000)  # type: ignore[arg-type]
    assert bound.nats_per_token * 2 == pytest.approx(truth, abs=10 * bound.standard_error)
    assert bound.standard_error * 2 < 0.04 * truth


@pytest.mark.parametrize("graph", ["uniform", slow("absorb")])
def test_bound_holds_for_the_sampled_distribution(graph: str) -> None:
    """Never below -log p of the network's process, and close to it for the true score."""
    method = SEDD(3, graph)  # type: ignore[arg-type]
    for exact in (True, False):
        process = Process(network(graph, exact), 3, 2, graph == "absorb")
        law = process.limit(*ends(method), pieces=400)
        cost = -np.log(law)
        bounds = np.array([process.bound(x, *ends(method)) for x in product(range(3), repeat=2)])
        gap = bounds - cost
        assert gap.min() > -1e-4
        if exact:
            # The gap comes from the last step, which samples tokens independently, and for the
            # uniform graph from the start. It is largest for rare sequences.
            assert (law * gap).sum() < (1e-5 if graph == "absorb" else 1e-3)
            np.testing.assert_allclose(law, TARGET.ravel(), atol=1e-4)
        else:
            assert gap.max() > 0.05


def test_tight_for_the_true_score_of_the_absorbing_graph() -> None:
    """The estimate, over the whole target, within 5 standard errors: a false alarm in 2 million."""
    x_1 = torch.tensor(list(product(range(3), repeat=2))).repeat(500, 1)
    bound = SEDD(3).likelihood(network("absorb", True), x_1, batch_size=4_500)  # type: ignore[arg-type]
    truth = -np.log(TARGET).mean() / 2
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)
    assert bound.standard_error < 0.01 * truth


def test_standard_error_accounts_for_stratification() -> None:
    """As for flows (tests/core/test_elbo.py), with 8 draws: 1 choice of seeds in 25 would fail."""
    length = 32
    generator = torch.manual_seed(0)
    table = torch.randn(length, 4, generator=generator, dtype=torch.float64).log_softmax(-1)
    table = nn.functional.pad(table + math.log(4), (0, 1))
    x_1 = torch.randint(4, (24, length), generator=generator)
    model = constant(table)
    ask = SEDD(4).likelihood
    bounds = [ask(model, x_1, seed=s, draws=8) for s in range(60)]  # type: ignore[arg-type]
    real = np.var([b.nats_per_token for b in bounds], ddof=1)
    assert 0.6 < np.mean([b.standard_error**2 for b in bounds]) / real < 1.8


class Normalized(nn.Module):
    """A posterior network as a score network: s = p_{1|t} / expm1(sigma)."""

    def __init__(self, model: SmallModel) -> None:
        super().__init__()
        self.model, self.readout = model, nn.Linear(1, 1)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        data = self.model(x_t, torch.zeros_like(t))[..., :-1].log_softmax(-1)
        return nn.functional.pad(data + math.log(data.shape[-1]), (0, 1))


def test_normalized_scores_have_the_nelbo_of_mdlm() -> None:
    """The bounds agree draw by draw: as epsilon -> 0 the noise is the linear schedule."""
    vocab = 5
    posterior = SmallModel(vocab + 1)
    score = Normalized(posterior)
    x_1 = torch.randint(vocab, (40, 7), generator=torch.manual_seed(0))
    method = SEDD(vocab, epsilon=1e-12)
    source, schedule = cwdfm.MaskSource(vocab), cwdfm.Linear()
    found = method.likelihood(score, x_1, draws=4)
    truth = cwdfm.elbo(
        lambda x, t: posterior(x, torch.zeros_like(t)), source, schedule, x_1, draws=4
    )
    torch.testing.assert_close(found.nats_B, truth.nats_B, rtol=1e-6, atol=1e-6)
    # scores that do not sum to one have a larger bound
    loud = method.likelihood(lambda x, t: score(x, t) + 0.5, x_1, draws=4)  # type: ignore[arg-type]
    assert bool((loud.nats_B > found.nats_B + 0.01).all())


def test_normalized_scores_have_the_loss_of_mdlm() -> None:
    vocab = 5
    posterior = SmallModel(vocab + 1)
    x_1 = torch.randint(vocab, (40, 7), generator=torch.manual_seed(0))
    t = stratified_times(0, 0, torch.arange(40), 40)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    fixed[:, 0] = True
    # The head is the identity, so the hidden states are the logits.
    readout = nn.Linear(vocab + 1, vocab + 1, bias=False).double()
    nn.init.eye_(readout.weight)

    def forward(x: Tensor, t: Tensor, read: cwdfm.model.transformer.Read) -> Tensor:
        return read(Normalized(posterior)(x, t), readout)

    flow = Flow(cwdfm.MaskSource(vocab), cwdfm.Linear())
    mdlm = FlowObjective(MixturePath(flow.source, flow.schedule), NELBO())
    sedd = ScoreEntropyObjective(SEDD(vocab, epsilon=1e-12))
    same_t = 1 - (TIME_EPSILON + (1 - TIME_EPSILON) * (1 - t))
    batch = DataBatch(x_1, t, fixed, torch.arange(40), seed=4, step=5)
    found, truth = sedd(forward, batch), mdlm(forward, replace(batch, t=same_t))
    torch.testing.assert_close(found, truth, rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("graph", GRAPHS)
def test_initial_loss_and_fixed_tokens(graph: str) -> None:
    """A new network has the loss of a uniform guess; fixed tokens are kept and do not count.

    Absorbing graph: weight 1 / s on a fraction (1 - epsilon) s of the tokens, each log V.
    """
    method = SEDD(6, graph)  # type: ignore[arg-type]
    objective = ScoreEntropyObjective(method)
    model = DiT(method.network(preset("debug", 6)))
    assert model.config.num_tokens == 6 + (graph == "absorb")
    x_1 = torch.randint(6, (512, 8), generator=torch.manual_seed(1))
    index = torch.arange(512)
    t = stratified_times(0, 0, index, 512)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    fixed[:, :4] = True
    seen = []

    def forward(x: Tensor, level: Tensor, read: cwdfm.model.transformer.Read) -> Tensor:
        seen.append((x, level))
        hidden: Tensor = model(x, level, read)
        return hidden

    loss = objective(forward, DataBatch(x_1, t, fixed, index, seed=0, step=0))
    (x_t, level), loss_value = seen[0], float(loss.detach())
    assert torch.equal(x_t[:, :4], x_1[:, :4])
    assert bool((x_t[:, 4:] != x_1[:, 4:]).any())
    sigma = method.noise_process.sigma(TIME_EPSILON + (1 - TIME_EPSILON) * (1 - t))
    torch.testing.assert_close(level, sigma.float())
    if graph == "absorb":
        assert loss_value == pytest.approx(math.log(6), rel=0.15)
    other = torch.where(fixed, (x_1 + 1) % 6, x_1)  # a new network does not depend on its input
    same = objective(forward, DataBatch(other, t, fixed, index, seed=0, step=0))
    assert float(same.detach()) == pytest.approx(loss_value)
    assert objective.worst_weight == pytest.approx(1000, rel=0.01 if graph == "absorb" else 0.2)
    nothing = objective(forward, DataBatch(x_1, t, ~fixed | fixed, index, seed=0, step=0))
    assert float(nothing.detach()) == 0


@pytest.mark.parametrize(
    ("graph", "noise"), [("absorb", "geometric"), slow("uniform", "loglinear")]
)
def test_training_lowers_the_bound(graph: str, noise: str) -> None:
    """After 60 steps on sequences that repeat one token the held-out bound has halved."""
    torch.manual_seed(0)
    method = SEDD(5, graph, noise)  # type: ignore[arg-type]
    objective = ScoreEntropyObjective(method)
    model = DiT(replace(method.network(preset("debug", 5)), dropout=0.0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    index = torch.arange(128)
    valid = torch.arange(5)[:, None].expand(5, 8).repeat(8, 1)
    before = method.likelihood(model, valid).nats_per_token
    for step in range(60):
        x_1 = torch.randint(5, (128, 1)).expand(128, 8)
        t = stratified_times(0, step, index, 128).float()
        fixed = torch.zeros_like(x_1, dtype=torch.bool)
        loss = objective(model, DataBatch(x_1, t, fixed, index, seed=0, step=step))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    after = method.likelihood(model, valid).nats_per_token
    assert after < 0.5 * before


def test_fixed_tokens_give_the_conditional_likelihood() -> None:
    """Within 5 standard errors: a false alarm in 2 million."""
    x_1 = torch.tensor([[2, 1]]).repeat(4_000, 1)
    fixed = torch.tensor([True, False]).expand_as(x_1)
    model = network("absorb", True)
    bound = SEDD(3).likelihood(model, x_1, fixed=fixed, batch_size=4_000)  # type: ignore[arg-type]
    truth = -math.log(TARGET[2, 1] / TARGET[2].sum())
    assert bound.tokens == 4_000
    assert bound.nats_per_token == pytest.approx(truth, abs=5 * bound.standard_error)


def test_configs() -> None:
    method = SEDD(7, "uniform", "geometric", sigma_max=10.0)
    written = json.loads(json.dumps(to_config(method)))
    assert from_config(written, {"SEDD": SEDD}) == method
    for wrong in (
        {"vocab_size": 1},
        {"vocab_size": 5, "graph": "mask"},
        {"vocab_size": 5, "noise": "cosine"},
        {"vocab_size": 5, "epsilon": 0.0},
        {"vocab_size": 5, "noise": "geometric", "sigma_min": 25.0},
        {"vocab_size": 5, "noise": "geometric", "sigma_max": 50.0},
    ):
        with pytest.raises(cwdfm.InputError):
            SEDD(**wrong)


@pytest.mark.parametrize("graph", [Absorb(6), Uniform(6)], ids=str)
@pytest.mark.parametrize("sigma", [1e-3, 0.5, 5.0])
def test_max_weight_bounds_the_factors_of_log_scores(graph: Graph, sigma: float) -> None:
    """For tiny scores the entropy is linear in the log-scores, so gradients are the factors."""
    x = torch.tensor([graph.source.num_tokens - 1] * 2)
    x_1 = torch.tensor([0, min(int(x[0]), 5)])  # another token, and the same one if it has a term
    logits = torch.full((2, 6), -60.0, dtype=torch.float64, requires_grad=True)
    rate = torch.full((2,), sigma, dtype=torch.float64)
    graph.score_entropy(LogitSums.of(logits, x, x_1), x == x_1, rate).sum().backward()
    assert logits.grad is not None
    most = float(logits.grad.abs().sum(1).max())
    bound = float(graph.max_weight(rate[0]))
    assert bound / 2 < most <= bound * (1 + 1e-9)


def test_tweedie_leaves_a_floor_of_the_score() -> None:
    """[s exp(-c Q)]_y = (e^c - (e^c - 1) mean / s_y) s_y, negative here except for the largest."""
    logits, change = torch.tensor([[0.0, -8.0, -9.0]], dtype=torch.float64), 1.0
    found = Uniform(3).staggered_score(logits, torch.tensor([0]), change)[0]
    mean = logits.exp().mean()
    own = math.e - (math.e - 1) * float(mean)
    assert float(found[0]) == pytest.approx(math.log(own))
    assert (found[1:] - logits[0, 1:]).tolist() == pytest.approx([math.log(FLOOR)] * 2)


def test_huge_scores_do_not_overflow() -> None:
    """exp(200) overflows float32."""
    logits, x = torch.tensor([[0.0, 200.0, 199.0, -30.0]]), torch.tensor([0])
    rough, fine = (
        Uniform(4).staggered_score(z, x, 0.3).double() for z in (logits, logits.double())
    )
    torch.testing.assert_close(rough.log_softmax(-1), fine.log_softmax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("graph", ["absorb", "uniform"])
def test_every_term_of_the_bound_is_given_the_fixed_tokens(
    graph: Literal["absorb", "uniform"],
) -> None:
    method, x_1 = SEDD(4, graph), torch.tensor([[0, 1, 2, 3]] * 3)
    fixed = torch.tensor([[True, False, True, False]] * 3)
    seen: list[Tensor] = []

    def model(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(x[:, ::2])
        return torch.zeros(*x.shape, method.num_tokens)

    method.likelihood(model, x_1, draws=4, fixed=fixed)  # type: ignore[arg-type]
    assert len(seen) > 2  # the model is not called if no token is masked
    assert all(torch.equal(x, x_1[:, ::2]) for x in seen)
