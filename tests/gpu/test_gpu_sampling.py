"""On a CUDA device: sampling does not synchronize, and captured trunks match the plain ones.

Run there with `pytest -m gpu tests/gpu/test_gpu_sampling.py`.
"""

import pytest
import torch
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating
from cwdfm.model.transformer import DiT, DiTConfig, TrunkState
from cwdfm.ops import dispatch
from cwdfm.ops.cuda_graph import MIN_LOOP, WARMUP_CALLS, GraphedFunction
from cwdfm.schedule import Linear, Polynomial
from cwdfm.solver import Euler, Solver, sample
from cwdfm.solver.precomputed import Plan, run_plan
from cwdfm.source import MaskSource, Source, UniformSource
from cwdfm.weight import Distance, Entropy, Neighbor
from tests.support.gpu import COMPILED, no_waiting
from tests.support.kernels import perturbed

pytestmark = COMPILED
VOCAB, LENGTH, BATCH = 50, 24, 16


def network(source: Source) -> DiT:
    config = DiTConfig(num_tokens=source.num_tokens, width=64, depth=2, heads=4)
    return perturbed(config, 0.1).eval().requires_grad_(False).cuda()


def inputs(batch: int = BATCH, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator("cuda").manual_seed(seed)
    x = torch.randint(VOCAB, (batch, LENGTH), generator=g, device="cuda")
    return x, torch.rand(batch, generator=g, device="cuda")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("dense", [False, True])
def test_positions_match_the_cpu(share: float, dense: bool) -> None:
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(33, 70, generator=g) < share
    here, there = Positions.of(mask), Positions.of(mask.cuda(), dense=dense)
    assert len(here) == len(there)
    assert torch.equal(here.flat, there.flat.cpu())
    values = torch.rand(33, 70, generator=g)
    assert torch.equal(here.take(values), there.take(values.cuda()).cpu())
    if dense or here.active is None:
        assert there.active is None
    else:
        assert there.active is not None
        assert torch.equal(here.active, there.active.cpu())


def test_model_is_called_before_positions_are_counted() -> None:
    x, t = inputs()
    model = network(UniformSource(VOCAB))
    with torch.no_grad():
        Positions.of(x > 3, dense=True)
        model.trunk(x, t)
        with no_waiting():
            rows = Positions.of(x > 3, dense=True)
            assert rows.active is None
            model.trunk(x, t)
    assert len(rows) == int((x > 3).sum())


@pytest.mark.parametrize("weight", [None, Neighbor(1, 5.0)], ids=str)
def test_precomputed_reveals_do_not_synchronize(weight: Neighbor | None) -> None:
    source = MaskSource(VOCAB)
    model, solver = network(source), Euler(weight=weight)
    times = torch.linspace(0, 1, 65, dtype=torch.float64).tolist()
    state = solver.init(source, torch.arange(BATCH, device="cuda"), LENGTH)
    reveals = solver.precompute_reveals(source, Linear(), state, times)
    assert reveals is not None
    plan = Plan.of(reveals.step, times)
    arguments = (model, source, solver, state, plan, lambda share: None)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16), evaluating(model):
        first = run_plan(*arguments)
        with no_waiting():
            again = run_plan(*arguments)
    assert torch.equal(first, again)
    assert int(first.max()) < VOCAB


def test_batches_of_precomputed_reveals_have_few_sizes() -> None:
    reveal = torch.arange(9, device="cuda").repeat(16, 1)
    for b in range(16):
        reveal[b, b // 2 :] = b // 2  # 1, 1, 2, 2, ... rounds
    plan = Plan.of(reveal, [k / 9 for k in range(10)])
    sizes = [16 if r.rows.active is None else len(r.rows.active) for r in plan.rounds]
    needed = [int((plan.evaluations > r).sum()) for r in range(len(plan.rounds))]
    assert {*sizes} <= {4, 8, 12, 16}
    assert all(0 <= size - need < 4 for size, need in zip(sizes, needed, strict=True))


class Synchronizing(Neighbor):
    """A weight that synchronizes with the device."""

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        score_BN = super().context_score(revealed_BN)
        return score_BN if bool(revealed_BN.any()) else score_BN * 1.0


WEIGHTS = [None, Neighbor(1, 5.0), Distance(1.0, 4), Synchronizing(2, 1.0)]


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("steps", [1, 3, MIN_LOOP + 1, MIN_LOOP + 2, 200])
def test_precomputed_reveals_match_the_cpu(weight: Neighbor | None, steps: int) -> None:
    source, solver = MaskSource(VOCAB), Euler(weight=weight)
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float64).tolist()
    found = []
    for device in ("cpu", "cuda"):
        prompt = torch.full((BATCH, LENGTH), source.mask_id, device=device)
        prompt[:, :3] = 1
        index = torch.arange(BATCH, device=device)
        state = solver.init(source, index, LENGTH, seed=9, prompt=prompt)
        reveals = solver.precompute_reveals(source, Polynomial(2.0), state, times)
        assert reveals is not None
        found.append(reveals.step.cpu())
    assert torch.equal(*found)
    assert int(found[0][:, 3:].min()) >= 0
    assert int(found[0][:, :3].max()) == -1


