"""Additions to the stream and adaptive norms: the fused pass against the plain expression.

The kernels run in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

import os
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops import adaptive_norm as module
from cwdfm.ops import dispatch
from cwdfm.ops.adaptive_norm import CHUNK, Residual, add_norm
from tests.ops.test_rotary import trained

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)
# B, N, D: one token; tiles and chunks that are full, that are not; widths that fill no block.
SHAPES = [(2, 1, 8), (3, 7, 96), (2, CHUNK, 128), (2, CHUNK + 5, 130), (1, 3, 384)]
FULL, HALF = torch.float32, torch.bfloat16
DTYPES = [(FULL, FULL), (FULL, HALF), (HALF, HALF)]  # of the stream, of what is added
# How far a result may be from the exact one, of its length: float32's sums, one rounding to half.
SEED = 5
NEAR = {FULL: 3e-6, HALF: 2**-8}


class Given(NamedTuple):
    """What `add_norm` is asked for."""

    h: Tensor
    y: Tensor | None
    gate: Tensor | None
    norm: nn.LayerNorm
    shift: Tensor | None
    scale: Tensor | None

    def to(self, dtype: torch.dtype) -> "Given":
        h = self.h.detach().to(dtype).requires_grad_()
        y, gate, shift, scale = (
            None if v is None else v.detach().to(dtype).requires_grad_()
            for v in (self.y, self.gate, self.shift, self.scale)
        )
        return Given(h, y, gate, deepcopy(self.norm).to(dtype), shift, scale)

    def leaves(self) -> list[Tensor]:
        every = (self.h, self.y, self.gate, self.norm.weight, self.shift, self.scale)
        return [v for v in every if v is not None]

    def run(self, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        addition = None if self.y is None else Residual(self.y, self.gate)
        return add_norm(self.h, addition, self.norm, self.shift, self.scale, dropout)


def given(
    shape: tuple[int, int, int],
    stream: torch.dtype = FULL,
    half: torch.dtype = FULL,
    *,
    timed: bool = True,
    adds: bool = True,
    device: str = "cpu",
) -> Given:
    """A stream in one dtype, what is added and modulates it in another; vectors as parts of one."""
    batch, _, width = shape
    g = torch.manual_seed(0)

    def random(*size: int, dtype: torch.dtype = half) -> Tensor:
        return torch.randn(size, generator=g).to(device, dtype)

    h, y = 3 + random(*shape, dtype=stream), random(*shape)
    norm = nn.LayerNorm(width, bias=False, device=device, dtype=stream)
    norm.weight.data += random(width, dtype=stream) / 2
    shift, scale, gate = random(batch, 1, 3 * width).requires_grad_().chunk(3, dim=-1)
    h.requires_grad_(), y.requires_grad_()
    if not timed:
        return Given(h, y if adds else None, None, norm, None, None)
    return Given(h, y if adds else None, gate if adds else None, norm, shift, scale)


def assert_near(mine: Tensor, exact: Tensor, near: float) -> None:
    assert mine.shape == exact.shape
    error = float((mine.double() - exact).detach().norm())
    assert error <= near * float(exact.detach().norm()), (error, near)


def gradients(x: Given, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of a random function of the outputs, the same one in all dtypes."""
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(out.shape, generator=g).to(HALF).to(out) for out in outputs]
    return torch.autograd.grad(
        outputs, x.leaves(), weights, allow_unused=True, materialize_grads=True
    )


def check_against_exact(x: Given, dropout: float = 0.0) -> None:
    """Stream, norm and all gradients against the plain expression in float64.

    With dropout, of what it leaves: seen by what becomes of ones under the same seed.
    """
    double = x.to(torch.float64)
    factor = kept(x, dropout) if dropout else 1.0
    torch.manual_seed(SEED)
    mine = x.run(dropout)
    exact = double._replace(y=None if double.y is None else double.y * factor).run()
    assert mine[0].dtype == x.h.dtype
    # A stream in half precision is rounded before its norm is taken, as a plain sum would be.
    near = {k: v * 4 for k, v in NEAR.items()} if x.h.dtype == HALF else NEAR
    for a, b in zip(mine, exact, strict=True):
        assert_near(a, b, near[a.dtype])
    grads = gradients(x, mine), gradients(double, exact)
    for leaf, a, b in zip(x.leaves(), *grads, strict=True):
        assert a.dtype == leaf.dtype
        assert_near(a, b, near[HALF if HALF in (a.dtype, mine[1].dtype) else FULL])


