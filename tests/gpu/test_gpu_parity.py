"""On a CUDA device: the same seeds give the same samples as on the CPU.

Run there with `pytest -m gpu tests/gpu/test_gpu_parity.py`.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.method.base import SampleRequest
from cwdfm.method.flow import Flow
from cwdfm.ops.dispatch import fused_device
from cwdfm.ops.random import Purpose, uniform, uniform_BN
from cwdfm.path.algorithm1 import reveal_drawn, reveal_in_order
from tests.support.examples import LENGTH, examples
from tests.support.gpu import no_waiting
from tests.support.models import SmallModel, SmallSplitModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SCHEDULE = cwdfm.Polynomial(2.0)


def test_uniforms_are_bit_identical() -> None:
    index = torch.arange(2**40, 2**40 + 1000)
    here = uniform_BN(123, Purpose.PROPOSAL, index, 7, 512)
    there = uniform_BN(123, Purpose.PROPOSAL, index.cuda(), 7, 512)
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("seed", [0, 2**31, 2**64 - 1])
@pytest.mark.parametrize("step", [0, 2**31, 2**32 - 1])
def test_uniforms_of_any_shape_and_size_are_bit_identical(seed: int, step: int) -> None:
    large = torch.tensor([0, 2**32 - 1, 2**40 + 7, 2**56 + 3, 2**63 - 1])
    for index, position in (
        (large[:, None], torch.arange(3000)[None]),
        (torch.arange(5000), torch.arange(5000).flip(0)),
        (torch.arange(40)[::3], torch.arange(14)),
        (torch.arange(12).reshape(3, 4).T, torch.arange(12).reshape(4, 3)),
        (torch.arange(4)[:, None, None], torch.arange(6).reshape(2, 3)),
        (torch.arange(0), torch.arange(0)),
    ):
        for purpose in Purpose:
            here = uniform(seed, purpose, index, step, position)
            there = uniform(seed, purpose, index.cuda(), step, position.cuda())
            assert torch.equal(here, there.cpu())


@pytest.mark.skipif(
    not torch.cuda.is_available() or not fused_device(torch.device("cuda")),
    reason="no fused draws here",
)
def test_draws_and_reveals_neither_synchronize_nor_recompile() -> None:
    from cwdfm.ops import triton_random, triton_reveal, triton_reveal_few

    weight = cwdfm.Neighbor(1, 1.0)

    def work(step: int) -> None:
        for batch, length in ((1, 16), (3, 17), (2000, 64)):
            index = torch.arange(batch, device="cuda")
            u = uniform_BN(2**64 - step, Purpose.ORDER, index, step, length)
            start = torch.zeros(batch, length, dtype=torch.bool, device="cuda")
            reveal_in_order(weight, start, torch.full((batch,), 3, device="cuda"), u)
            kappa = torch.full((batch,), 0.5, dtype=torch.float64, device="cuda")
            for given in (index, None):
                reveal_drawn(weight, kappa, length, seed=5, step=step, index=given, fixed=None)

    device = torch.cuda.current_device()
    kernels = (triton_random.uniform, triton_reveal.prepare, triton_reveal_few.reveal_few)
    before = len(triton_random.uniform.device_caches[device][0])  # variants of other tests
    work(1)  # copies the weight's tables to the device
    compiled = [len(k.device_caches[device][0]) for k in kernels]
    with no_waiting():
        for step in (16, 2**31, 2**32 - 1):
            work(step)
    assert [len(k.device_caches[device][0]) for k in kernels] == compiled
    assert compiled[0] - before <= 1


# Unmasking solvers need a mask source.
PAIRS = [
    (solver, source)
    for solver in examples(cwdfm.Solver)
    for source in examples(cwdfm.Source)
    if isinstance(solver, cwdfm.Euler) or isinstance(source, cwdfm.MaskSource)
]


@pytest.mark.parametrize(("solver", "source"), PAIRS, ids=str)
def test_samples_match_the_cpu(solver: cwdfm.Solver, source: cwdfm.Source) -> None:
    """With float64 models, tokens could differ only within rounding of a boundary."""

    def draw(model: torch.nn.Module) -> torch.Tensor:
        out = cwdfm.sample(model, source, SCHEDULE, solver, shape=(64, 32), steps=40, seed=5)
        return out.tokens.cpu()

    here = draw(SmallModel(source.num_tokens))
    assert torch.equal(draw(SmallModel(source.num_tokens).cuda()), here)
    assert torch.equal(draw(SmallSplitModel(source.num_tokens).cuda()), here)


@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_resampled_tokens_match_the_cpu(source: cwdfm.Source) -> None:
    start = torch.randint(0, source.vocab_size, (64, 32), generator=torch.manual_seed(0))
    how = cwdfm.Resample(rounds=6, noise_fraction=0.25, threshold=0.9, tokens_per_round=2)

    def resampled(model: torch.nn.Module) -> torch.Tensor:
        return cwdfm.resample(model, source, SCHEDULE, start, how, seed=5).tokens.cpu()

    here = resampled(SmallModel(source.num_tokens))
    assert not torch.equal(here, start)
    assert torch.equal(resampled(SmallModel(source.num_tokens).cuda()), here)
    assert torch.equal(resampled(SmallSplitModel(source.num_tokens).cuda()), here)


@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_accepted_samples_match_the_cpu(source: cwdfm.Source) -> None:
    """With and without sample indices, with individual prompts."""
    g = torch.manual_seed(0)
    prompt = torch.randint(0, source.vocab_size, (64, 32), generator=g)
    fixed = torch.rand(64, 32, generator=g) < 0.2
    arguments = SampleRequest((64, 32), steps=8, seed=5, prompt=prompt, fixed=fixed)

    def drawn(device: str, least: float, **changes: Any) -> cwdfm.Samples:
        flow, model = Flow(source, SCHEDULE), SmallModel(source.num_tokens).to(device)
        return flow.sample(
            model, None, replace(arguments, reject=cwdfm.Reject(least, 4), **changes)
        )

    all_of_them = drawn("cpu", 0.0).plausibility
    assert all_of_them is not None
    least = float(all_of_them.quantile(0.5))  # between two of them
    here = drawn("cpu", least)
    assert int(here.evaluations.max()) > int(here.evaluations.min())
    for index in (None, torch.arange(64), torch.arange(64, device="cuda")):
        there = drawn("cuda", least, index=index)
        assert torch.equal(there.tokens.cpu(), here.tokens)
        assert torch.equal(there.evaluations.cpu(), here.evaluations)


@pytest.mark.parametrize("path", examples(cwdfm.Path), ids=str)
def test_paths_match_the_cpu(path: cwdfm.Path) -> None:
    x_1 = torch.randint(0, 7, (64, 32), generator=torch.manual_seed(0))
    t = torch.linspace(0, 1, 64)
    here, there = path.sample(x_1, t, seed=3), path.sample(x_1.cuda(), t.cuda(), seed=3)
    assert there.x_t.is_cuda
    assert torch.equal(here.x_t, there.x_t.cpu())
    assert torch.equal(here.revealed, there.revealed.cpu())


@pytest.mark.parametrize("radius", [1, 3, 8])
def test_long_context_paths_match_the_cpu(radius: int) -> None:
    path = cwdfm.ContextPath(cwdfm.MaskSource(7), SCHEDULE, cwdfm.Neighbor(radius, 0.5))
    x_1, t = torch.zeros(64, 1024, dtype=torch.int64), torch.linspace(0, 1, 64)
    here, there = path.sample(x_1, t, seed=3), path.sample(x_1.cuda(), t.cuda(), seed=3)
    assert torch.equal(here.revealed, there.revealed.cpu())


REVEALS = [
    cwdfm.Neighbor(1, 1.0),
    cwdfm.Neighbor(3, 1.0),
    cwdfm.Neighbor(2, -0.7),
    cwdfm.Neighbor(4, 1.0),
    cwdfm.Neighbor(8, 0.3, "cut"),
    cwdfm.Neighbor(1, 1.0, "cut", (16, 16)),
    cwdfm.Neighbor(2, -0.5, grid=(16, 16)),
    cwdfm.Neighbor(70, 0.1, "cut"),  # more than 255 buckets
    cwdfm.Neighbor(1, 300.0),
]


@pytest.mark.parametrize("weight", REVEALS, ids=str)
@pytest.mark.parametrize("batch", [1, 33, 2500])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_reveals_match_the_cpu(weight: cwdfm.Neighbor, batch: int, share: float) -> None:
    """0 to all draws, one to three sequences per warp."""
    g = torch.manual_seed(0)
    start = torch.rand(batch, 256, generator=g) < share
    masked = (~start).sum(1)
    count = (torch.rand(batch, generator=g, dtype=torch.float64) * (masked + 1)).long()
    count[0], count[-1] = 0, masked[-1]
    u = torch.rand(batch, 256, generator=g, dtype=torch.float64)
    here = reveal_in_order(weight, start, count, u)
    there = reveal_in_order(weight, start.cuda(), count.cuda(), u.cuda())
    assert torch.equal(here, there.cpu())


def test_reveals_of_a_very_long_sequence_match_the_cpu() -> None:
    """With 32-bit indices."""
    weight, length = cwdfm.Neighbor(2, 1.0), 2**15 + 100
    start = torch.zeros(2, length, dtype=torch.bool)
    count = torch.tensor([length, length // 3])
    u = uniform_BN(0, Purpose.ORDER, torch.arange(2), 0, length)
    here = reveal_in_order(weight, start, count, u)
    there = reveal_in_order(weight, start.cuda(), count.cuda(), u.cuda())
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("loss", examples(cwdfm.Loss), ids=str)
@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_losses_match_the_cpu(loss: cwdfm.Loss, source: cwdfm.Source) -> None:
    g = torch.manual_seed(0)
    x_1 = torch.randint(0, 7, (30, LENGTH), generator=g)
    logits = torch.randn(30, LENGTH, source.num_tokens, generator=g)
    t = torch.linspace(0, 1, 30)
    path = cwdfm.MixturePath(source, SCHEDULE)
    here = loss(logits, path.sample(x_1, t), SCHEDULE)
    there = loss(logits.cuda(), path.sample(x_1.cuda(), t.cuda()), SCHEDULE)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_bound_matches_the_cpu(source: cwdfm.Source) -> None:
    x_1 = torch.randint(0, 7, (20, 16), generator=torch.manual_seed(0))
    here = cwdfm.elbo(SmallModel(source.num_tokens), source, SCHEDULE, x_1)
    there = cwdfm.elbo(SmallModel(source.num_tokens).cuda(), source, SCHEDULE, x_1.cuda())
    torch.testing.assert_close(there.nats_B.cpu(), here.nats_B)
