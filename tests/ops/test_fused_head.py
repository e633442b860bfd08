"""The fused head on a CPU, with kernels in Triton's interpreter, against plain arithmetic.

The interpreter's tests run where Triton can be imported: TRITON_INTERPRET=1 pytest this file.
"""

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating, fusible_hidden
from cwdfm.model.transformer import DiT
from cwdfm.ops import dispatch, head_rows
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from cwdfm.ops.precision import CASTS, CastCache
from tests.support.cases import slow
from tests.support.kernels import interpreted, small_dit

SCHEDULE = cwdfm.Polynomial(2.0)
BELOW_ONE = 1 - 2.0**-53
SOURCES = [cwdfm.MaskSource(11), cwdfm.UniformSource(11)]
WEIGHT = cwdfm.Neighbor(2, 0.7)
LOSSES = [
    cwdfm.CrossEntropy(),
    cwdfm.CrossEntropy("masked"),
    cwdfm.NELBO(),
    cwdfm.NELBO("all"),
    cwdfm.Bregman(),
    cwdfm.ScaledCrossEntropy(WEIGHT),
    cwdfm.ScaledCrossEntropy(WEIGHT, "zero"),
    cwdfm.ScaledCrossEntropy(WEIGHT, "extended"),
    cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.5), "joint"),
]
CASES_OF_LOSS = [(source, loss) for source in SOURCES for loss in LOSSES]
CASES_OF_LOSS.append((SOURCES[0], cwdfm.Bregman("masked")))


def small_batch(source: cwdfm.Source, *, prompted: bool = False) -> cwdfm.PathSample:
    g = torch.manual_seed(1)
    x_1 = torch.randint(0, 11, (6, 12), generator=g)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    fixed[:, 0] = prompted
    t = torch.rand(6, generator=g) * 0.9
    return cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t, seed=2, fixed=fixed)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def assert_head_matches(
    loss: cwdfm.Loss, batch: cwdfm.PathSample, source: cwdfm.Source, *, per_token: bool = False
) -> None:
    """The loss and all gradients, from the head and from logits."""
    model = small_dit(source.num_tokens)
    plain = loss(model(batch.x_t, batch.t), batch, SCHEDULE, per_token=per_token)
    read = partial(loss.from_head, batch=batch, schedule=SCHEDULE, per_token=per_token)
    ours = model(batch.x_t, batch.t, read)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-9)
    factor = torch.rand(plain.shape, dtype=torch.float64)
    mine, other = (gradients(model, (factor * value).sum()) for value in (ours, plain))
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("source", "loss"), CASES_OF_LOSS, ids=str)
@pytest.mark.parametrize("prompted", [False, True])
def test_losses_from_the_head_match_the_plain_ones(
    source: cwdfm.Source, loss: cwdfm.Loss, prompted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, in chunks of 5 rows."""
    monkeypatch.setattr(head_rows, "MAX_ELEMENTS", {"cpu": 5 * 11})
    assert_head_matches(loss, small_batch(source, prompted=prompted), source)


@pytest.mark.parametrize("loss", [cwdfm.NELBO(weight=WEIGHT), cwdfm.Bregman("masked", WEIGHT)])
def test_context_weighted_bound_from_the_head_matches_the_plain_one(loss: cwdfm.Loss) -> None:
    source = SOURCES[0]
    plain = small_batch(source)
    path = cwdfm.ContextPath(source, SCHEDULE, WEIGHT)
    assert_head_matches(loss, path.sample(plain.x_1, plain.t, seed=2), source)


def test_terms_from_the_head_match_the_plain_ones() -> None:
    batch = small_batch(SOURCES[0], prompted=True)
    assert_head_matches(cwdfm.NELBO(), batch, SOURCES[0], per_token=True)


def test_head_computes_needed_rows_once_where_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which function of the head each loss calls, and with how many rows."""
    source = SOURCES[0]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    arguments: list[tuple[str, int]] = []

    for function in (head_log_prob, head_cross_entropy):

        def counted(hidden: Tensor, *rest: Any, function: Any = function) -> Any:
            arguments.append((function.__name__, len(hidden)))
            return function(hidden, *rest)

        monkeypatch.setattr(f"cwdfm.loss.prediction.{function.__name__}", counted)
    masked, all_of_them = int((~batch.revealed).sum()), batch.x_t.numel()
    assert masked < all_of_them
    for loss, pass_, rows in (
        (cwdfm.CrossEntropy("masked"), "head_cross_entropy", masked),
        (cwdfm.CrossEntropy(), "head_cross_entropy", all_of_them),
        (cwdfm.NELBO(), "head_cross_entropy", masked),
        (cwdfm.ScaledCrossEntropy(WEIGHT), "head_cross_entropy", all_of_them),
        (cwdfm.Bregman("masked"), "head_cross_entropy", masked),
        (cwdfm.Bregman(), "head_log_prob", all_of_them),  # two probabilities from one pass
    ):
        read = partial(loss.from_head, batch=batch, schedule=SCHEDULE)
        model(batch.x_t, batch.t, read)
        assert arguments == [(pass_, rows)], loss
        arguments.clear()


def test_nothing_masked_gives_zero_and_finite_gradients() -> None:
    source = SOURCES[0]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    batch = replace(batch, x_t=batch.x_1, revealed=torch.ones_like(batch.revealed))
    loss = cwdfm.NELBO()
    value = model(batch.x_t, batch.t, partial(loss.from_head, batch=batch, schedule=SCHEDULE))
    assert value.item() == 0
    assert all(bool(torch.isfinite(g).all()) for g in gradients(model, value))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # raised inside the compiler
@pytest.mark.parametrize("by_block", [slow(True), slow(False)])
def test_compiled_trunk_trains_like_the_plain_one(by_block: bool) -> None:
    """With the "aot_eager" backend, because code generation is not under test."""
    source = SOURCES[1]
    model, batch = small_dit(source.num_tokens), small_batch(source)
    read = partial(cwdfm.CrossEntropy().from_head, batch=batch, schedule=SCHEDULE)
    plain = model(batch.x_t, batch.t, read)
    before = gradients(model, plain)
    real = torch.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(real, backend="aot_eager"))
        model.compile_trunk(by_block=by_block)
    for _ in range(2):
        loss = model(batch.x_t, batch.t, read)
        torch.testing.assert_close(loss, plain)
        for mine, other in zip(gradients(model, loss), before, strict=True):
            torch.testing.assert_close(mine, other)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MODE", "on")


