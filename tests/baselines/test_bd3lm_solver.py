"""Block diffusion: the distribution of samples, the cache, prompts and end tokens."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import cwdfm
from cwdfm.baselines.bd3lm.method import ParallelBlocks
from cwdfm.baselines.bd3lm.solver import BlockSolver, block_grids, weight_radius
from cwdfm.method.base import SampleRequest
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.transformer import DiT
from cwdfm.model.wrappers import BannedTokens
from cwdfm.solver import FirstHitting, Gibbs
from tests.support.blocks import LINEAR, method, network, plain_logits, tokens
from tests.support.cases import slow
from tests.support.exact import Array, Chain
from tests.support.exact import State as Tokens
from tests.support.stats import assert_differs, assert_follows, histogram


@cache
def prediction(model: DiT, before: Tokens, x: Tokens) -> Array:
    """p(v | before, x) for the tokens of a block, [2, 3]."""
    clean = torch.tensor([before], dtype=torch.int64)
    logits = plain_logits(model, clean, torch.tensor([x]))[0, :, :3]
    return np.asarray(logits.double().softmax(-1).numpy())


def block_law(model: DiT, before: Tokens, times: list[float], **options: Any) -> Array:
    """The exact distribution of a block of two tokens after fixed ones, V = 3, along a grid."""

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
    """The distribution of a block of two tokens unmasked in random order, [9]."""
    neither, law = prediction(model, before, (3, 3)), []
    for a, b in product(range(3), repeat=2):
        left = neither[0, a] * prediction(model, before, (a, 3))[1, b]
        right = neither[1, b] * prediction(model, before, (3, b))[0, a]
        law.append((left + right) / 2)
    return np.array(law)


def joint_law(model: DiT, times: list[float], first: Any = None, second: Any = None) -> Array:
    """The distribution of four tokens in two blocks, [81] in row-major order."""
    law = []
    for before, chance in zip(
        product(range(3), repeat=2), block_law(model, (), times, log_weight=first), strict=True
    ):
        law.append(chance * block_law(model, before, times, log_weight=second))
    return np.concatenate(law)


THREE = [0.0, 1 / 3, 2 / 3, 1.0]


def strong(vocab: int = 3) -> DiT:
    """A network with strong dependence between blocks."""
    model = network(2, vocab, double=True, seed=5)
    with torch.no_grad():
        model.readout.weight.mul_(2.5)
    return model


def test_samples_follow_the_exact_distribution() -> None:
    """Chi-square over all 81 sequences, false-alarm rate 1e-6; wrong distributions are detected."""
    model = strong()
    asked = SampleRequest(shape=(10_000, 4), steps=6, seed=11)
    counts = histogram(method(2, 3).sample(model, None, asked).tokens, 3)
    assert_follows(counts, joint_law(model, THREE))
    apart = block_law(model, (), THREE)
    assert_differs(counts, np.outer(apart, apart).ravel())  # independent blocks
    assert_differs(counts, joint_law(model, [0.0, 1.0]))  # one step per block
    # one token per step, for any grid
    single = histogram(
        method(2, 3).sample(model, FirstHitting(), replace(asked, steps=4)).tokens, 3
    )
    pairs = product(range(3), repeat=2)
    behind = np.stack([one_by_one(model, before) for before in pairs])
    assert_follows(single, (one_by_one(model, ())[:, None] * behind).ravel())
    assert_differs(single, joint_law(model, [0.0, 1.0]))


def test_gibbs_corrections_inside_blocks_follow_the_exact_distribution() -> None:
    """Halfway through a block one of its tokens is redrawn. False-alarm rate 1e-6."""
    model, mask, states = strong(), 3, list(product(range(4), repeat=2))

    def block(before: Tokens) -> Array:
        """[9]: half of the tokens are revealed, one is redrawn, and the rest follows."""
        law = np.zeros((3, 3))
        for x in states:
            p = prediction(model, before, (mask, mask))
            chance = math.prod(0.5 if v == mask else 0.5 * p[i, v] for i, v in enumerate(x))
            revealed = [i for i in (0, 1) if x[i] != mask]
            for i in revealed or [0]:
                hidden = tuple(mask if j == i else v for j, v in enumerate(x))
                redrawn = prediction(model, before, hidden)[i] if revealed else np.eye(4)[mask]
                for v, q in enumerate(redrawn):
                    y = tuple(v if j == i else w for j, w in enumerate(x))
                    last = prediction(model, before, y)
                    ends = [last[j] if w == mask else np.eye(3)[w] for j, w in enumerate(y)]
                    law += chance * q / len(revealed or [0]) * np.outer(*ends)
        return law.ravel()

    asked = SampleRequest(shape=(10_000, 4), steps=4, seed=3)
    solver = Gibbs(cwdfm.Euler(hazard="integrated"))
    counts = histogram(method(2, 3).sample(model, solver, asked).tokens, 3)
    first = block(())
    behind = [block(before) for before in product(range(3), repeat=2)]
    assert_follows(counts, (first[:, None] * np.stack(behind)).ravel())
    assert_differs(counts, joint_law(model, [0.0, 0.5, 1.0]))


def test_neighbor_weight_follows_the_exact_distribution() -> None:
    """The window includes the previous block and does not wrap around. False-alarm rate 1e-6."""
    model, scale = strong(), 2.0

    def first(revealed: NDArray[np.bool_], _: Array) -> Array:
        return np.asarray(scale * revealed.sum(-1, keepdims=True))

    def second(revealed: NDArray[np.bool_], _: Array) -> Array:
        return np.asarray(scale * (np.array([1, 0]) + revealed.sum(-1, keepdims=True)))

    solver = cwdfm.Euler(cwdfm.Neighbor(1, scale, "cut"), hazard="integrated")
    asked = SampleRequest(shape=(20_000, 4), steps=6, seed=12)
    counts = histogram(method(2, 3).sample(model, solver, asked).tokens, 3)
    assert_follows(counts, joint_law(model, THREE, first, second))
    assert_differs(counts, joint_law(model, THREE, first, first))  # a window inside the block only


def uncached(
    model: DiT, solver: cwdfm.Solver, shape: tuple[int, int], steps: int, seed: int
) -> Tensor:
    """Step the solver by hand, block by block, without a cache."""
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


def test_widest_weight_sets_the_context() -> None:
    wide, near = (cwdfm.Neighbor(r, 1.0, boundary="cut") for r in (3, 1))
    for weight in (wide, wide + near, near + wide, near + (wide + cwdfm.Entropy(1.0)) + near):
        assert weight_radius(cwdfm.Euler(weight)) == 3
    assert weight_radius(cwdfm.Euler(cwdfm.Entropy(1.0))) == weight_radius(cwdfm.Euler()) == 0


@pytest.mark.parametrize("block", [slow(1), 2, 4, slow(12)])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_cache_does_not_change_samples(block: int, solver: cwdfm.Solver | None) -> None:
    model, per_block = network(block, double=True), 3
    asked = SampleRequest(shape=(16, 12), steps=per_block * 12 // block, seed=4)
    cached = method(block).sample(model, solver, asked)
    inner = solver or cwdfm.Euler(hazard="integrated")
    assert torch.equal(cached.tokens, uncached(model, inner, (16, 12), per_block, 4))
    assert int(cached.updates.min()) >= 1
    most = (per_block + 1) * (12 // block) - 1
    assert int(cached.evaluations.max()) <= most


@pytest.mark.parametrize(
    "solver",
    [None, cwdfm.Euler(cwdfm.Neighbor(2, 3.0, "cut")), *map(slow, SOLVERS[1:])],
    ids=str,
)
def test_samples_do_not_depend_on_the_batch(solver: cwdfm.Solver | None) -> None:
    model = network(3, double=True)
    how = BlockSolver(stop=2) if solver is None else BlockSolver(solver, stop=2)
    prompt = torch.full((12,), 7)
    prompt[:3], prompt[4] = torch.tensor([2, 1, 2]), 5
    asked = SampleRequest(shape=(9, 12), steps=10, seed=6, prompt=prompt)
    whole = method(3).sample(model, how, asked)
    for size in (1, 2, 5):
        small = method(3).sample(model, how, replace(asked, batch_size=size))
        for name in ("tokens", "updates", "loops", "evaluations", "logit_evaluations"):
            a, b = getattr(small, name), getattr(whole, name)
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), name
    index = torch.arange(4, 9)
    part = method(3).sample(model, how, replace(asked, shape=(5, 12), index=index))
    assert torch.equal(part.tokens, whole.tokens[4:])
    assert bool((whole.tokens[:, [0, 1, 2, 4]] == torch.tensor([2, 1, 2, 5])).all())
    assert int(whole.tokens.max()) < 7
    assert not torch.equal(
        method(3).sample(model, how, replace(asked, seed=7)).tokens, whole.tokens
    )


def test_end_token_ends_a_sequence() -> None:
    model, stop, block = network(3), 2, 3
    asked = SampleRequest(shape=(200, 12), steps=12, seed=8)
    free = method(block).sample(model, None, asked)
    reported: list[int] = []
    ended = method(block).sample(
        model, BlockSolver(stop=stop), replace(asked, progress=reported.append)
    )
    assert sum(reported) == 200 * 12  # skipped steps are reported too
    lengths = []
    for row in range(200):
        line, drawn = ended.tokens[row].tolist(), free.tokens[row].tolist()
        end = drawn.index(stop) if stop in drawn else 12
        # unchanged up to the end token, then filled with it
        assert line == drawn[:end] + [stop] * (12 - end)
        made = min(end // block + 1, 4)
        assert int(ended.updates[row, made * block :].sum()) == 0
        if end == 12:
            assert ended.evaluations[row] == free.evaluations[row]
        lengths.append(end)
    assert 0 < sum(end < 9 for end in lengths) < 200
    assert int(ended.evaluations.sum()) < int(free.evaluations.sum())
    assert ended.logit_evaluations < free.logit_evaluations
    # a sequence that stops in its first block is evaluated only there
    early = torch.tensor([end < block for end in lengths])
    assert int(ended.evaluations[early].max()) <= 3
    # an end token in the prompt does not stop, and prompts are kept
    prompt = torch.tensor([stop, stop, stop, 7, 7, 4, *[7] * 6])
    prompted = method(block).sample(model, BlockSolver(stop=stop), replace(asked, prompt=prompt))
    assert bool((prompted.tokens[:, 5] == 4).all())
    assert bool((prompted.tokens[:, 3] != stop).any())


def test_prompts_are_kept_and_cost_nothing() -> None:
    model = network(4)
    prompt = tokens(1, 12)[0]
    fixed = torch.arange(12) < 8
    fixed[9] = True  # with a hole in the last block of the prompt
    asked = SampleRequest(shape=(20, 12), steps=30, prompt=prompt, fixed=fixed)
    out = method(4).sample(model, None, asked)
    assert bool((out.tokens[:, fixed] == prompt[fixed]).all())
    assert int(out.updates[:, fixed].sum()) == 0
    assert int(out.evaluations.max()) <= 2 + 3  # two blocks added to the cache, at most three jumps
    others = [torch.arange(12) % 4 == 3, torch.arange(12) == 11]
    for wrong in others:
        with pytest.raises(cwdfm.InputError, match=r"fixed tokens in block .* earlier block 0"):
            method(4).sample(model, None, replace(asked, fixed=wrong))
        with pytest.raises(cwdfm.InputError, match="earlier block 0"):
            method(4).likelihood(model, prompt[None], fixed=wrong[None])


def test_banned_tokens_are_never_sampled() -> None:
    model = network(3)
    drawn = method(3).sample(model, None, SampleRequest(shape=(100, 12), steps=12)).tokens
    assert len(drawn.unique()) == 7
    asked = SampleRequest(shape=(100, 12), steps=12, banned_tokens=(0, 4))
    assert sorted(method(3).sample(model, None, asked).tokens.unique().tolist()) == [1, 2, 3, 5, 6]


@torch.no_grad()
def test_banned_tokens_keep_the_context_of_each_sequence() -> None:
    """The clean tokens of a sequence stay with it if only some sequences are evaluated."""
    model, x_1 = network(3), tokens(4, 12)
    x_t, t = torch.full_like(x_1, 7), torch.zeros(4)
    rows = Positions.of((torch.arange(4) % 2 == 1)[:, None].expand(4, 12))
    source, beside = cwdfm.MaskSource(7), ParallelBlocks(model, x_1)
    ((_, whole),) = predict_logits(beside, source, x_t, t, rows)
    ((_, part),) = predict_logits(BannedTokens(beside, (0, 4)), source, x_t, t, rows)
    left = [1, 2, 3, 5, 6]
    torch.testing.assert_close(part[:, left], whole[:, left])
    assert bool((part[:, [0, 4]] == -torch.inf).all())


@pytest.mark.parametrize("steps", [1, 5, 12, 30])
def test_steps_are_split_over_blocks(steps: int) -> None:
    grids = block_grids(LINEAR, steps, 4, "t")
    counts = [len(grid) - 1 for grid in grids]
    assert sum(counts) == max(4, steps)
    assert max(counts) - min(counts) <= 1
    assert counts[0] == max(counts), "step numbers are set apart by the first block's"
    reported: list[int] = []
    asked = SampleRequest(shape=(7, 12), steps=steps, batch_size=3, progress=reported.append)
    method(3).sample(network(3), None, asked)
    assert sum(reported) == 7 * steps
    if steps % 4 == 0:
        custom = cwdfm.time_grid(LINEAR, steps // 4, "kappa")
        assert block_grids(LINEAR, steps, 4, custom)[2] == custom.tolist()


def test_step_numbers_are_unique() -> None:
    """Seven steps over three blocks, which do not divide evenly; randomness uses these numbers."""
    seen: list[int] = []

    class Watched(cwdfm.Euler):
        def step(self, model: Any, source: Any, schedule: Any, state: Any, *times: float) -> Any:
            seen.append(state.step)
            return super().step(model, source, schedule, state, *times)

    method(4).sample(network(4), Watched(), SampleRequest(shape=(2, 12), steps=7))
    assert len(seen) == len(set(seen)) == 7


def test_all_blocks_but_the_last_are_added_to_the_cache() -> None:
    found = method(4).sample(network(4), None, SampleRequest(shape=(2, 12), steps=3))
    assert found.evaluations.tolist() == [3 + 2] * 2  # three steps, two blocks cached


def test_one_block_allows_circular_weights() -> None:
    """With a single block the samples are those of a flow, circular windows included."""
    model, solver = network(6, double=True), cwdfm.Euler(cwdfm.Neighbor(1, 2.0))

    def whole(x: Tensor, t: Tensor) -> Tensor:
        return plain_logits(model, x[:, :0], x)

    found = method(6).sample(model, solver, SampleRequest(shape=(20, 6), steps=4, seed=3)).tokens
    flow = cwdfm.sample(whole, method(6).source, LINEAR, solver, shape=(20, 6), steps=4, seed=3)
    assert torch.equal(found, flow.tokens)


def test_compiled_network_samples_uncompiled() -> None:
    model = network(3)
    asked = SampleRequest(shape=(4, 6), steps=4)
    truth = method(3).sample(model, None, asked).tokens
    for part in model.blocks:  # as compile_trunk leaves them, without the time to compile
        part.forward = part.forward
    assert torch.equal(method(3).sample(model, None, asked).tokens, truth)
