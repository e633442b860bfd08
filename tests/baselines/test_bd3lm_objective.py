"""Block diffusion: the loss, and the search for the clip range."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.baselines.bd3lm.objective import BlockObjective, clip_ranges
from cwdfm.method.base import DataBatch, SampleRequest
from cwdfm.model.transformer import DiT, DiTConfig
from tests.support.blocks import LINEAR, called, method, network, plain_logits, tokens

# The loss


@pytest.mark.parametrize(
    "schedule", [LINEAR, cwdfm.Polynomial(2.0), cwdfm.Cosine()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.3, 0.8), (0.6, 0.6)])
def test_loss_follows_its_formula(schedule: cwdfm.Schedule, low: float, high: float) -> None:
    block, length = 3, 12
    model, x_1 = network(block, double=True), tokens(6, length)
    objective = BlockObjective(replace(method(block), schedule=schedule), low, high)
    t = torch.linspace(0.02, 0.9, 6, dtype=torch.float64)
    fixed = torch.zeros(6, length, dtype=torch.bool)
    fixed[:, 0], fixed[3, 5:8] = True, True
    given = DataBatch(x_1, t, fixed, torch.arange(10, 16), seed=1, step=5)
    batch = objective.corrupt(given)
    total = 0.0
    for b, k in product(range(6), range(4)):
        place = slice(k * block, (k + 1) * block)
        u = (float(t[b]) + k / 4) % 1.0
        # times are uniform between mask probability `high` and `low`
        ends = [float(schedule.inverse(1 - high)), float(schedule.inverse(1 - low))]
        time = ends[0] + (ends[1] - ends[0]) * u
        mask = 1 - float(schedule.kappa(time))
        assert low - 1e-9 <= mask <= high + 1e-9
        weight = 1 / mask
        if low < high:  # dkappa/dt divided by its mean
            mean = (high - low) / (ends[1] - ends[0])
            weight *= float(schedule.kappa_dot(time)) / mean
        logits = plain_logits(model, x_1[b : b + 1, : k * block], batch.x_t[b : b + 1, place])
        log_p = logits[0, :, :7].log_softmax(-1)
        for i in range(block):
            at = k * block + i
            if int(batch.x_t[b, at]) == 7:
                assert not bool(fixed[b, at])
                total -= weight * float(log_p[i, x_1[b, at]])
            else:
                assert batch.x_t[b, at] == x_1[b, at]
    expected = total / int((~fixed).sum())
    loss = objective(called(model), given)
    assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_masked_fraction_of_a_block_follows_its_time() -> None:
    """Counts of masked tokens in 20000 blocks: 5 standard errors, a false alarm in 2 million."""
    objective = BlockObjective(method(4), 0.45, 0.95)
    x_1 = tokens(20_000, 8)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    t = torch.full((20_000,), 0.3)
    batch = objective.corrupt(DataBatch(x_1, t, fixed, torch.arange(20_000), seed=0, step=0))
    for k, u in enumerate((0.3, 0.8)):
        share = float((batch.x_t[:, 4 * k : 4 * k + 4] == 7).double().mean())
        mask = 0.95 - 0.5 * u
        assert share == pytest.approx(mask, abs=5 * math.sqrt(mask * (1 - mask) / 80_000))
    uneven = objective.times(torch.rand(1000, generator=torch.manual_seed(0)), 8)
    assert 0.05 <= float(uneven.min()) <= float(uneven.max()) <= 0.55
    assert torch.equal(uneven[:, 0], uneven[:, 3])


def test_times_by_token_on_a_path() -> None:
    """Equal times per token equal one time per sequence; a context path rejects them."""
    source, x_1 = cwdfm.MaskSource(7), tokens(5, 12)
    t = torch.linspace(0.1, 0.9, 5)
    path = cwdfm.MixturePath(source, LINEAR)
    one, each = path.sample(x_1, t), path.sample(x_1, t[:, None].expand(5, 12))
    assert torch.equal(one.x_t, each.x_t)
    logits = torch.randn(5, 12, 8, generator=torch.manual_seed(0))
    losses = [cwdfm.NELBO("masked")(logits, batch, LINEAR) for batch in (one, each)]
    assert torch.equal(*losses)
    context = cwdfm.ContextPath(source, LINEAR, cwdfm.Neighbor(1, 1.0))
    with pytest.raises(cwdfm.InputError, match="use MixturePath"):
        context.sample(x_1, each.t)
    with pytest.raises(cwdfm.InputError, match=r"\(5,\), one time per sequence, or \(5, 12\)"):
        path.sample(x_1, t[:, None])


# The search for a clip range


class Table(nn.Module):
    """A network whose loss is a function of the number of masked tokens in the block."""

    def __init__(self, block: int, nats: list[float]) -> None:
        super().__init__()
        self.block, self.readout = block, nn.Linear(2, 3)
        # Logits (h, 0 | mask id): -log p(token 1) = log(1 + e^h).
        self.height = torch.tensor([math.log(math.expm1(x)) for x in nats])
        with torch.no_grad():
            self.readout.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
            self.readout.bias.zero_()

    def forward(self, x: Tensor, t: Tensor, read: Any) -> Tensor:
        masked = (x[:, : x.shape[1] // 2] == 2).unflatten(1, (-1, self.block)).sum(2)
        h = self.height[(masked - 1).clamp(min=0)].repeat_interleave(self.block, 1)
        hidden = torch.stack([h, torch.zeros_like(h)], dim=-1)
        return torch.as_tensor(read(torch.cat([hidden, hidden], dim=1), self.readout))


def known_variance(low: float, high: float, block: int, nats: list[float]) -> float:
    """The variance of a block's loss count/(m L) nats[count], count ~ Binomial(L, m), m uniform."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    m = low + (high - low) * 0.5 * (nodes + 1)
    moments = np.zeros(2)
    for count in range(1, block + 1):
        chance = math.comb(block, count) * m**count * (1 - m) ** (block - count)
        value = count / (np.maximum(m, 1e-3) * block) * nats[count - 1]
        moments += [(0.5 * weights * chance * value**power).sum() for power in (1, 2)]
    return float(moments[1] - moments[0] ** 2)


