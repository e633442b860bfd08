"""On a CUDA device: training with CUDA graphs matches training without.

Run there with `pytest -m gpu tests/gpu/test_gpu_train.py`.
"""

from pathlib import Path

import pytest
import torch

from cwdfm.train.config import TrainConfig
from cwdfm.train.execution import WARMUP_CALLS, GraphedTrunk
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run
from experiments.bench.subject import random_data
from tests.support.gpu import COMPILED

pytestmark = COMPILED
STEPS = WARMUP_CALLS + 4


def recipe_of(**changes: object) -> TrainConfig:
    """A small run with the sequence length of molecules; compiled, as in real runs."""
    settings: dict[str, object] = {
        "model": "debug",
        "batch_size": 32,
        "length": 16,
        "steps": 50,
        "warmup": 2,
        "compile": True,
        "precision": "bfloat16",
    }
    return RECIPES["qm9-small"]().updated(**settings | changes)


CUDA = torch.device("cuda")
Trained = tuple[list[float], list[torch.Tensor], Run]


def trained(recipe: TrainConfig, graphed: bool, steps: int = STEPS) -> Trained:
    """Losses, weights, and the run."""
    torch.compiler.reset()
    run = Run(recipe, random_data(40, recipe), Path("nowhere"), CUDA)
    assert isinstance(run.model.trunk, GraphedTrunk)
    if not graphed:
        run.model.trunk = run.model.trunk.trunk  # type: ignore[method-assign]
        run.graphed = False
    losses = [float(run.train_step()) for _ in range(steps)]
    return losses, [p.detach().clone() for p in run.model.parameters()], run


CASES = [
    {},
    {"source": "mask", "masked_only": True},
    {"method": "ar"},
    {"precision": "float32"},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_graphed_training_matches(changes: dict[str, object]) -> None:
    recipe = recipe_of(**changes)
    losses, weights, _ = trained(recipe, graphed=False)
    again, others, run = trained(recipe, graphed=True)
    trunk = run.model.trunk
    assert isinstance(trunk, GraphedTrunk)
    assert trunk.replay is not None
    assert again == pytest.approx(losses, rel=1e-5)
    for mine, other in zip(others, weights, strict=True):
        # AdamW amplifies differences in the order of sums; different masks would differ by 0.1.
        assert float((mine - other).norm()) <= 1e-3 * float(other.norm()) + 1e-7
    assert losses[0] != losses[-1]


def test_other_shapes_and_evaluation_are_not_replayed() -> None:
    _, _, run = trained(recipe_of(), graphed=True)
    trunk = run.model.trunk
    assert isinstance(trunk, GraphedTrunk)
    x = torch.randint(40, (5, 16), device="cuda")
    t = torch.rand(5, device="cuda")
    assert trunk(x, t).shape[:2] == (5, 16)
    run.model.eval()
    x, t = torch.randint(40, (32, 16), device="cuda"), torch.rand(32, device="cuda")
    with torch.no_grad():
        assert torch.equal(trunk(x, t), trunk.trunk(x, t))


@pytest.mark.parametrize("changes", [{"accumulation": 2}, {"dropout": 0.1}], ids=str)
def test_settings_without_cuda_graphs(changes: dict[str, object]) -> None:
    run = Run(recipe := recipe_of(**changes), random_data(40, recipe), Path("nowhere"), CUDA)
    losses = [float(run.train_step()) for _ in range(WARMUP_CALLS + 3)]
    assert not isinstance(run.model.trunk, GraphedTrunk)
    assert all(0 < loss < 10 for loss in losses)
