"""Conformance of every exported weight, path, loss, solver, source and schedule.

A new exported class needs an example in tests/support/examples.py; the first test says so.
"""

import dataclasses
import inspect
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from tests.support.cases import slow
from tests.support.examples import EXAMPLES, LENGTH, MASK_ONLY, examples
from tests.support.models import SmallModel

BASES = (cwdfm.Schedule, cwdfm.Source, cwdfm.Weight, cwdfm.Path, cwdfm.Loss, cwdfm.Solver)


def test_every_exported_class_has_an_example() -> None:
    exported = {value for value in vars(cwdfm).values() if inspect.isclass(value)}
    concrete = {c for c in exported if issubclass(c, BASES) and not inspect.isabstract(c)}
    assert concrete == {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_objects_are_their_own_configs(example: object) -> None:
    """Frozen dataclasses: equal when their fields are, hashable, rebuilt from name and fields."""
    assert dataclasses.is_dataclass(example)
    fields = {f.name: getattr(example, f.name) for f in dataclasses.fields(example)}
    again = getattr(cwdfm, type(example).__name__)(**fields)
    assert again == example
    assert hash(again) == hash(example)
    name = dataclasses.fields(example)[0].name if fields else "anything"
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        setattr(example, name, None)


@pytest.mark.parametrize("weight", examples(cwdfm.Weight), ids=str)
def test_weights(weight: cwdfm.Weight) -> None:
    g = torch.manual_seed(0)
    revealed = torch.rand(50, LENGTH, generator=g) < 0.5
    revealed[0], revealed[1] = True, False
    logits = torch.randn(50, LENGTH, 7, generator=g)
    alpha = weight(revealed, logits=logits)
    assert alpha.dtype == torch.float64
    assert bool((alpha >= 0).all())
    assert bool((alpha[revealed] == 0).all())
    torch.testing.assert_close(alpha.sum(1), (~revealed).sum(1).double())
    # rows are independent, and the prediction score may be passed separately
    torch.testing.assert_close(weight(revealed[3:4], logits=logits[3:4]), alpha[3:4])
    score = weight.prediction_score(logits) if weight.needs_logits else 0.0
    torch.testing.assert_close(weight.alpha(revealed, score), alpha)
    if weight.needs_logits:
        with pytest.raises(cwdfm.InputError, match="needs the model's logits"):
            weight(revealed)
    else:
        torch.testing.assert_close(weight(revealed), alpha)


@dataclasses.dataclass(frozen=True)
class Custom(cwdfm.PredictionWeight):
    """A user-defined weight, in the precision of the model."""

    def prediction_score(self, logits: Tensor) -> Tensor:
        return logits.float().softmax(-1).amax(-1)


@pytest.mark.parametrize("weight", [*examples(cwdfm.Weight), Custom()], ids=str)
@pytest.mark.parametrize(
    "source",
    [slow(s) if isinstance(s, cwdfm.UniformSource) else s for s in examples(cwdfm.Source)],
    ids=str,
)
def test_every_weight_drives_a_solver(weight: cwdfm.Weight, source: cwdfm.Source) -> None:
    """Halfway, the number of revealed tokens follows the schedule for every weight."""
    solver = cwdfm.Euler(weight=weight, hazard="integrated")
    model, schedule = SmallModel(source.num_tokens), cwdfm.Linear()
    state = solver.init(source, torch.arange(150), LENGTH)
    for t, t_next in itertools.pairwise([k / 50 for k in range(26)]):
        state, _ = solver.step(model, source, schedule, state, t, t_next)
    known = source.revealed(state.tokens)
    if known is not None:
        # 1800 coordinates: standard deviation 0.012, and O(1/steps) from the discretization
        assert float(known.double().mean()) == pytest.approx(0.5, abs=0.05)
    out = cwdfm.sample(model, source, schedule, solver, shape=(20, LENGTH), steps=10)
    assert int(out.tokens.max()) < source.vocab_size


@pytest.mark.parametrize("path", examples(cwdfm.Path), ids=str)
def test_paths(path: cwdfm.Path) -> None:
    x_1 = torch.randint(0, 7, (30, LENGTH), generator=torch.manual_seed(0))
    t = torch.linspace(0, 1, 30)
    index = torch.arange(1000, 1030)
    batch = path.sample(x_1, t, seed=4, step=9, index=index)
    assert batch.x_t.dtype == torch.int64
    assert batch.revealed.dtype == torch.bool
    assert torch.equal(batch.x_t, torch.where(batch.revealed, x_1, batch.x_0))
    assert not bool(batch.revealed[0].any())
    assert bool(batch.revealed[-1].all())
    assert batch.source == path.source
    rows = torch.tensor([23, 0, 8])
    again = path.sample(x_1[rows], t[rows], seed=4, step=9, index=index[rows])
    assert torch.equal(again.x_t, batch.x_t[rows])
    assert torch.equal(again.revealed, batch.revealed[rows])
    later = path.sample(x_1, t, seed=4, step=10, index=index)
    assert not torch.equal(later.x_t, batch.x_t)


@pytest.mark.parametrize("loss", examples(cwdfm.Loss), ids=str)
@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_losses(loss: cwdfm.Loss, source: cwdfm.Source) -> None:
    schedule = cwdfm.Polynomial(2.0)
    x_1 = torch.randint(0, 7, (30, LENGTH), generator=torch.manual_seed(0))
    batch = cwdfm.MixturePath(source, schedule).sample(x_1, torch.linspace(0, 1, 30))
    logits = torch.zeros(30, LENGTH, source.num_tokens, requires_grad=True)
    value = loss(logits, batch, schedule)
    assert value.shape == ()
    assert bool(torch.isfinite(value))
    terms = loss(logits, batch, schedule, per_token=True)
    assert terms.shape == x_1.shape
    torch.testing.assert_close(terms.mean(), value)
    assert bool((terms[~loss.needed(batch)] == 0).all())
    (gradient,) = torch.autograd.grad(value, logits)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient.abs().sum()) > 0
    # one gradient step reduces the loss
    assert float(loss((logits - 0.1 * gradient).detach(), batch, schedule)) < value.item()


