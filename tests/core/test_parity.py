"""Parity with flow_matching's discrete Euler solver, on the same exact posterior."""

import pytest
import torch
from flow_matching.path import MixtureDiscreteProbPath
from flow_matching.path.scheduler import PolynomialConvexScheduler
from flow_matching.solver import MixtureDiscreteEulerSolver
from flow_matching.utils import ModelWrapper
from torch import Tensor

import cwdfm
from tests.support.cases import slow
from tests.support.exact import correlated_target
from tests.support.stats import assert_differs, assert_same_law, histogram, p_value

SCHEDULE = cwdfm.Polynomial(2.0)
N = 40_000


class ReferenceModel(ModelWrapper):  # type: ignore[misc]
    """Probabilities for flow_matching, with the carry-over that it leaves to the model."""

    def __init__(self, model: cwdfm.ExactPosterior) -> None:
        super().__init__(torch.nn.Identity())
        self.exact = model

    def forward(self, x: Tensor, t: Tensor, **_: object) -> Tensor:
        p = self.exact(x, t).softmax(-1)
        revealed = self.exact.source.revealed(x)
        if revealed is None:
            return p
        keep = torch.nn.functional.one_hot(x, p.shape[-1]).double()
        return torch.where(revealed[..., None], keep, p)


@pytest.mark.parametrize("source", [cwdfm.MaskSource(3), cwdfm.UniformSource(3)], ids=str)
@pytest.mark.parametrize("steps", [3, slow(8)])
def test_euler_has_the_same_law(source: cwdfm.Source, steps: int) -> None:
    model = cwdfm.ExactPosterior(
        torch.from_numpy(correlated_target(3, 3, seed=0)), source, SCHEDULE
    )
    peer = MixtureDiscreteEulerSolver(
        ReferenceModel(model),
        MixtureDiscreteProbPath(PolynomialConvexScheduler(n=2.0)),
        vocabulary_size=source.num_tokens,
    )
    torch.manual_seed(0)
    theirs = peer.sample(
        x_init=source.noise(torch.arange(N), 3, seed=99),
        step_size=None,
        time_grid=torch.linspace(0, 1, steps + 1),
        dtype_categorical=torch.float64,
    )
    ours = cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(N, 3), steps=steps)
    assert_same_law(histogram(ours.tokens, 3), histogram(theirs, 3))
    # the control: one step less is detected
    fewer = cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(N, 3), steps=steps - 1)
    law = histogram(theirs, 3) / N
    assert p_value(histogram(ours.tokens, 3), law) > 1e-12
    assert_differs(histogram(fewer.tokens, 3), law)
