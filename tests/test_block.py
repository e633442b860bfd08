"""Block diffusion: its mask, its cache, its likelihood, its law and its loss, against the truth.

The truth is the network called on [clean blocks before, noised block], under a mask written out
here: neither the two halves of training nor the cache of sampling have a part in it.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

import cwdfm
from cwdfm.method.base import Batch, DrawRequest
from cwdfm.method.block import BlockDiffusion, BlockObjective, BlockSolver
from cwdfm.method.block.network import Beside, OneBlock
from cwdfm.method.block.objective import clip_ranges
from cwdfm.method.block.sampling import block_grids, reach
from cwdfm.method.without import Without
from cwdfm.model import halves
from cwdfm.model.attention import Attention, Cache, Causal, Halves, Mix
from cwdfm.model.dit import DiT, DiTConfig
from cwdfm.model.halves import halves_mask, mask_mod
from cwdfm.model.predict import predict_rows
from cwdfm.model.rows import Rows
from cwdfm.solver import FirstHitting
from tests.exact import Array, Chain
from tests.exact import State as Tokens
from tests.stats import assert_differs, assert_follows, histogram

LINEAR = cwdfm.Linear()
CPU = torch.device("cpu")


def method(block: int, vocab: int = 7) -> BlockDiffusion:
    return BlockDiffusion(cwdfm.MaskSource(vocab), LINEAR, block)


def network(block: int, vocab: int = 7, *, double: bool = False, seed: int = 0) -> DiT:
    """A random network in which every layer takes effect."""
    size = DiTConfig(vocab + 1, width=32, depth=2, heads=2, conditioning=16, dropout=0.1)
    config = method(block, vocab).network(size)
    torch.manual_seed(seed)
    # The time's layers compute in float32: a network of doubles goes without.
    model = DiT(replace(config, time="none") if double else config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.double() if double else model


def tokens(batch: int, length: int, vocab: int = 7) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.manual_seed(1))


@dataclass(frozen=True)
class BlockCausal(Attention):
    """Everyone sees its own block and those before."""

    block: int

    def mix(self, layer: int, length: int, device: torch.device) -> Mix:
        rows = [[j // self.block <= i // self.block for j in range(length)] for i in range(length)]
        return partial(F.scaled_dot_product_attention, attn_mask=torch.tensor(rows, device=device))


@torch.no_grad()
def plain_logits(model: DiT, before_BP: Tensor, noised_BL: Tensor) -> Tensor:
    """Logits [B, L, V + 1] of a block, by reading all again."""
    x_BM = torch.cat([before_BP, noised_BL], dim=1)
    sight = BlockCausal(model.config.block)
    hidden = model.trunk(x_BM, torch.zeros(len(x_BM)), sight)[:, before_BP.shape[1] :]
    return model.head(hidden)


# The mask


@pytest.mark.parametrize(("length", "block"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6), (10, 5)])
def test_the_mask_is_its_definition(length: int, block: int) -> None:
    mask = halves_mask(length, block, CPU)
    asked = mask_mod(length, block)
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
@pytest.mark.parametrize(("length", "block"), [(6, 2), (64, 4), (150, 3), (192, 16)])
def test_flex_attention_is_the_matrix(
    length: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths that are and are not multiples of its tiles of 128; uncompiled, as a CPU can."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(halves, "_compiled", lambda: flex.flex_attention)
    mixed = halves._flexible(length, block, CPU)
    tiles = mixed.args[0].to_dense()[0, 0].bool()  # type: ignore[attr-defined]
    mask = halves_mask(length, block, CPU)
    full = F.pad(mask, (0, 128 * tiles.shape[1] - 2 * length, 0, 128 * len(tiles) - 2 * length))
    assert torch.equal(tiles, full.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).any(3).any(1))
    q, k, v = torch.randn(3, 2, 2, 2 * length, 16, generator=torch.manual_seed(0)).unbind(0)
    dense = halves.halves_mix(length, block, CPU)
    torch.testing.assert_close(mixed(q, k, v), dense(q, k, v), atol=1e-5, rtol=1e-4)
    # no fused kernel for these: the matrix, without being asked
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
    """Values and gradients of a network with FlexAttention and with the matrix."""
    assert halves.FLEX
    torch.compiler.reset()  # a second length would be compiled for any, which FlexAttention refuses
    model = network(block).cuda()
    x = torch.cat([torch.full((3, length), 7), tokens(3, length)], dim=1).cuda()
    found = []
    for dense in (False, True):
        model.sight = Halves(block, dense=dense)
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
def test_halves_and_cache_and_reading_all_again_agree(block: int, double: bool) -> None:
    model, length = network(block, double=double), 12
    close: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-9} if double else {"atol": 1e-5, "rtol": 1e-5}
    x_1 = tokens(5, length)
    x_t = x_1.where(torch.rand(5, length, generator=torch.manual_seed(2)) < 0.5, 7)
    t = torch.zeros(5)
    beside = Beside(model, x_1)(x_t, t)
    one = OneBlock(model, Cache(length))
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
        one.remember(x_1[:, place])
    # a control: clean tokens that come later change nothing, those before do
    other = x_1.clone()
    other[:, -block:] = (other[:, -block:] + 1) % 7
    torch.testing.assert_close(Beside(model, other)(x_t, t), beside, **close)
    if block < length:
        other[:, :block] = (other[:, :block] + 1) % 7
        changed = Beside(model, other)(x_t, t)
        torch.testing.assert_close(changed[:, :block], beside[:, :block], **close)
        assert float((changed - beside)[:, block:].abs().max()) > 0.01


# Likelihood


def test_blocks_of_one_token_have_the_autoregressive_likelihood() -> None:
    """By reading one token after the other; and as the bound would have it, drawn.

    The bound of one token is integral dkappa/(1 - kappa) P(masked) (-log p) = -log p. Within 5
    standard errors: a false alarm in 2 million.
    """
    model, length = network(1, double=True), 6
    x_1 = tokens(20, length)
    truth = torch.zeros(20, dtype=torch.float64)
    with torch.no_grad():
        for k in range(length):
            x = torch.cat([x_1[:, :k], torch.full((20, 1), 7)], dim=1)
            logits = model.head(model.trunk(x, torch.zeros(20), Causal())[:, -1])[:, :7]
            truth -= logits.log_softmax(-1).gather(1, x_1[:, k : k + 1])[:, 0]
    found = method(1).likelihood(model, x_1, batch_size=7)
    torch.testing.assert_close(found.nats_B, truth, rtol=1e-9, atol=0.0)
    assert (found.exact, found.standard_error, found.tokens) == (True, 0.0, 120)
    bound = cwdfm.elbo(
        Beside(model, x_1), cwdfm.MaskSource(7), LINEAR, x_1, draws=400, batch_size=20
    )
    exact = float(truth.sum()) / x_1.numel()
    assert bound.nats_per_token == pytest.approx(exact, abs=5 * bound.standard_error)
    assert bound.standard_error < 0.01 * exact


def test_one_block_is_the_masked_diffusion() -> None:
    """The same weights with full attention, under `cwdfm.elbo`: the same estimate."""
    length = 12
    model = network(length, double=True)
    full = DiT(replace(model.config, attention="full", block=0)).double().eval()
    full.load_state_dict(model.state_dict())
    x_1 = tokens(9, length)
    ours = method(length).likelihood(model, x_1, seed=3, draws=8, batch_size=4)
    theirs = cwdfm.elbo(full, cwdfm.MaskSource(7), LINEAR, x_1, seed=3, draws=8)
    torch.testing.assert_close(ours.nats_B, theirs.nats_B, rtol=1e-9, atol=1e-9)
    assert ours.standard_error == pytest.approx(theirs.standard_error, rel=1e-9)
    assert ours.nats_per_token == pytest.approx(theirs.nats_per_token, rel=1e-9)


def test_the_bound_is_the_sum_of_the_blocks_bounds() -> None:
    """Against quadrature over kappa with all x_t enumerated. 5 standard errors: 1 in 2 million."""
    model, x_1 = network(2, 3, double=True), (0, 2, 1, 1)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    truth = 0.0
    for k in (0, 2):
        before = torch.tensor([x_1[:k]], dtype=torch.int64)
        cost = {}  # what the masked tokens of each state cost
        for masked in product([False, True], repeat=2):
            x = torch.tensor([[3 if m else x_1[k + i] for i, m in enumerate(masked)]])
            p = plain_logits(model, before, x)[0, :, :3].log_softmax(-1)
            cost[masked] = -sum(float(p[i, x_1[k + i]]) for i in range(2) if masked[i])
        for node, weight in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
            for masked, nats in cost.items():
                chance = (1 - node) ** sum(masked) * node ** (2 - sum(masked))
                truth += weight * chance * nats / (1 - node)
    many = torch.tensor([x_1]).repeat(400, 1)
    bound = method(2, 3).likelihood(model, many, draws=64)
    assert bound.nats_per_token * 4 == pytest.approx(truth, abs=20 * bound.standard_error)
    assert bound.standard_error * 4 < 0.01 * truth


def test_likelihood_does_not_hang_on_the_batch() -> None:
    model, x_1 = network(3, double=True).train(), tokens(7, 12)
    fixed = torch.zeros(7, 12, dtype=torch.bool)
    fixed[:, 0], fixed[2], fixed[5, :5] = True, True, True
    whole = method(3).likelihood(model, x_1, fixed=fixed, draws=4)
    assert model.training, "it is left as it was"
    assert whole.tokens == int((~fixed).sum())
    assert float(whole.nats_B[2]) == 0.0
    for size in (1, 2, 3):
        small = method(3).likelihood(model, x_1, fixed=fixed, draws=4, batch_size=size)
        torch.testing.assert_close(small.nats_B, whole.nats_B, rtol=1e-9, atol=1e-9)
        assert small.standard_error == pytest.approx(whole.standard_error, rel=1e-9)
    index = torch.arange(4, 7)
    part = method(3).likelihood(model, x_1[4:], fixed=fixed[4:], index=index, draws=4)
    torch.testing.assert_close(part.nats_B, whole.nats_B[4:], rtol=1e-9, atol=1e-9)


# Samples


@cache
def prediction(model: DiT, before: Tokens, x: Tokens) -> Array:
    """p(v | before, x) of the tokens of a block, [2, 3]."""
    clean = torch.tensor([before], dtype=torch.int64)
    logits = plain_logits(model, clean, torch.tensor([x]))[0, :, :3]
    return np.asarray(logits.double().softmax(-1).numpy())


def block_law(model: DiT, before: Tokens, times: list[float], **options: Any) -> Array:
    """The exact law of a block of two, V = 3, behind given tokens, after the steps of a grid."""

    class Block(Chain):
        def posterior(self, x: Tokens, kappa: float) -> Array:
            return prediction(model, before, x)

    chain = Block(np.full((3, 3), 1 / 9), mask=True, **options)
    law = chain.start()
    for t, t_next in pairwise(times):
        hazard = math.inf if t_next == 1 else math.log((1 - t) / (1 - t_next))
        law = law @ chain.step_matrix(t, hazard)
    return chain.data_law(law)


def one_by_one(model: DiT, before: Tokens) -> Array:
    """The law of a block of two, unmasked in an order drawn at random, [9]."""
    neither, law = prediction(model, before, (3, 3)), []
    for a, b in product(range(3), repeat=2):
        left = neither[0, a] * prediction(model, before, (a, 3))[1, b]
        right = neither[1, b] * prediction(model, before, (3, b))[0, a]
        law.append((left + right) / 2)
    return np.array(law)


def joint_law(model: DiT, times: list[float], first: Any = None, second: Any = None) -> Array:
    """Of four tokens in two blocks, [81] in row-major order."""
    law = []
    for before, chance in zip(
        product(range(3), repeat=2), block_law(model, (), times, log_weight=first), strict=True
    ):
        law.append(chance * block_law(model, before, times, log_weight=second))
    return np.concatenate(law)


THREE = [0.0, 1 / 3, 2 / 3, 1.0]


def strong(vocab: int = 3) -> DiT:
    """A network whose blocks hang on each other visibly."""
    model = network(2, vocab, double=True, seed=5)
    with torch.no_grad():
        model.readout.weight.mul_(2.5)
    return model


def test_the_law_of_samples() -> None:
    """Chi-square over all 81 sequences, false-alarm rate 1e-6; wrong laws are told apart."""
    model = strong()
    asked = DrawRequest(shape=(20_000, 4), steps=6, seed=11)
    counts = histogram(method(2, 3).draw(model, None, asked).tokens, 3)
    assert_follows(counts, joint_law(model, THREE))
    apart = block_law(model, (), THREE)
    assert_differs(counts, np.outer(apart, apart).ravel())  # blocks that do not see each other
    assert_differs(counts, joint_law(model, [0.0, 1.0]))  # in one step each
    # one token a step, whatever the grid
    single = histogram(method(2, 3).draw(model, FirstHitting(), replace(asked, steps=4)).tokens, 3)
    pairs = product(range(3), repeat=2)
    behind = np.stack([one_by_one(model, before) for before in pairs])
    assert_follows(single, (one_by_one(model, ())[:, None] * behind).ravel())
    assert_differs(single, joint_law(model, [0.0, 1.0]))


def test_the_law_with_a_neighbor_weight() -> None:
    """The window reaches into the block before, and does not go round. False-alarm rate 1e-6."""
    model, scale = strong(), 2.0

    def first(revealed: NDArray[np.bool_], _: Array) -> Array:
        return np.asarray(scale * revealed.sum(-1, keepdims=True))

    def second(revealed: NDArray[np.bool_], _: Array) -> Array:
        return np.asarray(scale * (np.array([1, 0]) + revealed.sum(-1, keepdims=True)))

    solver = cwdfm.Euler(cwdfm.Neighbor(1, scale, "cut"), hazard="integrated")
    asked = DrawRequest(shape=(40_000, 4), steps=6, seed=12)
    counts = histogram(method(2, 3).draw(model, solver, asked).tokens, 3)
    assert_follows(counts, joint_law(model, THREE, first, second))
    assert_differs(counts, joint_law(model, THREE, first, first))  # a block that sees itself alone


def uncached(
    model: DiT, solver: cwdfm.Solver, shape: tuple[int, int], steps: int, seed: int
) -> Tensor:
    """Block by block with the solver stepped by hand, all read again at every step."""
    block, vocab = model.config.block, model.config.num_tokens - 1
    done = torch.zeros(shape[0], 0, dtype=torch.int64)
    for k in range(shape[1] // block):
        state = solver.init(cwdfm.MaskSource(vocab), torch.arange(shape[0]), block, seed=seed)
        state = replace(state, step=k * steps)
        for t, t_next in pairwise(cwdfm.time_grid(LINEAR, steps).tolist()):
            before = done

            def whole(x: Tensor, _: Tensor, before: Tensor = before) -> Tensor:
                return plain_logits(model, before, x)

            state, _ = solver.step(whole, cwdfm.MaskSource(vocab), LINEAR, state, t, t_next)
        done = torch.cat([done, state.tokens], dim=1)
    return done


SOLVERS = [
    None,
    cwdfm.Euler(cwdfm.Entropy(2.0), top_p=0.9),
    cwdfm.Euler(corrector=cwdfm.Corrector(2.0), hazard="integrated", temperature=0.8),
    FirstHitting(),
]


def test_the_widest_of_several_weights_says_how_much_is_seen() -> None:
    wide, near = (cwdfm.Neighbor(r, 1.0, boundary="cut") for r in (3, 1))
    for weight in (wide, wide + near, near + wide, near + (wide + cwdfm.Entropy(1.0)) + near):
        assert reach(cwdfm.Euler(weight)) == 3
    assert reach(cwdfm.Euler(cwdfm.Entropy(1.0))) == reach(cwdfm.Euler()) == 0


@pytest.mark.parametrize("block", [1, 2, 4, 12])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_cache_changes_no_token(block: int, solver: cwdfm.Solver | None) -> None:
    model, per_block = network(block, double=True), 3
    asked = DrawRequest(shape=(16, 12), steps=per_block * 12 // block, seed=4)
    cached = method(block).draw(model, solver, asked)
    inner = solver or cwdfm.Euler(hazard="integrated")
    assert torch.equal(cached.tokens, uncached(model, inner, (16, 12), per_block, 4))
    assert int(cached.updates.min()) >= 1
    most = (per_block + 1) * (12 // block) - 1
    assert int(cached.evaluations.max()) <= most


@pytest.mark.parametrize("solver", [*SOLVERS, cwdfm.Euler(cwdfm.Neighbor(2, 3.0, "cut"))], ids=str)
def test_samples_do_not_hang_on_the_batch(solver: cwdfm.Solver | None) -> None:
    model = network(3, double=True)
    how = BlockSolver(stop=2) if solver is None else BlockSolver(solver, stop=2)
    prompt = torch.full((12,), 7)
    prompt[:3], prompt[4] = torch.tensor([2, 1, 2]), 5
    asked = DrawRequest(shape=(9, 12), steps=10, seed=6, prompt=prompt)
    whole = method(3).draw(model, how, asked)
    for size in (1, 2, 5):
        small = method(3).draw(model, how, replace(asked, batch_size=size))
        for name in ("tokens", "updates", "loops", "evaluations", "rows"):
            a, b = getattr(small, name), getattr(whole, name)
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), name
    index = torch.arange(4, 9)
    part = method(3).draw(model, how, replace(asked, shape=(5, 12), index=index))
    assert torch.equal(part.tokens, whole.tokens[4:])
    assert bool((whole.tokens[:, [0, 1, 2, 4]] == torch.tensor([2, 1, 2, 5])).all())
    assert int(whole.tokens.max()) < 7
    assert not torch.equal(method(3).draw(model, how, replace(asked, seed=7)).tokens, whole.tokens)


def test_the_end_token_ends_a_sequence() -> None:
    model, stop, block = network(3), 2, 3
    asked = DrawRequest(shape=(200, 12), steps=12, seed=8)
    free = method(block).draw(model, None, asked)
    told: list[int] = []
    ended = method(block).draw(model, BlockSolver(stop=stop), replace(asked, tick=told.append))
    assert sum(told) == 200 * 12  # what is not needed is done too
    lengths = []
    for row in range(200):
        line, drawn = ended.tokens[row].tolist(), free.tokens[row].tolist()
        end = drawn.index(stop) if stop in drawn else 12
        # up to its end a sequence is what it would have been; behind it, nothing but the end token
        assert line == drawn[:end] + [stop] * (12 - end)
        made = min(end // block + 1, 4)
        assert int(ended.updates[row, made * block :].sum()) == 0
        if end == 12:
            assert ended.evaluations[row] == free.evaluations[row]
        lengths.append(end)
    assert 0 < sum(end < 9 for end in lengths) < 200
    assert int(ended.evaluations.sum()) < int(free.evaluations.sum())
    assert ended.rows < free.rows
    # stopped in its first block, it is read no more: its steps there are all that it cost
    early = torch.tensor([end < block for end in lengths])
    assert int(ended.evaluations[early].max()) <= 3
    # a given end token is no end, and given tokens stay
    prompt = torch.tensor([stop, stop, stop, 7, 7, 4, *[7] * 6])
    prompted = method(block).draw(model, BlockSolver(stop=stop), replace(asked, prompt=prompt))
    assert bool((prompted.tokens[:, 5] == 4).all())
    assert bool((prompted.tokens[:, 3] != stop).any())


def test_prompts_are_kept_and_cost_nothing() -> None:
    model = network(4)
    prompt = tokens(1, 12)[0]
    fixed = torch.arange(12) < 8
    fixed[9] = True  # a hole in the block where the prompt ends
    asked = DrawRequest(shape=(20, 12), steps=30, prompt=prompt, fixed=fixed)
    out = method(4).draw(model, None, asked)
    assert bool((out.tokens[:, fixed] == prompt[fixed]).all())
    assert int(out.updates[:, fixed].sum()) == 0
    assert int(out.evaluations.max()) <= 2 + 3  # two blocks read, at most three jumps
    others = [torch.arange(12) % 4 == 3, torch.arange(12) == 11]
    for wrong in others:
        with pytest.raises(
            cwdfm.InputError, match=r"given tokens in block .* free ones in block 0"
        ):
            method(4).draw(model, None, replace(asked, fixed=wrong))
        with pytest.raises(cwdfm.InputError, match="without regard to them"):
            method(4).likelihood(model, prompt[None], fixed=wrong[None])


def test_tokens_left_out_are_never_drawn() -> None:
    model = network(3)
    drawn = method(3).draw(model, None, DrawRequest(shape=(100, 12), steps=12)).tokens
    assert len(drawn.unique()) == 7
    asked = DrawRequest(shape=(100, 12), steps=12, without=(0, 4))
    assert sorted(method(3).draw(model, None, asked).tokens.unique().tolist()) == [1, 2, 3, 5, 6]


@torch.no_grad()
def test_a_model_without_some_tokens_carries_what_it_did() -> None:
    """What belongs to a sequence stays with it where only some sequences are asked about."""
    model, x_1 = network(3), tokens(4, 12)
    x_t, t = torch.full_like(x_1, 7), torch.zeros(4)
    rows = Rows.of((torch.arange(4) % 2 == 1)[:, None].expand(4, 12))
    source, beside = cwdfm.MaskSource(7), Beside(model, x_1)
    ((_, whole),) = predict_rows(beside, source, x_t, t, rows)
    ((_, part),) = predict_rows(Without(beside, (0, 4)), source, x_t, t, rows)
    left = [1, 2, 3, 5, 6]
    torch.testing.assert_close(part[:, left], whole[:, left])
    assert bool((part[:, [0, 4]] == -torch.inf).all())


@pytest.mark.parametrize("steps", [1, 5, 12, 30])
def test_steps_are_shared_out(steps: int) -> None:
    grids = block_grids(LINEAR, steps, 4, "t")
    counts = [len(grid) - 1 for grid in grids]
    assert sum(counts) == max(4, steps)
    assert max(counts) - min(counts) <= 1
    assert counts[0] == max(counts), "step numbers are set apart by the first block's"
    told: list[int] = []
    asked = DrawRequest(shape=(7, 12), steps=steps, batch_size=3, tick=told.append)
    method(3).draw(network(3), None, asked)
    assert sum(told) == 7 * steps
    if steps % 4 == 0:
        custom = cwdfm.time_grid(LINEAR, steps // 4, "kappa")
        assert block_grids(LINEAR, steps, 4, custom)[2] == custom.tolist()


def test_a_compiled_network_samples_as_written() -> None:
    model = network(3)
    asked = DrawRequest(shape=(4, 6), steps=4)
    truth = method(3).draw(model, None, asked).tokens
    for part in model.blocks:  # as compile_trunk leaves them, without its minute of compiling
        part.forward = part.forward
    assert torch.equal(method(3).draw(model, None, asked).tokens, truth)


# The loss


def called(model: DiT) -> Any:
    return lambda x, t, read: model(x, t, read)


@pytest.mark.parametrize(
    "schedule", [LINEAR, cwdfm.Polynomial(2.0), cwdfm.Cosine()], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.3, 0.8), (0.6, 0.6)])
def test_the_loss_is_its_formula(schedule: cwdfm.Schedule, low: float, high: float) -> None:
    block, length = 3, 12
    model, x_1 = network(block, double=True), tokens(6, length)
    objective = BlockObjective(cwdfm.MaskSource(7), schedule, block, low, high)
    t = torch.linspace(0.02, 0.9, 6, dtype=torch.float64)
    fixed = torch.zeros(6, length, dtype=torch.bool)
    fixed[:, 0], fixed[3, 5:8] = True, True
    given = Batch(x_1, t, fixed, torch.arange(10, 16), seed=1, step=5)
    batch = objective.corrupted(given)
    total = 0.0
    for b, k in product(range(6), range(4)):
        place = slice(k * block, (k + 1) * block)
        u = (float(t[b]) + k / 4) % 1.0
        # the clock runs evenly from mask probability `high` to `low`
        ends = [float(schedule.inverse(1 - high)), float(schedule.inverse(1 - low))]
        time = ends[0] + (ends[1] - ends[0]) * u
        mask = 1 - float(schedule.kappa(time))
        assert low - 1e-9 <= mask <= high + 1e-9
        weight = 1 / mask
        if low < high:  # dkappa/dt, over its mean
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


def test_blocks_are_masked_as_often_as_their_times_say() -> None:
    """Counts of masked tokens in 20000 blocks: 5 standard errors, a false alarm in 2 million."""
    objective = BlockObjective(cwdfm.MaskSource(7), LINEAR, 4, 0.45, 0.95)
    x_1 = tokens(20_000, 8)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    t = torch.full((20_000,), 0.3)
    batch = objective.corrupted(Batch(x_1, t, fixed, torch.arange(20_000), seed=0, step=0))
    for k, u in enumerate((0.3, 0.8)):
        share = float((batch.x_t[:, 4 * k : 4 * k + 4] == 7).double().mean())
        mask = 0.95 - 0.5 * u
        assert share == pytest.approx(mask, abs=5 * math.sqrt(mask * (1 - mask) / 80_000))
    uneven = objective.times(torch.rand(1000, generator=torch.manual_seed(0)), 8)
    assert 0.05 <= float(uneven.min()) <= float(uneven.max()) <= 0.55
    assert torch.equal(uneven[:, 0], uneven[:, 3])


def test_times_by_token_on_a_path() -> None:
    """A row of equal times is the row of that one time; a context path refuses."""
    source, x_1 = cwdfm.MaskSource(7), tokens(5, 12)
    t = torch.linspace(0.1, 0.9, 5)
    path = cwdfm.MixturePath(source, LINEAR)
    one, each = path.sample(x_1, t), path.sample(x_1, t[:, None].expand(5, 12))
    assert torch.equal(one.x_t, each.x_t)
    logits = torch.randn(5, 12, 8, generator=torch.manual_seed(0))
    losses = [cwdfm.NELBO("masked")(logits, batch, LINEAR) for batch in (one, each)]
    assert torch.equal(*losses)
    context = cwdfm.ContextPath(source, LINEAR, cwdfm.Neighbor(1, 1.0))
    with pytest.raises(cwdfm.InputError, match="times of their own need a path that reveals each"):
        context.sample(x_1, each.t)
    with pytest.raises(cwdfm.InputError, match=r"one time a sequence, or \(5, 12\), one a token"):
        path.sample(x_1, t[:, None])


# The search for a clip range


class Table(nn.Module):
    """A network that knows how many of a block's tokens are masked, and gives that its loss."""

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
    """Of a block's loss count/(m L) nats[count], count ~ Binomial(L, m), m uniform."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    m = low + (high - low) * 0.5 * (nodes + 1)
    moments = np.zeros(2)
    for count in range(1, block + 1):
        chance = math.comb(block, count) * m**count * (1 - m) ** (block - count)
        value = count / (np.maximum(m, 1e-3) * block) * nats[count - 1]
        moments += [(0.5 * weights * chance * value**power).sum() for power in (1, 2)]
    return float(moments[1] - moments[0] ** 2)


# The loss of a token by how many of its block's four are masked.
FLAT, HARD = [1.0, 1.0, 1.0, 1.0], [0.2, 0.4, 1.0, 6.0]


@pytest.mark.parametrize("nats", [FLAT, HARD], ids=["flat", "hard where all is masked"])
def test_the_search_finds_the_range_of_lowest_variance(nats: list[float]) -> None:
    """Variances over 16384 blocks within 10% of the known ones; the best range within 5%.

    With a flat loss the variance is E (1 - m)/(m L): the range of most noise has the least. Where
    an all-masked block is hard, less noise is better.
    """
    objective = BlockObjective(cwdfm.MaskSource(2), LINEAR, 4, search=True)
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


def test_variances_are_those_of_free_tokens() -> None:
    """Blocks of four with two given are blocks of two, and a block that is all given is none.

    14336 blocks, within 10%: 8 standard deviations of so many blocks' variance.
    """
    objective = BlockObjective(cwdfm.MaskSource(2), LINEAR, 4, 0.3, 0.8)
    x_1 = torch.ones(2048, 32, dtype=torch.int64)
    fixed = (torch.arange(32) % 4 < 2) | (torch.arange(32) < 4)
    measured = objective.variance(Table(4, HARD), x_1, fixed.expand(2048, -1))
    assert measured == pytest.approx(known_variance(0.3, 0.8, 2, HARD[:2]), rel=0.1)


def test_the_ranges_that_are_searched() -> None:
    ranges = clip_ranges(4)
    assert len(ranges) == len(set(ranges)) == 36
    assert {(0.0, 1.0), (0.45, 0.95), (0.3, 0.8), (0.0, 0.5), (0.1, 1.0)} <= set(ranges)
    assert all(0 <= low < high <= 1 for low, high in ranges)
    # one token a block: noise at its fullest has no variance but the data's
    objective = BlockObjective(cwdfm.MaskSource(2), cwdfm.Polynomial(2.0), 1, search=True)
    x_1 = torch.ones(64, 8, dtype=torch.int64)
    found = objective.adapted(Table(1, [1.0]), x_1, torch.zeros_like(x_1, dtype=torch.bool))
    assert (found.low, found.high) == (1.0, 1.0)
    assert found.variance(Table(1, [1.0]), x_1, torch.zeros_like(x_1, dtype=torch.bool)) < 1e-9
    assert found.worst_weight == 1.0


def test_worst_weights() -> None:
    source = cwdfm.MaskSource(7)
    assert BlockObjective(source, LINEAR, 4, 0.45, 0.95).worst_weight == pytest.approx(1 / 0.45)
    assert BlockObjective(source, LINEAR, 4).worst_weight == pytest.approx(1000)


# A whole training, and what is refused


def test_a_few_steps_lower_the_loss() -> None:
    """The data are runs: after the first token of a block before, the rest are certain."""
    torch.manual_seed(1)
    way = method(4)
    size = DiTConfig(8, width=64, depth=2, heads=2, conditioning=32, dropout=0.0)
    model = DiT(way.network(size))
    objective = BlockObjective(way.source, way.schedule, 4, search=True)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    x_1 = (torch.arange(7)[:, None] + torch.arange(16)) % 7
    x_1 = x_1.repeat(8, 1)
    index, fixed = torch.arange(56), torch.zeros(56, 16, dtype=torch.bool)
    losses = []
    for step in range(60):
        t = cwdfm.stratified_times(0, step, index, 56).float()
        loss = objective(called(model), Batch(x_1, t, fixed, index, seed=0, step=step))
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
    out = way.draw(model, None, DrawRequest(shape=(64, 16), steps=16))
    runs = ((out.tokens[:, 1:] - out.tokens[:, :-1]) % 7 == 1).double().mean()
    assert float(runs) > 0.3  # by chance 1/7, give or take 0.011


def test_refusals() -> None:
    way, model, asked = method(4), network(4), DrawRequest(shape=(2, 12), steps=4)
    source = cwdfm.MaskSource(7)

    def refused(pattern: str) -> Any:
        return pytest.raises(cwdfm.InputError, match=pattern)

    with refused("source must be a MaskSource"):
        BlockDiffusion(cwdfm.UniformSource(7), LINEAR, 4)  # type: ignore[arg-type]
    with refused("block must be an integer >= 1, got 0"):
        BlockDiffusion(source, LINEAR, 0)
    with refused(
        r"10 tokens does not divide into blocks of 4: cut or pad it to a multiple, such as 12"
    ):
        way.draw(model, None, replace(asked, shape=(2, 10)))
    with refused("10 tokens does not divide"):
        way.likelihood(model, tokens(2, 10))
    objective = BlockObjective(source, LINEAR, 4)
    fixed = torch.zeros(2, 10, dtype=torch.bool)
    with refused("10 tokens does not divide"):
        t, index = torch.rand(2), torch.arange(2)
        objective(called(model), Batch(tokens(2, 10), t, fixed, index, seed=0, step=0))
    for low, high in ((-0.1, 1.0), (0.5, 0.4), (0.5, 1.1), (0.0, 0.0)):
        with refused("clipped to low..high with"):
            replace(objective, low=low, high=high)
    with refused(r"cannot sample from BlockDiffusion.*BlockSolver\(\)"):
        way.draw(model, "ancestral", asked)
    with refused("inner must be a Solver"):
        BlockSolver("ancestral")  # type: ignore[arg-type]
    with refused("stop must be a data token < 7, got 7"):
        way.draw(model, BlockSolver(stop=7), asked)
    with refused("stop must be an integer >= 0"):
        BlockSolver(stop=-1)
    with refused("no neighbours; use boundary='cut'"):
        way.draw(model, cwdfm.Euler(cwdfm.Neighbor(1, 1.0)), asked)
    with refused("no neighbours; use boundary='cut'"):
        way.draw(model, cwdfm.Euler(cwdfm.Entropy(1.0) + cwdfm.Distance(1.0)), asked)
    with refused("on a 2-D grid"):
        way.draw(model, cwdfm.Euler(cwdfm.Neighbor(1, 1.0, "cut", (3, 4))), asked)
    with refused("batch_size must be an integer >= 1, got 0"):
        way.draw(model, None, replace(asked, batch_size=0))
    with refused("needs a DiT"):
        way.draw(nn.Linear(2, 2), None, asked)
    with refused("blocks of 4 needs a network with attention='block', block=4.*got.*block=3"):
        way.draw(network(3), None, asked)
    with refused("attention='full'"):
        way.likelihood(DiT(replace(model.config, attention="full")), tokens(2, 12))
    with refused("steps must be a multiple of 3, got 4"):
        way.draw(model, None, replace(asked, grid=torch.tensor([0.0, 1.0])))
    with refused("all positions are fixed"):
        way.draw(model, None, replace(asked, prompt=tokens(2, 12)))
    with refused("all positions are fixed"):
        everything = torch.ones(2, 12, dtype=torch.bool)
        way.likelihood(model, tokens(2, 12), fixed=everything)
    # one block is the whole sequence, whose circle is closed
    whole = method(12)
    whole.draw(network(12), cwdfm.Euler(cwdfm.Neighbor(1, 1.0)), asked)