SCHEDULES = examples(cwdfm.Schedule)


@pytest.mark.parametrize(
    ("solver", "schedule"),
    [
        *((solver, SCHEDULES[0]) for solver in examples(cwdfm.Solver)),
        *((cwdfm.Euler(), schedule) for schedule in SCHEDULES[1:]),
    ],
    ids=str,
)
@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_solvers(solver: cwdfm.Solver, source: cwdfm.Source, schedule: cwdfm.Schedule) -> None:
    if isinstance(solver, MASK_ONLY) and isinstance(source, cwdfm.UniformSource):
        with pytest.raises(cwdfm.InputError, match="use a MaskSource"):
            cwdfm.sample(SmallModel(7), source, schedule, solver, shape=(2, 3), steps=2)
        return
    prompt = torch.full((LENGTH,), 3)
    fixed = torch.zeros(LENGTH, dtype=torch.bool)
    fixed[[0, 5]] = True

    model = SmallModel(source.num_tokens)
    given: dict[str, Any] = {"shape": (16, LENGTH), "steps": 10, "prompt": prompt, "fixed": fixed}
    tokens = cwdfm.sample(model, source, schedule, solver, **given).tokens
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < source.vocab_size, "a mask id leaked"
    assert bool((tokens[:, fixed] == 3).all())
    # stepping manually gives the same samples
    state = solver.init(source, torch.arange(16), LENGTH, prompt=prompt, fixed=fixed)
    grid = cwdfm.time_grid(schedule, 10).tolist()
    for t, t_next in itertools.pairwise(grid):
        before = state.tokens
        state, info = solver.step(model, source, schedule, state, t, t_next)
        assert torch.equal(before != state.tokens, info.forward | info.backward)
    assert torch.equal(state.tokens, tokens)
    with pytest.raises(cwdfm.InputError, match=r"0 <= t < t_next <= 1, got t=0\.5, t_next=0\.5"):
        solver.step(model, source, schedule, state, 0.5, 0.5)
