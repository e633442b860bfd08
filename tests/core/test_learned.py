"""Weights fitted to a model's errors: calibrated for a model that is not."""

from itertools import product

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.model.positions import Positions
from cwdfm.weight.learned import calibrating_temperature, features, fit_logistic
from tests.support.chains import SCHEDULE, model_of, source_of
from tests.support.exact import Chain, correlated_target


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


@pytest.mark.parametrize("mask", [True, False])
def test_given_tokens_are_neither_noised_nor_measured(mask: bool) -> None:
    """A model that is wrong only where tokens are given is measured as if it were right."""
    chain = Chain(correlated_target(3, 3, seed=1), mask)
    exact, source = model_of(chain), source_of(chain)
    fixed = torch.tensor([True, False, False])

    def broken(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert (x[:, 0] == data[:, 0]).all()
        return torch.where(fixed[:, None], 9.0 * torch.arange(source.num_tokens), exact(x, t))

    data = torch.from_numpy(chain.data_YN[np.random.default_rng(0).choice(27, 64)])
    for fit in (cwdfm.fit_confidence, cwdfm.fit_temperature):
        found = [fit(m, source, SCHEDULE, data, fixed=fixed, times=3) for m in (exact, broken)]
        assert found[0] == found[1]
    grids = [
        cwdfm.jump_your_steps(m, source, SCHEDULE, data, 3, fixed=fixed, resolution=8)
        for m in (exact, broken)
    ]
    assert grids[0].equal(grids[1])


def test_logistic_regression_finds_the_coefficients() -> None:
    generator = torch.manual_seed(0)
    logits = torch.randn(20_000, 5, generator=generator) * 3
    truth = torch.tensor([0.5, -1.0, 0.3, 2.0], dtype=torch.float64)
    found = fit_logistic(features(logits), torch.sigmoid(features(logits) @ truth))
    assert torch.allclose(found, truth, atol=0.01)


@pytest.mark.parametrize("mask", [True, False])
def test_temperature_of_an_overconfident_model(mask: bool) -> None:
    """Logits multiplied by three have a temperature of three, and then the exact entropies."""
    chain = Chain(correlated_target(3, 3, seed=1), mask)
    exact, source = model_of(chain), source_of(chain)
    chosen = np.random.default_rng(0).choice(27, 4000, p=chain.target.ravel())
    data = torch.from_numpy(chain.data_YN[chosen])
    weight = cwdfm.fit_temperature(lambda x, t: 3 * exact(x, t), source, SCHEDULE, data, times=4)
    assert weight.temperature == pytest.approx(3.0, abs=0.15)
    logits = torch.tensor([[0.3, -torch.inf, 1.0], [2.0, 0.0, -1.0]])
    entropies = cwdfm.Entropy(1.0).prediction_score(logits)
    same = cwdfm.CalibratedEntropy(3.0).prediction_score(3 * logits)
    assert torch.allclose(same, entropies.double())


@pytest.mark.parametrize("start", [0.05, 1.0, 20.0])
def test_temperature_is_that_of_the_largest_likelihood(start: float) -> None:
    """Against a fine grid of temperatures, from far away too."""
    generator = torch.manual_seed(0)
    logits = torch.randn(500, 4, generator=generator) / start
    target = torch.multinomial((logits * start * 2).softmax(-1), 1, generator=generator)[:, 0]
    found = calibrating_temperature([logits[:200], logits[200:]], [target[:200], target[200:]])
    grid = found * torch.linspace(0.8, 1.2, 401, dtype=torch.float64)
    scaled = logits.double() / grid[:, None, None]
    loss = [torch.nn.functional.cross_entropy(each, target) for each in scaled]
    assert int(torch.stack(loss).argmin()) == pytest.approx(200, abs=1)


def test_invalid_coefficients() -> None:
    with pytest.raises(cwdfm.InputError, match="fit_confidence"):
        cwdfm.Learned((1.0, 2.0))  # type: ignore[arg-type]
    for temperature in (0.0, float("inf"), "1"):
        with pytest.raises(cwdfm.InputError, match="fit_temperature"):
            cwdfm.CalibratedEntropy(temperature)  # type: ignore[arg-type]
