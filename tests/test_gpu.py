"""On a CUDA device: the same seeds give the same samples as on the CPU.

Run there with `pytest -m gpu tests/test_gpu.py`.
"""

import pytest
import torch

import cwdfm
from cwdfm.random import Purpose, uniform_BN
from tests.models import SmallModel, SmallSplitModel
from tests.test_conformance import LENGTH, examples

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


@pytest.mark.parametrize("solver", examples(cwdfm.Solver), ids=str)
@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_samples_are_the_cpu_s(solver: cwdfm.Solver, source: cwdfm.Source) -> None:
    """Float64 models on both: a token could differ only within rounding of a boundary."""

    def draw(model: torch.nn.Module) -> torch.Tensor:
        out = cwdfm.sample(model, source, SCHEDULE, solver, shape=(64, 32), steps=40, seed=5)
        return out.tokens.cpu()

    here = draw(SmallModel(source.num_tokens))
    assert torch.equal(draw(SmallModel(source.num_tokens).cuda()), here)
    assert torch.equal(draw(SmallSplitModel(source.num_tokens).cuda()), here)


@pytest.mark.parametrize("path", examples(cwdfm.Path), ids=str)
def test_paths_are_the_cpu_s(path: cwdfm.Path) -> None:
    x_1 = torch.randint(0, 7, (64, 32), generator=torch.manual_seed(0))
    t = torch.linspace(0, 1, 64)
    here, there = path.sample(x_1, t, seed=3), path.sample(x_1.cuda(), t.cuda(), seed=3)
    assert there.x_t.is_cuda
    assert torch.equal(here.x_t, there.x_t.cpu())
    assert torch.equal(here.revealed, there.revealed.cpu())


@pytest.mark.parametrize("radius", [1, 3, 8])
def test_long_context_paths_are_the_cpu_s(radius: int) -> None:
    path = cwdfm.ContextPath(cwdfm.MaskSource(7), SCHEDULE, cwdfm.Neighbor(radius, 0.5))
    x_1, t = torch.zeros(64, 1024, dtype=torch.int64), torch.linspace(0, 1, 64)
    here, there = path.sample(x_1, t, seed=3), path.sample(x_1.cuda(), t.cuda(), seed=3)
    assert torch.equal(here.revealed, there.revealed.cpu())


@pytest.mark.parametrize("loss", examples(cwdfm.Loss), ids=str)
@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_losses_are_the_cpu_s(loss: cwdfm.Loss, source: cwdfm.Source) -> None:
    g = torch.manual_seed(0)
    x_1 = torch.randint(0, 7, (30, LENGTH), generator=g)
    logits = torch.randn(30, LENGTH, source.num_tokens, generator=g)
    t = torch.linspace(0, 1, 30)
    path = cwdfm.MixturePath(source, SCHEDULE)
    here = loss(logits, path.sample(x_1, t), SCHEDULE)
    there = loss(logits.cuda(), path.sample(x_1.cuda(), t.cuda()), SCHEDULE)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", examples(cwdfm.Source), ids=str)
def test_bound_is_the_cpu_s(source: cwdfm.Source) -> None:
    x_1 = torch.randint(0, 7, (20, 16), generator=torch.manual_seed(0))
    here = cwdfm.elbo(SmallModel(source.num_tokens), source, SCHEDULE, x_1)
    there = cwdfm.elbo(SmallModel(source.num_tokens).cuda(), source, SCHEDULE, x_1.cuda())
    torch.testing.assert_close(there.nats_B.cpu(), here.nats_B)
