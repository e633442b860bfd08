"""Residual additions with adaptive norms: the fused pass against the plain expression.

The kernels run in Triton's interpreter: TRITON_INTERPRET=1 pytest this file.
"""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from cwdfm.model.transformer import DiTConfig
from cwdfm.ops import adaptive_norm as module
from cwdfm.ops import dispatch
from cwdfm.ops.adaptive_norm import CHUNK
from tests.support.cases import slow
from tests.support.gpu import COMPILED, DEVICES
from tests.support.kernels import assert_alike, interpreted, perturbed, tokens, trained
from tests.support.norms import (
    FULL,
    HALF,
    NEAR,
    NETWORKS,
    SEED,
    SHAPES,
    SMALL,
    assert_near,
    check_against_exact,
    check_dropout,
    given,
    gradients,
    kept,
)

DTYPES = [(FULL, FULL), (FULL, HALF), (HALF, HALF)]  # of residual stream and residual branch
TIMED = [(True, True), (False, True)]  # with and without a time embedding


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The compile-time options of every kernel launch; kernels run wherever they can."""
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
    """For tests that are not about chunks: the interpreter processes all rows, empty or not."""
    monkeypatch.setattr(module, "CHUNK", 4)


WIDE = (*SHAPES, (8, 1024, 768), (40, 60, 2048))
# Device, shape, dtypes, whether there is a time embedding and a residual, and dropout.
PARTIAL = (2, CHUNK + 3, 20)
QUICK = [
    *(("cpu", shape, DTYPES[0], True, True, 0.0) for shape in SHAPES[:4]),
    *(("cpu", SHAPES[3], dtypes, True, True, 0.0) for dtypes in DTYPES[1:]),
    *(("cpu", SHAPES[1], dtypes, True, False, 0.0) for dtypes in DTYPES[::2]),
    *(("cpu", SHAPES[1], DTYPES[0], False, adds, 0.0) for adds in (True, False)),
    *(("cpu", PARTIAL, DTYPES[0], *timed, p) for timed, p in zip(TIMED, (0.1, 0.9), strict=True)),
]
SLOW = [
    ("cpu", SHAPES[4], DTYPES[0], True, True, 0.0),
    *(
        ("cpu", shape, dtypes, True, True, 0.0)
        for shape in SHAPES
        if shape != SHAPES[3]
        for dtypes in DTYPES[1:]
    ),
    ("cpu", SHAPES[1], DTYPES[1], True, False, 0.0),
    *(("cpu", PARTIAL, DTYPES[0], *timed, p) for timed, p in zip(TIMED, (0.9, 0.1), strict=True)),
]
LARGE = [
    *(
        ("cuda", shape, d, *t, p)
        for shape in WIDE
        for d in DTYPES[:2]
        for t in TIMED
        for p in (0.0, 0.1)
    ),
    *(("cuda", (8, 100, 768), dtypes, True, False, 0.0) for dtypes in DTYPES),
]


@pytest.mark.parametrize(
    ("device", "shape", "dtypes", "timed", "adds", "dropout"),
    [
        *(pytest.param(*case, marks=interpreted) for case in QUICK),
        *(pytest.param(*case, marks=[interpreted, pytest.mark.slow]) for case in SLOW),
        *(pytest.param(*case, marks=COMPILED) for case in LARGE),
    ],
    ids=str,
)
def test_stream_norm_and_gradients_are_exact(
    device: str, shape: tuple[int, int, int], dtypes: tuple[torch.dtype, torch.dtype], timed: bool,
    adds: bool, dropout: float, launches: list[dict[str, Any]],
) -> None:  # fmt: skip
    x = given(shape, *dtypes, timed=timed, adds=adds, device=device)
    with torch.autocast(device, HALF, enabled=dtypes == (FULL, HALF)):
        check_against_exact(x, dropout)
    # Forward and backward, and with dropout another one, which finds out its mask.
    assert len(launches) == (3 if dropout else 2)
    assert [seen["DROPPED"] > 0 for seen in launches] == [dropout > 0] * len(launches)


@interpreted
def test_products_get_their_dtype_without_a_cast(launches: list[dict[str, Any]]) -> None:
    x = given((2, 5, 16), FULL, HALF)
    assert [out.dtype for out in x.run()] == [FULL, FULL]
    with torch.autocast("cpu", HALF):
        assert [out.dtype for out in x.run()] == [FULL, HALF]
    assert len(launches) == 2


@interpreted
def test_either_output_may_be_unused(
    launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the last residual stream of a network, for which no zero gradient is created."""
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("launches")
def test_dropout_zeroes_the_right_fraction(device: str) -> None:
    check_dropout(device)


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
@pytest.mark.slow
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.usefixtures("short_chunks")
def test_operators_pass_opcheck(timed: bool) -> None:
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