def kept(x: Given, dropout: float) -> Tensor:
    """What dropout multiplies by, [B, N, D]."""
    plain = Given(torch.zeros_like(x.h), torch.ones_like(x.h), None, x.norm, None, None)
    torch.manual_seed(SEED)
    return plain.run(dropout)[0].detach()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every launch of a kernel was compiled for; kernels are used wherever they can be."""
    seen: list[dict[str, Any]] = []
    options = module._options

    def recorded(*arguments: Any) -> dict[str, Any]:
        seen.append(options(*arguments))
        return seen[-1]

    monkeypatch.setattr(module, "_options", recorded)
    monkeypatch.setattr(dispatch, "MODE", "on")
    return seen


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about chunks: the interpreter goes through all rows, empty or not."""
    monkeypatch.setattr(module, "CHUNK", 4)


@interpreted
@pytest.mark.parametrize(
    ("shape", "timed", "adds", "dtypes"),
    [
        *((shape, True, True, dtypes) for shape in SHAPES for dtypes in DTYPES),
        *((SHAPES[1], True, False, dtypes) for dtypes in DTYPES),
        *((SHAPES[1], False, adds, DTYPES[0]) for adds in (True, False)),
    ],
    ids=str,
)
def test_stream_norm_and_gradients_are_exact(
    shape: tuple[int, int, int],
    timed: bool,
    adds: bool,
    dtypes: tuple[torch.dtype, torch.dtype],
    launches: list[dict[str, Any]],
) -> None:
    x = given(shape, *dtypes, timed=timed, adds=adds)
    with torch.autocast("cpu", HALF, enabled=dtypes == (FULL, HALF)):
        check_against_exact(x)
    assert len(launches) == 2  # there and back; the exact one has none
    assert launches[0] == launches[1]
    assert launches[0]["GATED"] == (timed and adds)
    assert launches[0]["DROPPED"] == 0


@interpreted
def test_products_get_their_dtype_without_a_cast(launches: list[dict[str, Any]]) -> None:
    x = given((2, 5, 16), FULL, HALF)
    assert [out.dtype for out in x.run()] == [FULL, FULL]
    with torch.autocast("cpu", HALF):
        assert [out.dtype for out in x.run()] == [FULL, HALF]
    assert len(launches) == 2


