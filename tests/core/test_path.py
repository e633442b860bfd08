"""Paths: the sample record, the law of the mixture path, fixed coordinates."""

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.method.flow_config import ContextPathConfig
from tests.support.stats import assert_follows, binomial

SCHEDULE = cwdfm.Polynomial(2.0)
SOURCES = [cwdfm.MaskSource(5), cwdfm.UniformSource(5)]


def paths(source: cwdfm.Source) -> list[cwdfm.Path]:
    return [
        cwdfm.MixturePath(source, SCHEDULE),
        cwdfm.ContextPath(source, SCHEDULE, cwdfm.Neighbor(1, 2.0)),
    ]


def test_kappa_is_computed_in_float64_for_any_dtype_of_t() -> None:
    """bfloat16 represents 0.8984375 exactly, but its square only with an error of 0.0014."""
    x_1, t = torch.zeros(2_000, 8, dtype=torch.int64), torch.full((2_000,), 0.8984375)
    for path in paths(SOURCES[0]):
        coarse, fine = (path.sample(x_1, each) for each in (t.bfloat16(), t.double()))
        assert torch.equal(coarse.revealed, fine.revealed)


def test_mixture_reveals_are_independent() -> None:
    """All reveal sets of N = 4 against the product law."""
    batch = cwdfm.MixturePath(SOURCES[0], SCHEDULE).sample(
        torch.zeros(60_000, 4, dtype=torch.int64), torch.full((60_000,), 0.6)
    )
    code = (batch.revealed * torch.tensor([8, 4, 2, 1])).sum(1)
    law = [0.36 ** bin(s).count("1") * 0.64 ** (4 - bin(s).count("1")) for s in range(16)]
    assert_follows(np.bincount(code.numpy(), minlength=16), np.array(law))


def test_revealed_is_not_value_equality() -> None:
    """With 5 tokens, one in 5 masked coordinates equals x_1 by chance."""
    source = cwdfm.UniformSource(5)
    x_1 = torch.randint(0, 5, (20_000, 8), generator=torch.manual_seed(0))
    batch = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, torch.full((20_000,), 0.5))
    hidden = batch.x_t[~batch.revealed] == x_1[~batch.revealed]
    k, n = int(hidden.sum()), hidden.numel()
    assert_follows(np.array([k, n - k]), np.array([0.2, 0.8]))


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_fixed_coordinates_are_revealed_and_the_rest_binomial(source: cwdfm.Source) -> None:
    n, length = 20_000, 8
    fixed = torch.zeros(n, length, dtype=torch.bool)
    fixed[:, :3] = True
    x_1 = torch.zeros(n, length, dtype=torch.int64)
    for path in paths(source):
        batch = path.sample(x_1, torch.full((n,), 0.6), fixed=fixed)
        assert bool(batch.revealed[:, :3].all())
        counts = np.bincount(batch.revealed[:, 3:].sum(1).numpy(), minlength=6)
        assert_follows(counts, binomial(5, 0.36))


def test_neighbors_of_a_prompt_are_revealed_first() -> None:
    fixed = torch.zeros(20_000, 10, dtype=torch.bool)
    fixed[:, 0] = True
    path = cwdfm.ContextPath(SOURCES[0], SCHEDULE, cwdfm.Neighbor(1, 3.0))
    batch = path.sample(
        torch.zeros(20_000, 10, dtype=torch.int64), torch.full((20_000,), 0.5), fixed=fixed
    )
    share = batch.revealed.double().mean(0)
    assert float(share[[1, 9]].min()) > 1.5 * float(share[5])


def test_cut_windows_reveal_from_left_to_right() -> None:
    """With a given first token; windows that wrap around reveal from both ends."""
    t, fixed = torch.linspace(0, 1, 300), torch.arange(12).expand(300, 12) == 0
    x_1 = torch.zeros(300, 12, dtype=torch.int64)
    prefixes = {}
    for boundary in ("auto", "circular", "cut"):
        config = ContextPathConfig(path_scale=40.0, path_boundary=boundary)
        path = cwdfm.path_for(cwdfm.MaskSource(3), SCHEDULE, config.weight(12))
        revealed = path.sample(x_1, t, fixed=fixed).revealed
        prefix = revealed.int().cumprod(1).bool()
        prefixes[boundary] = bool((revealed == prefix).all())
    assert prefixes == {"auto": False, "circular": False, "cut": True}


@pytest.mark.parametrize(("seed", "step"), [(1, 0), (0, 1)])
def test_every_seed_and_step_has_independent_noise_and_reveals(seed: int, step: int) -> None:
    """Two draws agree no more often than independent ones: in noise 1/V, in reveals k^2 + (1-k)^2.

    A false alarm in 2e-6 of seeds a case and path.
    """
    x_1, t = torch.zeros(2_000, 8, dtype=torch.int64), torch.full((2_000,), 0.6)
    for path in paths(cwdfm.UniformSource(5)):
        one, other = path.sample(x_1, t), path.sample(x_1, t, seed=seed, step=step)
        same = int((one.x_0 == other.x_0).sum())
        assert_follows(np.array([same, x_1.numel() - same]), np.array([0.2, 0.8]))
        # One position per sequence: reveals within a sequence are dependent on a weighted path.
        both = one.revealed[:, 0].long() + other.revealed[:, 0].long()
        assert_follows(np.bincount(both.numpy(), minlength=3), binomial(2, 0.36))
