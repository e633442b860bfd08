"""Block diffusion: the attention mask, three ways to the same logits, input errors."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cwdfm
from cwdfm.baselines.bd3lm.method import BlockDiffusion, ParallelBlocks
from cwdfm.baselines.bd3lm.objective import BlockObjective
from cwdfm.baselines.bd3lm.solver import BlockSolver
from cwdfm.baselines.left_to_right import CachedModel
from cwdfm.method.base import DataBatch, SampleRequest
from cwdfm.model import attention
from cwdfm.model.attention import (
    BlockDiffusionAttention,
    KVCache,
    dense_block_diffusion_mask,
    flex_mask_mod,
)
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.transformer import DiT
from tests.support.blocks import CPU, LINEAR, called, method, network, plain_logits, tokens
from tests.support.cases import slow

# The mask


@pytest.mark.parametrize(("length", "block"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6), (10, 5)])
def test_mask_follows_its_definition(length: int, block: int) -> None:
    mask = dense_block_diffusion_mask(length, block, CPU)
    asked = flex_mask_mod(length, block)
    zero = torch.tensor(0)
    for query, key in product(range(2 * length), repeat=2):
        noised = (query < length, key < length)
        blocks = (query % length // block, key % length // block)
        match noised:
            case (True, True):
                seen = blocks[0] == blocks[1]
            case (True, False):
                seen = blocks[0] > blocks[1]
            case (False, True):
                seen = False
            case _:
                seen = blocks[0] >= blocks[1]
        assert bool(mask[query, key]) == seen, (query, key)
        assert bool(asked(zero, zero, torch.tensor(query), torch.tensor(key))) == seen
    assert bool(mask.diagonal().all()), "a row without a key has no softmax"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("length", "block"), [(6, 2), slow(64, 4), (150, 3), slow(192, 16)])
def test_flex_attention_equals_dense_attention(
    length: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths with and without multiples of the tile size 128; uncompiled, for the CPU."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex.flex_attention)
    mixed = attention._flex_attention(length, block, CPU)
    tiles = mixed.args[0].to_dense()[0, 0].bool()  # type: ignore[attr-defined]
    mask = dense_block_diffusion_mask(length, block, CPU)
    full = F.pad(mask, (0, 128 * tiles.shape[1] - 2 * length, 0, 128 * len(tiles) - 2 * length))
    assert torch.equal(tiles, full.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).any(3).any(1))
    q, k, v = torch.randn(3, 2, 2, 2 * length, 16, generator=torch.manual_seed(0)).unbind(0)
    dense = attention.block_diffusion_attention(length, block, CPU)
    torch.testing.assert_close(mixed(q, k, v), dense(q, k, v), atol=1e-5, rtol=1e-4)
    # without a fused kernel the dense mask is used
    assert torch.equal(mixed(q.double(), k.double(), v.double()), dense(*map(_double, (q, k, v))))
    narrow = [x[..., :8] for x in (q, k, v)]
    assert torch.equal(mixed(*narrow), dense(*narrow))


def _double(x: Tensor) -> Tensor:
    return x.double()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("length", "block"), [(72, 1), (96, 4), (1024, 8)])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_flex_attention_on_a_gpu(length: int, block: int, compiled: bool, half: bool) -> None:
    """Values and gradients of a network with FlexAttention and with a dense mask."""
    assert attention.FLEX
    torch.compiler.reset()  # a second length would compile dynamic shapes
    model = network(block).cuda()
    x = torch.cat([torch.full((3, length), 7), tokens(3, length)], dim=1).cuda()
    found = []
    for dense in (False, True):
        model.attention_pattern = BlockDiffusionAttention(block, dense=dense)
        model.zero_grad()
        trunk = torch.compile(model.trunk) if compiled else model.trunk
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            hidden = trunk(x, torch.zeros(3, device="cuda"))[:, :length]
            loss = model.head(hidden).float().square().mean()
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([hidden.detach().float(), *gradients])
    for flex, matrix in zip(*found, strict=True):
        assert float((flex - matrix).norm()) < (3e-2 if half else 1e-4) * float(matrix.norm())


# Three ways to the same logits


@pytest.mark.parametrize("block", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@torch.no_grad()
def test_parallel_cached_and_plain_logits_agree(block: int, double: bool) -> None:
    model, length = network(block, double=double), 12
    close: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-9} if double else {"atol": 1e-5, "rtol": 1e-5}
    x_1 = tokens(5, length)
    x_t = x_1.where(torch.rand(5, length, generator=torch.manual_seed(2)) < 0.5, 7)
    t = torch.zeros(5)
    beside = ParallelBlocks(model, x_1)(x_t, t)
    one = CachedModel(model, KVCache(length))
    for start in range(0, length, block):
        place = slice(start, start + block)
        behind = one(x_t[:, place], t)
        truth = plain_logits(model, x_1[:, :start], x_t[:, place])
        torch.testing.assert_close(behind, truth, **close)
        torch.testing.assert_close(beside[:, place], truth, **close)
        some = torch.tensor([True, False, True, True, False])
        part = one.select(some)
        torch.testing.assert_close(part(x_t[some, place], t[some]), truth[some], **close)
        assert one.select(torch.ones(5, dtype=torch.bool)) is one
        one.context = min(start, 2)
        wide = one.trunk(x_t[:, start - one.context : start + block], t)
        torch.testing.assert_close(one.head(wide[:, one.context :]), truth, **close)
        one.context = 0
        one.append(x_1[:, place])
    # control: clean tokens before a block matter, later ones do not
    other = x_1.clone()
    other[:, -block:] = (other[:, -block:] + 1) % 7
    torch.testing.assert_close(ParallelBlocks(model, other)(x_t, t), beside, **close)
    if block < length:
        other[:, :block] = (other[:, :block] + 1) % 7
        changed = ParallelBlocks(model, other)(x_t, t)
        torch.testing.assert_close(changed[:, :block], beside[:, :block], **close)
        assert float((changed - beside)[:, block:].abs().max()) > 0.01


@torch.no_grad()
def test_active_sequences_in_any_order_keep_their_context() -> None:
    """A solver may evaluate a subset of the sequences, in any order."""
    model, x_1, x_t = network(4), tokens(5, 12), torch.full((5, 12), 7)
    place = torch.tensor([4 * 12 + 9, 1 * 12 + 7, 3 * 12 + 5, 1 * 12 + 10])

    def answer(active: Tensor | None) -> Tensor:
        rows = Positions((5, 12), place, active)
        asked = (ParallelBlocks(model, x_1), cwdfm.MaskSource(7), x_t, torch.zeros(5), rows)
        return torch.cat([logits for _, logits in predict_logits(*asked)])

    torch.testing.assert_close(answer(torch.tensor([4, 1, 3])), answer(None))


# Input errors


def test_input_errors() -> None:
    way, model, asked = method(4), network(4), SampleRequest(shape=(2, 12), steps=4)
    source = cwdfm.MaskSource(7)

    objective = BlockObjective(way)
    batch = DataBatch(
        tokens(2, 10), torch.rand(2), torch.zeros(2, 10).bool(), torch.arange(2), seed=0, step=0
    )
    full = DiT(replace(model.config, attention="full"))
    untyped: Any = BlockSolver
    method_class: Any = BlockDiffusion

    def draw(network: nn.Module = model, solver: Any = None, **changes: Any) -> None:
        way.sample(network, solver, replace(asked, **changes))

    def weighted(weight: cwdfm.Weight) -> None:
        draw(solver=cwdfm.Euler(weight))

    cases: list[tuple[str, Callable[[], object]]] = [
        ("source must be a MaskSource", lambda: method_class(cwdfm.UniformSource(7), LINEAR, 4)),
        ("block must be an integer >= 1, got 0", lambda: BlockDiffusion(source, LINEAR, 0)),
        ("10 tokens .* blocks of 4: .* multiple, such as 12", lambda: draw(shape=(2, 10))),
        ("10 tokens does not divide", lambda: way.likelihood(model, tokens(2, 10))),
        ("10 tokens does not divide", lambda: objective(called(model), batch)),
        ("clip range low..high", lambda: replace(objective, low=-0.1)),
        ("clip range low..high", lambda: replace(objective, low=0.5, high=0.4)),
        ("clip range low..high", lambda: replace(objective, low=0.5, high=1.1)),
        ("clip range low..high", lambda: replace(objective, high=0.0)),
        (r"cannot sample from BlockDiffusion.*BlockSolver\(\)", lambda: draw(solver="ancestral")),
        ("inner must be a Solver", lambda: untyped("ancestral")),
        ("stop must be a data token < 7, got 7", lambda: draw(solver=BlockSolver(stop=7))),
        ("stop must be an integer >= 0", lambda: BlockSolver(stop=-1)),
        ("use boundary='cut'", lambda: weighted(cwdfm.Neighbor(1, 1.0, "circular"))),
        (
            "use boundary='cut'",
            lambda: weighted(cwdfm.Entropy() + cwdfm.Distance(1.0, 2, "circular")),
        ),
        ("on a 2-D grid", lambda: weighted(cwdfm.Neighbor(1, 1.0, "cut", (3, 4)))),
        ("batch_size must be an integer >= 1, got 0", lambda: draw(batch_size=0)),
        ("needs a DiT", lambda: draw(nn.Linear(2, 2))),
        ("blocks of 4 .*attention='block', block=4.*got.*block=3", lambda: draw(network(3))),
        ("attention='full'", lambda: way.likelihood(full, tokens(2, 12))),
        ("multiple of 3, got 4", lambda: draw(grid=torch.tensor([0.0, 1.0]))),
        ("all positions are fixed", lambda: draw(prompt=tokens(2, 12))),
    ]
    for message, call in cases:
        with pytest.raises(cwdfm.InputError, match=message):
            call()