@interpreted
def test_either_output_may_go_unread(
    launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last stream of a network does, for which no gradient of zeros is made."""
    x = given((2, 5, 16))
    double, without = x.to(torch.float64), []
    backward = module._add_norm_backward

    def watched(*arguments: Any) -> Any:
        without.append(arguments[8] is None)
        return backward(*arguments)

    monkeypatch.setattr(module, "_add_norm_backward", watched)
    for read in (0, 1):
        mine, exact = (gradients(v, (v.run()[read],)) for v in (x, double))
        for a, b in zip(mine, exact, strict=True):
            assert_near(a, b, NEAR[FULL])
    assert without == [False, True]


def check_dropout(device: str) -> None:
    """A share of p is left out, independently; the rest makes up for it."""
    p, x = 0.3, given((3, 50, 130), device=device)
    factor = kept(x, p)
    lost = factor == 0
    assert torch.equal(
        factor[~lost], torch.full_like(factor[~lost], 1 / (1 - round(p * 2**24) / 2**24))
    )
    # Five standard deviations: a false alarm in a million; the seed is fixed.
    bound = 5 * (p * (1 - p) / lost.numel()) ** 0.5
    assert abs(float(lost.double().mean()) - p) < bound
    # Neighbours along each axis, and words of one counter, are left out together as chance has it.
    flat = lost.flatten(0, 1)
    bound = 5 * (p**2 * (1 - p**2) / lost.numel()) ** 0.5 * 1.1  # a row or column fewer
    for a, b in ((flat[1:], flat[:-1]), (flat[:, 1:], flat[:, :-1]), (flat[:, 4:], flat[:, :-4])):
        assert abs(float((a & b).double().mean()) - p**2) < bound
    again = kept(x, p)
    assert torch.equal(again, factor)
    plain = Given(torch.zeros_like(x.h), torch.ones_like(x.h), None, x.norm, None, None)
    assert not torch.equal(plain.run(p)[0], factor)  # the generator has moved on


@interpreted
def test_dropout_leaves_out_its_share(launches: list[dict[str, Any]]) -> None:
    check_dropout("cpu")


@interpreted
@pytest.mark.parametrize("dropout", [0.1, 0.9])
@pytest.mark.parametrize("timed", [True, False])
def test_dropout_is_the_same_on_the_way_back(
    dropout: float, timed: bool, launches: list[dict[str, Any]]
) -> None:
    check_against_exact(given((2, CHUNK + 3, 20), timed=timed), dropout)
    assert [seen["DROPPED"] > 0 for seen in launches] == [True] * 3


@interpreted
def test_dropout_does_not_depend_on_tiles(
    launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = given((2, 11, 20))
    factors = []
    for rows in (1, 2, 8):
        monkeypatch.setattr(module, "ROWS_FORWARD", rows)
        factors.append(kept(x, 0.4))
    assert torch.equal(factors[0], factors[1])
    assert torch.equal(factors[0], factors[2])


@interpreted
def test_vectors_and_gradients_may_come_in_any_layout(launches: list[dict[str, Any]]) -> None:
    x = given((3, 6, 10))
    assert x.y is not None
    assert x.gate is not None
    apart = torch.stack([x.gate, x.gate], dim=-1)[..., 0]  # every second element
    turned = x._replace(
        h=x.h.transpose(0, 1).contiguous().transpose(0, 1),
        y=x.y.transpose(1, 2).contiguous().transpose(1, 2),
        gate=apart,
    )
    constant = torch.ones(()).expand(3, 6, 10)
    outputs, others = turned.run(), x.run()
    grads = torch.autograd.grad(outputs, turned.leaves(), [constant] * 2)
    other_grads = torch.autograd.grad(others, x.leaves(), [constant.contiguous()] * 2)
    for a, b in zip((*outputs, *grads), (*others, *other_grads), strict=True):
        assert torch.equal(a, b)


@interpreted
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.usefixtures("short_chunks")
def test_operators_are_what_they_tell_the_compiler(timed: bool) -> None:
    x = given((2, 5, 12), timed=timed).to(FULL)
    seed = torch.tensor([3])
    arguments = (x.h, x.y, x.gate, x.norm.weight, x.shift, x.scale, seed, 0.5, 1e-5, HALF)
    torch.library.opcheck(torch.ops.cwdfm.add_norm, arguments)
    with torch.no_grad():
        out_h, out_x, mean, rstd = torch.ops.cwdfm.add_norm(*arguments)
        saved = (out_h, x.y, x.gate, x.norm.weight, x.scale, seed, mean, rstd)
        for d_h in (out_h, None):
            back = tuple(None if v is None else v.detach() for v in saved)
            rest = (d_h, out_x, 0.5, HALF)
            torch.library.opcheck(torch.ops.cwdfm.add_norm_backward, (*back, *rest))


def test_elsewhere_the_plain_expression_runs(launches: list[dict[str, Any]]) -> None:
    """In float64; wider than a program's registers; on a CPU, unless asked for; if told so."""
    wide = (1, 2, dispatch.MAX_NORM_WIDTH + 1)
    for mode, shape, dtype in (
        ("on", (2, 5, 8), torch.float64),
        ("on", wide, FULL),
        ("auto", (2, 5, 8), FULL),
        ("off", (2, 5, 8), FULL),
    ):
        dispatch.MODE = mode
        x = given(shape, dtype, dtype)
        y, gate, shift, scale = cast(list[Tensor], [x.y, x.gate, x.shift, x.scale])
        torch.manual_seed(SEED)
        h, out = x.run(0.3)
        torch.manual_seed(SEED)
        assert torch.equal(h, x.h + gate * F.dropout(y, 0.3))
        assert torch.equal(out, x.norm(h) * (1 + scale) + shift)
    assert not launches


SMALL = DiTConfig(11, width=24, depth=2, heads=2, conditioning=8, dropout=0.0)
NETWORKS = [
    SMALL,
    replace(SMALL, time="zero"),
    replace(SMALL, time="none", attention="causal"),
    replace(SMALL, attention="block", block=4),
]


def moved(config: DiTConfig) -> DiT:
    """A transformer in which every part takes effect."""
    torch.manual_seed(0)
    model = DiT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tokens(batch: int = 3, length: int = 16) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(2))


