"""Counted jumps: their number does not depend on the weight; exact laws and convergence."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.model.exact_posterior import ExactPosterior
from cwdfm.schedule import Linear
from cwdfm.solver import Corrector, Euler, sample
from cwdfm.source import MaskSource, UniformSource
from cwdfm.weight import ContextWeight, Distance, Entropy, Neighbor
from tests.support.cases import slow
from tests.support.exact import ordered_draws
from tests.support.models import constant
from tests.support.stats import assert_differs, assert_follows, binomial, histogram

LENGTH = 4
SOURCE = MaskSource(2)
WEIGHT = Neighbor(radius=1, scale=2.0)
blank = constant(torch.zeros(SOURCE.num_tokens))  # uniform predictions


@pytest.mark.parametrize("hazard", ["euler", "integrated"])
def test_one_step_has_the_exact_law(hazard: str) -> None:
    """From a state with one fixed token, so that the weights of masked positions differ."""
    n, t, t_next = 40_000, 0.3, 0.7
    solver = Euler(weight=WEIGHT, counted=True, hazard=hazard)  # type: ignore[arg-type]
    prompt = torch.tensor([SOURCE.mask_id, 1, SOURCE.mask_id, SOURCE.mask_id])
    state = solver.init(SOURCE, torch.arange(n), LENGTH, prompt=prompt)
    after, info = solver.step(blank, SOURCE, Linear(), state, t, t_next)
    schedule = Linear()
    if hazard == "euler":
        rate = (t_next - t) * float(schedule.hazard(t))
    else:
        rate = float(schedule.integrated_hazard(t, t_next))
    alpha = WEIGHT(state.fixed[:1])[0].numpy()
    law = np.zeros(2**LENGTH)
    alone = np.ones(2**LENGTH)
    for size, chance in enumerate(binomial(3, 1 - np.exp(-rate))):
        for chosen, p in ordered_draws(alpha, size).items():
            law[sum(2 ** (LENGTH - 1 - i) for i in chosen)] += chance * p
    for code, moves in enumerate(product([0, 1], repeat=LENGTH)):
        for i, move in enumerate(moves):
            ring = 1 - np.exp(-alpha[i] * rate)
            alone[code] *= ring if move else 1 - ring
    counts = histogram(info.forward.long(), 2)
    assert_follows(counts, law)
    assert_differs(counts, alone)
    assert torch.equal(after.tokens != state.tokens, info.forward)


def test_counted_has_no_effect_without_a_weight() -> None:
    options = {"shape": (50, LENGTH), "steps": 7, "seed": 2}
    plain, counted = (
        sample(blank, SOURCE, Linear(), Euler(counted=counted), **options)  # type: ignore[arg-type]
        for counted in (False, True)
    )
    assert torch.equal(plain.tokens, counted.tokens)


@pytest.mark.parametrize(
    "weight", [WEIGHT, Entropy(3.0), Neighbor(radius=2, scale=1e3), Entropy(1e4)], ids=str
)
def test_number_of_jumps_equals_that_without_a_weight(weight: Neighbor) -> None:
    """With the paper's rule the last step has more jumps. Most steep weights are 0 in float64."""
    n, length, steps = 2000, 12, 4
    moved: dict[bool, list[int]] = {False: [0] * steps, True: [0] * steps}
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(length, SOURCE.num_tokens, generator=g) * 3
    uneven = constant(logits)
    for counted, found in moved.items():
        solver = Euler(weight=weight, counted=counted, hazard="integrated")
        state = solver.init(SOURCE, torch.arange(n), length)
        for k in range(steps):
            state, info = solver.step(uneven, SOURCE, Linear(), state, k / steps, (k + 1) / steps)
            found[k] = int(info.forward.sum())
    expected = n * length / steps
    spread = (n * length * (1 / steps) * (1 - 1 / steps)) ** 0.5
    # Five standard errors, each step: a false alarm in 4e-7 of seeds a step.
    assert all(abs(count - expected) < 5 * spread for count in moved[True])
    assert moved[False][-1] > expected + 10 * spread


