"""MDLM is a flow: its loss, network and samplers against the formulas of Sahoo et al. 2024."""

from dataclasses import replace

import pytest
import torch

import cwdfm
from cwdfm.method import Flow, FlowObjective
from cwdfm.method.base import DataBatch, Task
from cwdfm.model.transformer import DiT, Read
from cwdfm.train.recipes import RECIPES
from tests.support.models import constant

VOCAB = 7


def task() -> Task:
    return RECIPES["qm9-debug"]().updated(method="mdlm", dropout=0.0).build(VOCAB)


def flow() -> Flow:
    method = task().method
    assert isinstance(method, Flow)
    return method


def network(asked: Task) -> DiT:
    torch.manual_seed(0)
    model = DiT(asked.model).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


class Answers(torch.nn.Module):
    """A network of random logits that records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = torch.nn.Linear(5, VOCAB + 1).double()

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, read: Read) -> torch.Tensor:
        torch.manual_seed(1)
        self.x_t, self.hidden = x_t, torch.randn(*x_t.shape, 5, dtype=torch.float64)
        return read(self.hidden, self.readout)


@torch.no_grad()
def test_loss_is_masked_cross_entropy_over_the_mask_probability() -> None:
    """The Bregman loss is the same bound, with a mask source and the same schedule."""
    asked, model = task(), Answers()
    assert isinstance(asked.objective, FlowObjective)
    x = torch.randint(0, VOCAB, (4, 9), generator=torch.manual_seed(2))
    t = torch.tensor([0.1, 0.4, 0.7, 0.95], dtype=torch.float64)
    fixed = torch.zeros_like(x, dtype=torch.bool)
    batch = DataBatch(x, t, fixed, torch.arange(4), seed=3, step=0)
    bregman = replace(asked.objective, loss=cwdfm.Bregman("masked"))
    losses = [float(objective(model, batch)) for objective in (asked.objective, bregman)]
    logits = model.readout(model.hidden)
    logits[..., VOCAB] = -torch.inf  # SUBS: the mask has probability zero
    nats = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
    mask_probability = 1 - t  # log-linear noise; MDLM's time runs backwards
    masked = model.x_t == VOCAB
    assert masked.any()
    assert (~masked).any()
    expected = (nats * masked / mask_probability[:, None]).sum() / x.numel()
    assert losses == pytest.approx([float(expected)] * 2, rel=1e-6)


def test_network_is_not_conditioned_on_time() -> None:
    asked = task()
    model, x = network(asked), torch.randint(0, VOCAB, (2, 9))
    assert asked.model.time == "zero"
    early, late = (model.trunk(x, torch.full((2,), t)) for t in (0.1, 0.9))
    assert torch.equal(early, late)
    conditioned = DiT(replace(asked.model, time="given")).eval()
    conditioned.load_state_dict(model.state_dict())
    assert not torch.equal(
        conditioned.trunk(x, torch.full((2,), 0.1)), conditioned.trunk(x, torch.full((2,), 0.9))
    )


def test_ancestral_sampler_is_the_integrated_hazard() -> None:
    """A token that is masked at mask probability m is unmasked by m' with chance (m - m') / m.

    400 tokens x 500 sequences: the standard deviation of the fraction is below 0.0012, and 5 are
    allowed: a false alarm in 2 million.
    """
    source, schedule = flow().source, flow().schedule
    solver = cwdfm.Euler(hazard="integrated")
    state = solver.init(source, torch.arange(500), 400, seed=4)
    even = constant(torch.zeros(VOCAB + 1))
    m, smaller = 0.8, 0.5
    after, _ = solver.step(even, source, schedule, state, 1 - m, 1 - smaller)
    share = float((after.tokens != VOCAB).double().mean())
    assert share == pytest.approx((m - smaller) / m, abs=5 * 0.0012)
    plain, _ = cwdfm.Euler().step(even, source, schedule, state, 1 - m, 1 - smaller)
    control = float((plain.tokens != VOCAB).double().mean())  # 1 - exp(-(m - m') / m) = 0.313
    assert control != pytest.approx((m - smaller) / m, abs=5 * 0.0012)


def test_unchanged_sequences_are_not_evaluated() -> None:
    """MDLM caches while the whole batch is unchanged; here this works per sequence."""
    calls = []

    class Counting(cwdfm.ExactPosterior):
        def __call__(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            calls.append(len(x_t))
            return super().__call__(x_t, t)

    source, schedule = cwdfm.MaskSource(2), flow().schedule
    model = Counting(torch.full((2,) * 3, 1 / 8), source, schedule)
    solver = cwdfm.Euler(hazard="integrated")
    out = cwdfm.sample(model, source, schedule, solver, shape=(1, 3), steps=200)
    assert len(calls) == int(out.evaluations[0]) <= 3


@pytest.mark.parametrize("weight", [cwdfm.Neighbor(1, 2.0), cwdfm.Entropy(30.0)])
def test_context_weights_apply(weight: cwdfm.Weight) -> None:
    seen: list[torch.Tensor] = []

    def note(state: cwdfm.State, _: cwdfm.Info) -> None:
        seen.append(state.tokens != VOCAB)

    for each in (weight, None):
        solver = cwdfm.Euler(weight=each, hazard="integrated")
        asked = (network(task()), flow().source, flow().schedule, solver)
        out = cwdfm.sample(*asked, shape=(30, 9), steps=6, seed=1, callback=note)
        assert int(out.tokens.max()) < VOCAB
    # The same random numbers with other rates: tokens appear at other times.
    assert any(not torch.equal(a, b) for a, b in zip(seen[:6], seen[6:], strict=True))


def test_worst_weights() -> None:
    """The hazard at e = 1/1000 before the end: 1000 for t, 2 (1 - e) / (e (2 - e)) for t^2."""
    assert task().objective.worst_weight == pytest.approx(1000, rel=1e-3)
    path = cwdfm.MixturePath(cwdfm.MaskSource(VOCAB), cwdfm.Polynomial(2.0))
    for loss in (cwdfm.NELBO(), cwdfm.Bregman()):
        weight = FlowObjective(path, loss).worst_weight
        assert weight == pytest.approx(2 * 0.999 / (0.001 * 1.999), rel=1e-3)
    assert FlowObjective(path, cwdfm.CrossEntropy()).worst_weight == 1.0