@interpreted
@pytest.mark.parametrize("config", NETWORKS, ids=str)
@pytest.mark.usefixtures("short_chunks")
def test_transformer_trains_as_with_plain_norms(
    config: DiTConfig, launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = moved(config)
    fused = trained(model, model.trunk, tokens())
    assert len(launches) == 2 * 5  # two a block and the last
    monkeypatch.setattr(dispatch, "MODE", "off")
    for mine, other in zip(fused, trained(model, model.trunk, tokens()), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@interpreted
@pytest.mark.parametrize("config", NETWORKS, ids=str)
def test_dropout_is_off_in_evaluation(config: DiTConfig, launches: list[dict[str, Any]]) -> None:
    model, t = moved(replace(config, dropout=0.5)), torch.full((3,), 0.3)
    model(tokens(), t)
    # The first norm has nothing added to it yet.
    assert [seen["DROPPED"] > 0 for seen in launches] == [False] + [True] * 4
    launches.clear()
    model.eval()
    state = torch.get_rng_state()
    model(tokens(), t)
    assert not any(seen["DROPPED"] for seen in launches)
    assert torch.equal(torch.get_rng_state(), state)


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's, of its own doings
@pytest.mark.parametrize(("config", "dropout"), [(NETWORKS[0], 0.5), (NETWORKS[2], 0.0)], ids=str)
@pytest.mark.usefixtures("short_chunks")
def test_compiled_in_one_graph(
    config: DiTConfig, dropout: float, launches: list[dict[str, Any]]
) -> None:
    """The front end alone ("aot_eager"), which calls the operators; a seed is drawn every time."""
    model, x = moved(replace(config, dropout=dropout)), tokens(2, 4)
    compiled = torch.compile(model.trunk, backend="aot_eager", fullgraph=True)
    for seed in (3, 4):
        torch.manual_seed(seed)
        plain = trained(model, model.trunk, x)
        launches.clear()
        torch.manual_seed(seed)
        for mine, other in zip(trained(model, compiled, x), plain, strict=True):
            torch.testing.assert_close(mine, other)
        assert len(launches) == 10
    with torch.no_grad():
        first, second = (compiled(x, torch.full((2,), 0.3)) for _ in range(2))
    assert torch.equal(first, second) == (dropout == 0)


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's, of its own doings
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # likewise
@pytest.mark.usefixtures("short_chunks")
def test_two_graphs_serve_all_blocks(launches: list[dict[str, Any]]) -> None:
    """One for the first, which has nothing pending, one for all the others."""
    model, x = moved(replace(SMALL, depth=3)), tokens(2, 4)
    plain = trained(model, model.trunk, x)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend=counter, fullgraph=True)
    for mine, other in zip(trained(model, model.trunk, x), plain, strict=True):
        torch.testing.assert_close(mine, other)
    assert counter.frame_count == 2
