"""The learned confidence: calibrated for a model that is not."""

from itertools import product

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.model.positions import Positions
from cwdfm.weight.learned import features, fit_logistic
from tests.support.chains import SCHEDULE, model_of, source_of
from tests.support.exact import Chain


@pytest.mark.parametrize("mask", [True, False])
def test_confidence_is_calibrated_for_an_overconfident_model(mask: bool) -> None:
    """The model's own probability of being right is far too high; the fitted one is not."""
    states = np.array(list(product(range(4), repeat=4)))
    agree = (states == np.roll(states, 1, 1)).sum(1)  # neighbors on a ring tend to agree
    chain = Chain((np.exp(agree) / np.exp(agree).sum()).reshape(4, 4, 4, 4), mask)
    exact, source = model_of(chain), source_of(chain)

    def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return 4 * exact(x, t)

    def data(seed: int) -> torch.Tensor:
        chosen = np.random.default_rng(seed).choice(256, 3000, p=chain.target.ravel())
        return torch.from_numpy(chain.data_YN[chosen])

    weight = cwdfm.fit_confidence(model, source, SCHEDULE, data(0))
    x_1, t = data(1), torch.linspace(0.1, 0.9, 3000)
    noised = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t, seed=9)
    rows = Positions.of(~noised.revealed)
    logits = source.data_logits(rows.take(model(noised.x_t, t)))
    p = logits.softmax(-1)
    right = p.gather(1, rows.take(x_1)[:, None])[:, 0]
    fitted, own = weight.prediction_score(logits).exp(), (p * p).sum(-1)
    assert float(own.mean() - right.mean()) > 0.15
    assert abs(float(fitted.mean() - right.mean())) < 0.02
    # It also says where: the surest fifth is right more often than the least sure.
    fifth, order = len(right) // 5, fitted.argsort()
    gap = float(right[order[-fifth:]].mean() - right[order[:fifth]].mean())
    assert gap > (0.1 if mask else 0.03)  # tokens that may be noise say less about others
    for part in order.split(fifth)[:5]:
        assert abs(float(fitted[part].mean() - right[part].mean())) < 0.05


def test_logistic_regression_finds_the_coefficients() -> None:
    generator = torch.manual_seed(0)
    logits = torch.randn(20_000, 5, generator=generator) * 3
    truth = torch.tensor([0.5, -1.0, 0.3, 2.0], dtype=torch.float64)
    found = fit_logistic(features(logits), torch.sigmoid(features(logits) @ truth))
    assert torch.allclose(found, truth, atol=0.01)


def test_invalid_coefficients() -> None:
    with pytest.raises(cwdfm.InputError, match="fit_confidence"):
        cwdfm.Learned((1.0, 2.0))  # type: ignore[arg-type]