def test_steep_weights_jump_in_descending_order() -> None:
    """Two tokens are given. Coordinates near both jump first, then those near one, then the rest.

    In float64 the weights of all but the first are 0.
    """
    source, length, n = MaskSource(2), 10, 4000
    solver = Euler(weight=Neighbor(radius=3, scale=1e3, boundary="circular"), counted=True)
    prompt = torch.full((length,), source.mask_id)
    prompt[:2] = 0
    state = solver.init(source, torch.arange(n), length, prompt=prompt)
    _, info = solver.step(blank, source, Linear(), state, 0.5, 0.9)
    rank = torch.tensor([-1, -1, 0, 0, 1, 2, 2, 1, 0, 0])  # near both, one, none
    alpha = solver.weight(state.fixed[:1])[0]  # type: ignore[misc]
    assert (alpha == 0).tolist() == [True, True, *(rank[2:] > 0).tolist()]
    assert int(info.forward[:, :2].sum()) == 0
    moved = info.forward.long()
    for k in (1, 2):
        before = (rank < k) & (rank >= 0)
        some = moved[:, rank == k].any(1)
        assert 0 < int(some.sum()) < n
        assert bool(moved[some][:, before].all())
    for i, j in ((5, 6), (4, 7)):  # equal weights, equal probabilities: five standard errors
        apart = int((moved[:, i] != moved[:, j]).sum())
        assert abs(int(moved[:, i].sum() - moved[:, j].sum())) < 5 * apart**0.5


def test_zero_weights_jump_last() -> None:
    """In random order among themselves. Revealed tokens never move."""

    class OddOnes(ContextWeight):
        equivariant = False

        def context_score(self, revealed_BN: Tensor) -> Tensor:
            odd_N = torch.arange(revealed_BN.shape[1]) % 2 == 1
            return torch.where(odd_N, 0.0, -torch.inf).double().expand(revealed_BN.shape)

    solver = Euler(weight=OddOnes(), counted=True)
    prompt, n = torch.full((8,), SOURCE.mask_id), 4000
    prompt[0] = prompt[1] = 1
    state = solver.init(SOURCE, torch.arange(n), 8, prompt=prompt)
    _, info = solver.step(blank, SOURCE, Linear(), state, 0.5, 0.9)
    odd, even = info.forward[:, 3::2], info.forward[:, 2::2]
    assert not bool(info.forward[:, :2].any())
    assert bool(odd[even.any(1)].all())
    assert_follows(info.forward.sum(1).bincount(minlength=7).numpy(), binomial(6, 1 - np.exp(-0.8)))
    assert_follows(even[even.sum(1) == 1].sum(0).numpy(), np.full(3, 1 / 3))


def test_steep_weights_keep_their_order() -> None:
    """exp(-1e5 d) underflows in float64 for all d, but the nearer token still jumps first."""
    solver = Euler(weight=Distance(1e5, radius=20, boundary="cut"), counted=True)
    prompt = torch.full((12,), SOURCE.mask_id)
    prompt[0] = 1
    state = solver.init(SOURCE, torch.arange(500), 12, prompt=prompt)
    _, info = solver.step(blank, SOURCE, Linear(), state, 0.2, 0.6)
    count = info.forward.sum(1, keepdim=True)
    assert torch.equal(info.forward[:, 1:], torch.arange(11) < count)
    assert len(count.unique()) > 3


@pytest.mark.parametrize("source", [MaskSource(2), UniformSource(2)], ids=str)
@pytest.mark.parametrize("weight", [WEIGHT, slow(Entropy(1.0))], ids=str)
def test_convergence_to_the_target(source: MaskSource | UniformSource, weight: Neighbor) -> None:
    """A mask source converges to the target; a uniform source keeps the bias of the weights."""
    g = torch.Generator().manual_seed(3)
    target = torch.rand(2**LENGTH, generator=g, dtype=torch.float64) ** 2
    target /= target.sum()
    model = ExactPosterior(target.view((2,) * LENGTH), source, Linear())
    n = 10_000
    distances = []
    for steps in (4, 64):
        solver = Euler(weight=weight, counted=True, hazard="integrated")
        found = sample(model, source, Linear(), solver, shape=(n, LENGTH), steps=steps)
        share = histogram(found.tokens, 2) / n
        distances.append(0.5 * float(np.abs(share - target.numpy()).sum()))
    assert distances[1] < distances[0]
    assert distances[1] < (0.03 if isinstance(source, MaskSource) else 0.12)


def test_counted_with_a_corrector_is_an_error() -> None:
    with pytest.raises(InputError, match=r"counted=True.*corrector"):
        Euler(weight=WEIGHT, counted=True, corrector=Corrector(1.0))
