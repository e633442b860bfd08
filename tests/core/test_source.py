"""Sources: their distributions, reveal masks and renoising."""

import numpy as np
import torch

import cwdfm
from cwdfm.ops.random import Purpose, uniform_BN
from tests.support.stats import assert_follows


def test_mask_source() -> None:
    source = cwdfm.MaskSource(vocab_size=30)
    assert (source.mask_id, source.num_tokens) == (30, 31)
    x = source.noise(torch.arange(2), 5, seed=0)
    assert bool((x == 30).all())
    assert not bool(source.revealed(x).any())
    assert bool(source.revealed(torch.tensor([[29, 30]]))[0, 0])
    logits = torch.randn(2, 5, 31)
    assert torch.equal(source.data_logits(logits), logits[..., :30])


def test_movable_excludes_fixed_and_revealed() -> None:
    x, fixed = torch.tensor([[2, 3, 3, 0]]), torch.tensor([[False, False, True, True]])
    masked = cwdfm.MaskSource(3).movable(x, fixed)
    assert masked.tolist() == [[False, True, False, False]]
    # With a uniform source any token may be noise, so it may move.
    assert cwdfm.UniformSource(4).movable(x, fixed).tolist() == [[True, True, False, False]]


def test_uniform_source_is_uniform() -> None:
    source = cwdfm.UniformSource(vocab_size=7)
    assert source.num_tokens == 7
    x = source.noise(torch.arange(10_000), 10, seed=1)
    assert_follows(np.bincount(x.flatten().numpy(), minlength=7), np.full(7, 1 / 7))
    assert source.revealed(x) is None


def test_renoise_draws_a_different_token_from_the_source() -> None:
    source = cwdfm.UniformSource(vocab_size=5)
    x = torch.full((20_000, 3), 2)
    y = source.renoise(x, uniform_BN(0, Purpose.RENOISE, torch.arange(20_000), 0, 3))
    law = np.array([1, 1, 0, 1, 1]) / 4
    assert_follows(np.bincount(y.flatten().numpy(), minlength=5), law)
    assert source.renoise_probability(x).unique().tolist() == [0.8]

    mask = cwdfm.MaskSource(vocab_size=5)
    x = torch.tensor([[0, 5]])
    assert mask.renoise_probability(x).tolist() == [[1.0, 0.0]]
    assert mask.renoise(x, torch.rand(1, 2)).tolist() == [[5, 5]]
