"""Predictions without the current token, against Bayes' rule over all sequences."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.model.leave_one_out import add_evidence, append_evidence
from cwdfm.model.transformer import DiT, DiTConfig
from tests.support.exact import correlated_target

VOCAB, LENGTH = 3, 2
TARGET = torch.from_numpy(correlated_target(VOCAB, LENGTH, seed=0))
STATES = torch.tensor(list(product(range(VOCAB), repeat=LENGTH)))


def without_current(x: Tensor, kappa: float) -> Tensor:
    """log p(x_1^i | x_t^-i) [B, N, V]: the other token is noised, this one is summed out."""
    noised = kappa * torch.eye(VOCAB, dtype=torch.float64) + (1 - kappa) / VOCAB
    first = TARGET @ noised  # [x_1^0, x_t^1]
    second = noised @ TARGET  # [x_t^0, x_1^1]; the kernel is symmetric
    return torch.stack([first[:, x[:, 1]].T, second[x[:, 0]]], dim=1).log()


@pytest.mark.parametrize("kappa", [0.0, 0.1, 0.7, 0.99])
def test_evidence_gives_the_posterior(kappa: float) -> None:
    exact = cwdfm.ExactPosterior(TARGET, cwdfm.UniformSource(VOCAB), cwdfm.Linear())
    t = torch.full((len(STATES),), kappa, dtype=torch.float64)
    readout = torch.nn.Linear(VOCAB, VOCAB, bias=False, dtype=torch.float64)
    torch.nn.init.eye_(readout.weight)
    hidden = append_evidence(without_current(STATES, kappa), STATES, t, VOCAB)
    found = add_evidence(hidden, readout).log_softmax(-1)
    torch.testing.assert_close(found, exact(STATES, t).log_softmax(-1))


def test_every_path_of_the_network_includes_the_evidence() -> None:
    """Split calls, samples and bounds see the logits of model(x, t), also in bfloat16."""
    torch.manual_seed(0)
    network = DiT(DiTConfig(300, 16, 2, 2, 8, time="sigma", leave_one_out=True)).eval()
    torch.nn.init.normal_(network.readout.weight)
    x, t = torch.randint(0, 300, (4, 6)), torch.tensor([0.0, 0.2, 0.6, 0.999])
    source, schedule = cwdfm.UniformSource(300), cwdfm.Linear()
    whole = lambda x_t, t: network(x_t, t)  # noqa: E731
    options: dict[str, Any] = {"shape": (8, 6), "steps": 5, "seed": 3}
    split = cwdfm.sample(network, source, schedule, cwdfm.Euler(), **options)
    assert torch.equal(
        split.tokens, cwdfm.sample(whole, source, schedule, cwdfm.Euler(), **options).tokens
    )
    bound = cwdfm.elbo(network, source, schedule, x, draws=2)
    torch.testing.assert_close(bound.nats_B, cwdfm.elbo(whole, source, schedule, x, draws=2).nats_B)
    plain = DiT(DiTConfig(300, 16, 2, 2, 8, time="sigma")).eval()
    plain.load_state_dict(network.state_dict())
    with torch.no_grad():
        half = network.bfloat16()(x, t).float() - plain.bfloat16()(x, t).float()
    raised = half.gather(2, x[..., None])[..., 0]
    expected = torch.log1p(300 * t.double() / (1 - t.double()))[:, None].expand(4, 6)
    torch.testing.assert_close(raised.double(), expected, atol=0.2, rtol=0.01)
    assert float(half.scatter(2, x[..., None], 0.0).abs().max()) == 0.0  # only the current token
    with pytest.raises(cwdfm.InputError, match="leave_one_out"):
        network(x, t, read=lambda hidden, readout: hidden.sum())