def test_weights_are_cast_once_while_a_model_is_evaluated() -> None:
    """Unless they change, in place or by replacement; outside, they are cast each time."""
    casts, model = CastCache(), nn.Linear(4, 3)
    weight, half = model.weight, torch.float16
    assert casts.get(weight, torch.float32).data_ptr() == weight.data_ptr()
    assert casts.get(weight, half) is not casts.get(weight, half)
    with casts.enabled():
        first = casts.get(weight, half)
        assert torch.equal(first, weight.half())
        assert not first.requires_grad
        assert casts.get(weight, half) is first
        assert casts.get(weight, torch.bfloat16).dtype == torch.bfloat16
        with casts.enabled():
            assert casts.get(weight, half) is first
        assert casts.get(weight, half) is first
        with torch.no_grad():
            weight.add_(1.0)
        assert torch.equal(casts.get(weight, half), weight.half())
        weight.data = torch.zeros(3, 4)
        assert torch.equal(casts.get(weight, half), weight.half())
        other = nn.Parameter(torch.ones(3, 4))
        assert torch.equal(casts.get(other, half), other.half())
    weight.data.fill_(7.0)  # which no version counter records
    with casts.enabled():
        assert torch.equal(casts.get(weight, half), weight.half())
    with evaluating(model):
        assert CASTS.get(weight, half) is CASTS.get(weight, half)
    assert CASTS.get(weight, half) is not CASTS.get(weight, half)


@interpreted
@pytest.mark.usefixtures("forced")
@pytest.mark.usefixtures("plain_norms", "plain_rotations")
@pytest.mark.parametrize(
    ("source", "solver"),
    [
        (SOURCES[0], cwdfm.Euler()),
        (SOURCES[1], cwdfm.Euler(cwdfm.Neighbor(1, 1.0))),
        slow(SOURCES[0], cwdfm.Euler(cwdfm.Entropy(1.0))),
        slow(SOURCES[1], cwdfm.Euler(cwdfm.Margin(1.0))),
        slow(SOURCES[0], cwdfm.TopK("entropy")),
        slow(SOURCES[0], cwdfm.EntropyBound(3.0, "confidence")),
        (SOURCES[0], cwdfm.FirstHitting(cwdfm.Entropy(2.0))),
    ],
    ids=str,
)
def test_whole_samples_match_the_plain_ones(
    source: cwdfm.Source, solver: cwdfm.Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_dit(source.num_tokens, torch.float32)
    # Without a given token all positions look alike to this model, up to rounding.
    prompt, fixed = torch.full((8,), 4), torch.arange(8) == 0
    options: dict[str, Any] = {"shape": (3, 8), "steps": 4, "prompt": prompt, "fixed": fixed}

    def draw() -> Tensor:
        return cwdfm.sample(model, source, SCHEDULE, solver, seed=5, **options).tokens

    fused = draw()
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert torch.equal(fused, draw())


Kind = TypeVar("Kind", bound=DiT)


def with_head(kind: type[Kind], source: cwdfm.Source) -> Kind:
    """A model with the weights of a small one and a different head."""
    plain = small_dit(source.num_tokens, torch.float32)
    model = kind(plain.config)
    model.load_state_dict(plain.state_dict())
    return model


@interpreted
@pytest.mark.usefixtures("forced")
def test_a_readout_that_differs_from_the_head_is_not_used() -> None:
    class Capped(DiT):
        def head(self, hidden: Tensor) -> Tensor:
            return 3 * torch.tanh(super().head(hidden) / 3)

    source, x = SOURCES[1], torch.randint(0, 11, (2, 8))
    arguments = (source, x, torch.rand(2), Positions.of(torch.ones_like(x, dtype=torch.bool)))
    assert fusible_hidden(with_head(DiT, source), *arguments) is not None
    assert fusible_hidden(with_head(Capped, source), *arguments) is None


@interpreted
@pytest.mark.usefixtures("forced")
def test_readout_is_compared_with_the_head_again_after_training() -> None:
    class Scaled(DiT):
        scale = 1.0

        def head(self, hidden: Tensor) -> Tensor:
            return self.scale * super().head(hidden)

    source, x = SOURCES[1], torch.randint(0, 11, (2, 8))
    model = with_head(Scaled, source)
    arguments = (source, x, torch.rand(2), Positions.of(torch.ones_like(x, dtype=torch.bool)))
    assert fusible_hidden(model, *arguments) is not None
    model.scale = 3.0
    with torch.no_grad():
        model.readout.weight.add_(0.1)
    assert fusible_hidden(model, *arguments) is None
