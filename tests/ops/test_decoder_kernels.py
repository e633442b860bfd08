"""The kernels of a decoder and of its logits, against plain expressions."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cwdfm
from cwdfm.model.attention import KVCache
from cwdfm.model.decoder import Decoder, DecoderConfig
from cwdfm.ops import decoder as ops
from cwdfm.ops import dispatch
from cwdfm.weight.entropy import prediction_entropy
from tests.support.cases import slow
from tests.support.kernels import interpreted

pytestmark = interpreted


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(dispatch, "MODE", "on")
    with torch.no_grad():
        yield


@pytest.mark.parametrize("width", [48, 64])
def test_residual_and_norm(width: int) -> None:
    torch.manual_seed(0)
    norm = nn.RMSNorm(width, 1e-5)
    nn.init.normal_(norm.weight)
    h, y = torch.randn(2, 3, width), torch.randn(2, 3, width)
    for added in (y, None):
        total, x = ops.add_rms_norm(h, added, norm)
        plain = h if added is None else h + added
        torch.testing.assert_close(total, plain)
        torch.testing.assert_close(x, norm(plain))


def test_gated_product() -> None:
    x = torch.randn(2, 3, 2 * 1100, generator=torch.manual_seed(0))
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(ops.silu_product(x), F.silu(gate) * up)


def test_rotation_by_positions_of_each_sequence() -> None:
    torch.manual_seed(0)
    packed = torch.randn(2, 5, 8, 6)
    heads = packed[:, :, :6]  # strided, as queries and keys in qkv are
    angle = torch.randn(2, 5, 3).repeat(1, 1, 2)
    rotated = ops.rotate_heads(heads, angle.cos(), angle.sin())
    pairs = torch.complex(heads[..., :3], heads[..., 3:])
    expected = pairs * torch.polar(torch.ones(2, 5, 1, 3), angle[:, :, None, :3])
    torch.testing.assert_close(rotated, torch.cat([expected.real, expected.imag], dim=-1))


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 6), (8, 8, 8), (3, 1, 10)])
def test_rotation_into_a_cache(heads: int, kv_heads: int, width: int) -> None:
    """Queries and keys as by `rotate_heads`; columns of the cache that are not named are kept."""
    torch.manual_seed(0)
    qkv = torch.randn(2, 5, heads + 2 * kv_heads, width)
    angle = torch.randn(2, 5, width // 2).repeat(1, 1, 2)
    rotation, place = (angle.cos(), angle.sin()), torch.tensor([3, 4, 5, 6, 1])
    cache = torch.randn(2, 2, kv_heads, 9, width)
    keys, values = cache.clone()
    queries = ops.rotate_and_store(qkv, *rotation, place, keys, values)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=2)
    dispatch.MODE = "off"
    torch.testing.assert_close(queries, ops.rotate_heads(q, *rotation))
    expected = cache.clone()
    expected[0][:, :, place] = ops.rotate_heads(k, *rotation).transpose(1, 2)
    expected[1][:, :, place] = v.transpose(1, 2)
    torch.testing.assert_close(torch.stack([keys, values]), expected)


def test_softcap() -> None:
    raw = 40 * torch.randn(3, 700, generator=torch.manual_seed(0))
    expected = 30 * (raw.double() / 30).tanh()
    logits, scaled = ops.softcap(raw.clone(), 30.0, 0.8)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scaled.double(), expected / 0.8, rtol=1e-5, atol=1e-5)


def test_summary_of_logits() -> None:
    """Also with tokens of probability zero, in blocks without any others, and certain rows."""
    logits = 5 * torch.randn(4, 10_000, generator=torch.manual_seed(0))
    logits[1, :9000] = -torch.inf
    logits[2] = -torch.inf
    logits[2, 5000] = 3.0
    entropy, confidence = ops.row_summary(logits[:, :9999])
    expected = logits[:, :9999].double()
    torch.testing.assert_close(entropy.double(), prediction_entropy(expected), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(confidence.double(), expected.softmax(-1).amax(-1))


@pytest.mark.parametrize("kept", [None, [2, 3]])
def test_a_decoder_with_kernels(kept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = Decoder(DecoderConfig(20, 32, 2, 4, 2, 8, 48, qk_norm=True)).eval()
    ids, position = torch.randint(20, (2, 6)), torch.arange(6).expand(2, -1)
    keep = None if kept is None else torch.tensor(kept)
    found = network(ids, position, None, None, keep)
    monkeypatch.setattr(dispatch, "MODE", "off")
    expected = network(ids, position, None, None)
    torch.testing.assert_close(found, expected if keep is None else expected[:, keep])


def test_a_decoder_with_kernels_and_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some columns are evaluated again after all of them, as in a step with the cache "dual"."""
    torch.manual_seed(0)
    network = Decoder(DecoderConfig(20, 32, 2, 4, 2, 8, 48)).eval()
    ids, position = torch.randint(19, (2, 6)), torch.arange(6).expand(2, -1)
    place = torch.tensor([2, 3])

    def steps() -> tuple[torch.Tensor, torch.Tensor]:
        cache = KVCache(6, end=6, place=torch.arange(6))
        first = network(ids, position, None, cache)
        cache.place = place
        return first, network(ids[:, place] + 1, position[:, place], None, cache)

    found = steps()
    monkeypatch.setattr(dispatch, "MODE", "off")
    torch.testing.assert_close(found, steps())


@pytest.mark.parametrize("weight", [cwdfm.Entropy(2.0), slow(cwdfm.Confidence(3.0))])
def test_weights_of_summaries(weight: cwdfm.Weight, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with the kernel's statistics moves the same tokens."""
    logits = torch.randn(8, 8, 6, generator=torch.manual_seed(0))
    source, solver = cwdfm.MaskSource(5), cwdfm.Euler(weight=weight)
    state = solver.init(source, torch.arange(8), 8)

    def tokens() -> torch.Tensor:
        step = solver.step(lambda x, t: logits, source, cwdfm.Linear(), state, 0.0, 0.3)
        return step[0].tokens

    found = tokens()
    monkeypatch.setattr(dispatch, "MODE", "off")
    assert torch.equal(found, tokens())
    assert 0 < int((found < 5).sum()) < 64
