"""GELU of linear layers: the fused epilogue against the plain expression."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cwdfm.model import block
from cwdfm.model.block import linear_gelu
from cwdfm.ops import dispatch
from cwdfm.ops.dispatch import fused_gelu, onednn_gelu


def test_epilogue_runs_on_gpus_in_half_precision_without_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeTensorMode():
        half = torch.empty(2, dtype=torch.bfloat16, device="cuda")
        full, on_cpu = torch.empty(2, device="cuda"), torch.empty(2, dtype=torch.bfloat16)
    with torch.no_grad():
        assert [fused_gelu(x) for x in (half, full, on_cpu)] == [True, False, False]
    assert not fused_gelu(half)
    monkeypatch.setattr(dispatch, "MODE", "off")
    with torch.no_grad():
        assert not fused_gelu(half)


@pytest.mark.parametrize("autocast", [True, False])
def test_epilogue_matches_the_plain_expression(
    autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the operator uses the exact GELU, not the approximation: they differ by 5e-4."""
    torch.manual_seed(0)
    x, layer = torch.randn(2, 5, 16), nn.Linear(16, 64)
    if not autocast:
        x, layer = x.bfloat16(), layer.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = linear_gelu(x, layer)
        monkeypatch.setattr(block, "fused_gelu", lambda _: True)
        compiled = torch.compile(linear_gelu, backend="eager", fullgraph=True)
        for fused in (linear_gelu(x, layer), compiled(x, layer)):
            assert fused.dtype == torch.bfloat16
            torch.testing.assert_close(fused, plain, rtol=2**-7, atol=1e-3)
            assert not torch.equal(fused, plain)


def test_onednn_applies_gelu_in_float32_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 3)
    with torch.no_grad():
        supported = torch.backends.mkldnn.is_available()
        assert [onednn_gelu(each) for each in (x, x.double(), x.bfloat16())] == [supported, 0, 0]
        with torch.autocast("cpu", torch.bfloat16):
            assert not onednn_gelu(x)
        monkeypatch.setattr(dispatch, "MODE", "off")
        assert not onednn_gelu(x)
        monkeypatch.undo()
    assert not onednn_gelu(x)


@pytest.mark.parametrize("shape", [(7, 16), (2, 5, 16), (0, 16)])
def test_onednn_matches_the_tanh_approximation(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(shape), nn.Linear(16, 64)
    with torch.no_grad():
        exact = F.gelu(layer.double()(x.double()), approximate="tanh").float()
        torch.testing.assert_close(linear_gelu(x, layer.float()), exact, rtol=1e-5, atol=1e-6)