# The loss of a token by the number of masked tokens in its block of four.
FLAT, HARD = [1.0, 1.0, 1.0, 1.0], [0.2, 0.4, 1.0, 6.0]


@pytest.mark.parametrize("nats", [FLAT, HARD], ids=["flat", "hard where all is masked"])
def test_search_finds_the_range_of_lowest_variance(nats: list[float]) -> None:
    """Variances over 16384 blocks within 10% of the known ones; the best range within 5%.

    With a constant loss the variance is E (1 - m)/(m L), which is lowest at the highest noise. If
    a fully masked block is hard, less noise is better.
    """
    objective = BlockObjective(method(4, 2), search=True)
    forward, x_1 = Table(4, nats), torch.ones(2048, 32, dtype=torch.int64)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    known = {ends: known_variance(*ends, 4, nats) for ends in clip_ranges(4)}
    for ends in ((0.05, 0.75), (0.3, 0.8), (0.5, 1.0)):
        measured = replace(objective, low=ends[0], high=ends[1]).variance(forward, x_1, fixed)
        assert measured == pytest.approx(known[ends], rel=0.1)
    found = objective.adapted(forward, x_1, fixed)
    assert known[found.low, found.high] < 1.05 * min(known.values())
    assert known[found.low, found.high] < 0.5 * known[0.0, 1.0]
    if nats == FLAT:
        assert (found.low, found.high) == (0.5, 1.0)
        assert known[0.5, 1.0] == pytest.approx((2 * math.log(2) - 1) / 4)
    else:
        assert found.high < 0.8
    assert objective.restored(found.state()) == found
    assert objective.restored({}) == objective
    assert replace(objective, search=False).adapted(forward, x_1, fixed).high == 1.0


def test_variance_covers_free_tokens_only() -> None:
    """A block of four with two fixed counts as a block of two; a fixed block does not count.

    14336 blocks, within 10%: 8 standard deviations of a variance of so many blocks.
    """
    objective = BlockObjective(method(4, 2), 0.3, 0.8)
    x_1 = torch.ones(2048, 32, dtype=torch.int64)
    fixed = (torch.arange(32) % 4 < 2) | (torch.arange(32) < 4)
    measured = objective.variance(Table(4, HARD), x_1, fixed.expand(2048, -1))
    assert measured == pytest.approx(known_variance(0.3, 0.8, 2, HARD[:2]), rel=0.1)


def test_clip_ranges() -> None:
    ranges = clip_ranges(4)
    assert len(ranges) == len(set(ranges)) == 36
    assert {(0.0, 1.0), (0.45, 0.95), (0.3, 0.8), (0.0, 0.5), (0.1, 1.0)} <= set(ranges)
    assert all(0 <= low < high <= 1 for low, high in ranges)
    # one token per block: at full noise only the data contributes variance
    single = replace(method(1, 2), schedule=cwdfm.Polynomial(2.0))
    objective = BlockObjective(single, search=True)
    x_1 = torch.ones(64, 8, dtype=torch.int64)
    found = objective.adapted(Table(1, [1.0]), x_1, torch.zeros_like(x_1, dtype=torch.bool))
    assert (found.low, found.high) == (1.0, 1.0)
    assert found.variance(Table(1, [1.0]), x_1, torch.zeros_like(x_1, dtype=torch.bool)) < 1e-9
    assert found.worst_weight == 1.0


def test_worst_weights() -> None:
    assert BlockObjective(method(4), 0.45, 0.95).worst_weight == pytest.approx(1 / 0.45)
    assert BlockObjective(method(4)).worst_weight == pytest.approx(1000)


# Training


def test_training_lowers_the_loss() -> None:
    """Every sequence repeats one token: after the first block the rest is certain."""
    torch.manual_seed(1)
    way = method(4)
    size = DiTConfig(8, width=64, depth=2, heads=2, conditioning=32, dropout=0.0)
    model = DiT(way.network(size))
    objective = BlockObjective(way, search=True)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    x_1 = (torch.arange(7)[:, None] + torch.arange(16)) % 7
    x_1 = x_1.repeat(8, 1)
    index, fixed = torch.arange(56), torch.zeros(56, 16, dtype=torch.bool)
    losses = []
    for step in range(60):
        t = cwdfm.stratified_times(0, step, index, 56).float()
        loss = objective(called(model), DataBatch(x_1, t, fixed, index, seed=0, step=step))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step == 30:
            objective = objective.adapted(called(model), x_1, fixed)
    assert losses[0] == pytest.approx(math.log(7), rel=0.4)
    assert objective.high - objective.low < 1.0
    bound = way.likelihood(model, x_1[:7], draws=16)
    assert bound.nats_per_token < 0.5 * math.log(7)
    out = way.sample(model, None, SampleRequest(shape=(64, 16), steps=16))
    runs = ((out.tokens[:, 1:] - out.tokens[:, :-1]) % 7 == 1).double().mean()
    assert float(runs) > 0.3  # chance level 1/7, standard deviation 0.011
