"""Block diffusion: likelihoods and bounds, against enumeration and both limits of block size."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.baselines.bd3lm.method import ParallelBlocks
from cwdfm.model.attention import CausalAttention
from cwdfm.model.transformer import DiT
from tests.support.blocks import LINEAR, method, network, plain_logits, tokens


def test_blocks_of_one_token_have_the_autoregressive_likelihood() -> None:
    """Against one call per token, and against the sampled bound.

    The bound of one token is integral dkappa/(1 - kappa) P(masked) (-log p) = -log p. Within 5
    standard errors: a false alarm in 2 million.
    """
    model, length = network(1, double=True), 6
    x_1 = tokens(20, length)
    truth = torch.zeros(20, dtype=torch.float64)
    with torch.no_grad():
        for k in range(length):
            x = torch.cat([x_1[:, :k], torch.full((20, 1), 7)], dim=1)
            logits = model.head(model.trunk(x, torch.zeros(20), CausalAttention())[:, -1])[:, :7]
            truth -= logits.log_softmax(-1).gather(1, x_1[:, k : k + 1])[:, 0]
    found = method(1).likelihood(model, x_1, batch_size=7)
    torch.testing.assert_close(found.nats_B, truth, rtol=1e-9, atol=0.0)
    assert (found.exact, found.standard_error, found.tokens) == (True, 0.0, 120)
    bound = cwdfm.elbo(
        ParallelBlocks(model, x_1), cwdfm.MaskSource(7), LINEAR, x_1, draws=400, batch_size=20
    )
    exact = float(truth.sum()) / x_1.numel()
    assert bound.nats_per_token == pytest.approx(exact, abs=5 * bound.standard_error)
    assert bound.standard_error < 0.01 * exact


def test_one_block_is_masked_diffusion() -> None:
    """The same weights with full attention give the same estimate with `cwdfm.elbo`."""
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


def test_bound_is_the_sum_over_blocks() -> None:
    """Against quadrature over kappa with all x_t enumerated. 5 standard errors: 1 in 2 million."""
    model, x_1 = network(2, 3, double=True), (0, 2, 1, 1)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    truth = 0.0
    for k in (0, 2):
        before = torch.tensor([x_1[:k]], dtype=torch.int64)
        cost = {}  # cross-entropy of the masked tokens of each state
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