def assert_equal(mine: TrunkState, other: TrunkState) -> None:
    assert torch.equal(mine.stream, other.stream)
    assert torch.equal(mine.attended, other.attended)
    assert mine.time is not None
    assert other.time is not None
    assert torch.equal(mine.time, other.time)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_two_stages_match_the_trunk(half: bool, share: float) -> None:
    x, t = inputs()
    model = network(UniformSource(VOCAB))
    place = (torch.rand(x.numel(), device="cuda") < share).nonzero()[:, 0]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
        whole = model.trunk(x, t).flatten(0, 1)[place].float()
        parts = model.second_stage(model.first_stage(x, t), place).float()
    assert parts.shape == whole.shape
    assert float((parts - whole).norm()) <= (0.02 if half else 1e-4) * float(whole.norm()) + 1e-9


def _scaled(model: DiT) -> None:
    for parameter in model.parameters():
        parameter.mul_(1.5)


def _replaced(model: DiT) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.7


def test_half_precision_weights_are_captured_without_casts() -> None:
    model = network(UniformSource(VOCAB)).bfloat16()
    plain = model.first_stage
    model.capture_trunk()
    model.capture_trunk()  # once is enough
    with torch.no_grad():
        for seed in range(WARMUP_CALLS + 3):
            arguments = inputs(BATCH, seed)
            assert_equal(model.first_stage(*arguments), plain(*arguments))
    assert model.embedding.dtype == torch.bfloat16


def test_a_graph_captured_in_inference_mode_works_outside_of_it() -> None:
    model = network(UniformSource(VOCAB))
    plain = model.first_stage
    model.capture_trunk()
    with torch.inference_mode():
        for seed in range(WARMUP_CALLS + 2):
            model.first_stage(*inputs(BATCH, seed))
    with torch.no_grad():
        assert_equal(model.first_stage(*inputs()), plain(*inputs()))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("fused", ["auto", "off"])
def test_captured_trunks_match_the_plain_ones(
    half: bool, fused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MODE", fused)
    model = network(UniformSource(VOCAB))
    plain = model.first_stage
    model.capture_trunk()
    recorded = model.first_stage
    assert isinstance(recorded, GraphedFunction)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=half):
        for seed in range(WARMUP_CALLS + 4):
            for batch in (BATCH, 3):
                arguments = inputs(batch, seed)
                assert_equal(model.first_stage(*arguments), plain(*arguments))
        assert len(recorded.graphs) == 2
        # New weights discard the old graphs, however the weights were changed.
        for change in (_scaled, _replaced):
            change(model)
            for seed in range(WARMUP_CALLS + 4):
                arguments = inputs(BATCH, seed)
                assert_equal(model.first_stage(*arguments), plain(*arguments))
        assert len(recorded.graphs) == 1
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    model.requires_grad_(True)
    model.first_stage(*inputs()).attended.sum().backward()
    assert model.blocks[0].get_parameter("qkv.weight").grad is not None


def test_a_shape_that_occurs_once_is_not_captured() -> None:
    model = network(UniformSource(VOCAB))
    model.capture_trunk()
    with torch.no_grad():
        for batch in range(1, 6):
            model.first_stage(*inputs(batch))
    assert isinstance(model.first_stage, GraphedFunction)
    assert not model.first_stage.graphs


SOLVERS = [Euler(), Euler(weight=Neighbor(1, 5.0)), Euler(weight=Entropy(1.0))]


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("source", [MaskSource(VOCAB), UniformSource(VOCAB)], ids=str)
def test_samples_with_captured_trunks_match(solver: Solver, source: Source) -> None:
    model = network(source)
    arguments = (model, source, Linear(), solver)
    plain = sample(*arguments, shape=(BATCH, LENGTH), steps=40, seed=5)
    model.capture_trunk()
    recorded = sample(*arguments, shape=(BATCH, LENGTH), steps=40, seed=5)
    assert torch.equal(plain.tokens, recorded.tokens)
    assert torch.equal(plain.evaluations, recorded.evaluations)
    assert isinstance(model.first_stage, GraphedFunction)
    assert model.first_stage.graphs


@pytest.mark.parametrize("source", [MaskSource(VOCAB), UniformSource(VOCAB)], ids=str)
def test_a_compiled_trunk_can_be_captured(source: Source) -> None:
    model = network(source)
    model.compile_trunk(by_block=True)
    model.capture_trunk()
    with torch.autocast("cuda", torch.bfloat16):
        found = sample(model, source, Linear(), Euler(), shape=(BATCH, LENGTH), steps=30)
    assert isinstance(model.first_stage, GraphedFunction)
    assert model.first_stage.graphs
    assert int(found.tokens.max()) < VOCAB