def test_plain_expression_runs_otherwise(launches: list[dict[str, Any]]) -> None:
    """In float64, for rows that are too wide, on a CPU by default, and if disabled."""
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
        torch.testing.assert_close(h, x.h + gate * F.dropout(y, 0.3))
        torch.testing.assert_close(out, x.norm(h) * (1 + scale) + shift)
    assert not launches


@interpreted
@pytest.mark.parametrize("config", NETWORKS, ids=str)
@pytest.mark.usefixtures("short_chunks", "plain_rotations")
def test_transformer_trains_as_with_plain_norms(
    config: DiTConfig, launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = perturbed(config), tokens(8, batch=2)
    fused = trained(model, model.trunk, x)
    assert len(launches) == 2 * 5  # two per block and the last
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert_alike(fused, trained(model, model.trunk, x), 1e-4)


@interpreted
@pytest.mark.parametrize("config", NETWORKS, ids=str)
@pytest.mark.usefixtures("short_chunks", "plain_rotations")
def test_dropout_is_off_in_evaluation(config: DiTConfig, launches: list[dict[str, Any]]) -> None:
    model, x, t = perturbed(replace(config, dropout=0.5)), tokens(8, batch=1), torch.tensor([0.3])
    model(x, t)
    # The first norm has no pending residual.
    assert [seen["DROPPED"] > 0 for seen in launches] == [False] + [True] * 4
    launches.clear()
    model.eval()
    state = torch.get_rng_state()
    model(x, t)
    assert not any(seen["DROPPED"] for seen in launches)
    assert torch.equal(torch.get_rng_state(), state)


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.parametrize(
    ("config", "dropout"), [(NETWORKS[0], 0.5), slow(NETWORKS[2], 0.0)], ids=str
)
@pytest.mark.usefixtures("short_chunks", "plain_rotations")
def test_compiled_in_one_graph(
    config: DiTConfig, dropout: float, launches: list[dict[str, Any]]
) -> None:
    """With the "aot_eager" backend, which calls the operators; each call draws a new seed."""
    model, x = perturbed(replace(config, depth=1, dropout=dropout)), tokens(4, batch=2)
    compiled = torch.compile(model.trunk, backend="aot_eager", fullgraph=True)
    for seed in (3, 4):
        torch.manual_seed(seed)
        plain = trained(model, model.trunk, x)
        launches.clear()
        torch.manual_seed(seed)
        assert_alike(trained(model, compiled, x), plain, 1e-5)
        assert len(launches) == 2 * 3  # two of the block and the last
    with torch.no_grad():
        first, second = (compiled(x, torch.full((2,), 0.3)) for _ in range(2))
    assert torch.equal(first, second) == (dropout == 0)


@interpreted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # same
@pytest.mark.slow
@pytest.mark.usefixtures("short_chunks", "plain_rotations")
def test_two_graphs_serve_all_blocks(launches: list[dict[str, Any]]) -> None:
    """One for the first block, which has no pending residual, and one for all others."""
    model, x = perturbed(replace(SMALL, depth=3)), tokens(4, batch=2)
    plain = trained(model, model.trunk, x)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend=counter, fullgraph=True)
    assert_alike(trained(model, model.trunk, x), plain, 1e-5)
    assert counter.frame_count == 2
