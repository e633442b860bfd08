"""Refinement: invariance of the target, convergence to it, fixed tokens, and `Start`."""

from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.trained import prompt_tokens
from tests.support.cases import slow
from tests.support.models import Recorder, SmallModel
from tests.support.postprocess import FLOWS, MASK, SCHEDULE, TARGET, UNIFORM, N, V
from tests.support.stats import assert_differs, assert_follows, histogram

B = 20_000
LAW = TARGET.flatten()
EXACT = cwdfm.FirstHitting()  # one token at a time: without any error of its own


def drawn(count: int = B) -> torch.Tensor:
    """Samples of the target."""
    code = np.random.default_rng(1).choice(len(LAW), size=count, p=LAW)
    return torch.from_numpy(np.stack(np.unravel_index(code, TARGET.shape), axis=1))


def refined(
    start: torch.Tensor, how: cwdfm.Refine, weight: cwdfm.Weight | None = None
) -> np.ndarray:
    found = cwdfm.refine(*FLOWS[MASK], EXACT, start, how, weight=weight)
    return histogram(found.tokens, V)


@pytest.mark.parametrize("share", [0.3, slow(0.7)])
@pytest.mark.parametrize("weight", [None, cwdfm.Neighbor(1, 2.0)], ids=str)
def test_the_target_is_invariant(share: float, weight: cwdfm.Weight | None) -> None:
    how = cwdfm.Refine(rounds=2, noise_fraction=share, steps=N)
    assert_follows(refined(drawn(), how, weight), LAW)


def test_other_laws_converge_to_the_target() -> None:
    start = torch.zeros(10_000, N, dtype=torch.int64)
    assert_differs(refined(start, cwdfm.Refine(rounds=1, noise_fraction=0.7, steps=N)), LAW)
    assert_follows(refined(start, cwdfm.Refine(rounds=10, noise_fraction=0.7, steps=N)), LAW)


def test_coarse_samples_come_closer_with_a_uniform_source() -> None:
    """A few more steps reduce the total variation distance."""
    solver, flow = cwdfm.Euler(hazard="integrated"), FLOWS[UNIFORM]
    coarse = cwdfm.sample(*flow, solver, shape=(B, N), steps=3).tokens
    how = cwdfm.Refine(rounds=8, noise_fraction=0.3, steps=8)
    found = cwdfm.refine(*flow, solver, coarse, how).tokens
    before, after = (np.abs(histogram(x, V) / B - LAW).sum() / 2 for x in (coarse, found))
    assert before > 0.15
    assert after < before / 3


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_noise_fraction_one_samples_from_scratch(source: cwdfm.Source) -> None:
    """With a noise fraction of 1 the result does not depend on the start."""
    how, solver = cwdfm.Refine(rounds=1, noise_fraction=1.0, steps=5), cwdfm.Euler()
    zeros, ones = (torch.full((64, N), token) for token in (0, 1))
    found = [cwdfm.refine(*FLOWS[source], solver, x, how).tokens for x in (zeros, ones)]
    assert torch.equal(*found)


def test_start() -> None:
    """sample(start=...) continues from x_t; with a mask source revealed tokens are kept."""
    x = drawn(100)
    x[:, 2:] = MASK.mask_id
    flow, start = (*FLOWS[MASK], EXACT), cwdfm.Start(x, 0.5)
    found = cwdfm.sample(*flow, shape=(100, N), steps=N, start=start)
    assert torch.equal(found.tokens[:, :2], x[:, :2])
    grid = cwdfm.time_grid(SCHEDULE, 4, "kappa", first=0.5)
    torch.testing.assert_close(grid**2, torch.linspace(0.25, 1, 5, dtype=torch.float64))
    with pytest.raises(InputError, match=r"shape of the samples, \(99, 4\)"):
        cwdfm.sample(*flow, shape=(99, N), steps=N, start=start)
    for t in (1.5, "a"):
        with pytest.raises(InputError, match=r"time t must be in \[0, 1\), got"):
            cwdfm.Start(x, t)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="start must be"):
        cwdfm.sample(*flow, shape=(100, N), steps=N, start=x)  # type: ignore[arg-type]


SOLVERS = [
    cwdfm.Euler(),
    cwdfm.Euler(weight=cwdfm.Neighbor(1, 2.0), hazard="integrated"),
    cwdfm.FirstHitting(),
    cwdfm.TopK("confidence"),
    cwdfm.EntropyBound(0.1),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_models_are_not_conditioned_on_times_before_the_start(solver: cwdfm.Solver) -> None:
    model = Recorder(SmallModel(MASK.num_tokens))
    how = cwdfm.Refine(rounds=1, noise_fraction=0.3, steps=N)
    cwdfm.refine(model, MASK, SCHEDULE, solver, drawn(400), how)
    assert float(model.times.min()) >= 0.7**0.5 - 1e-6
    assert float(model.times.max()) <= 1
    cwdfm.sample(model, MASK, SCHEDULE, solver, shape=(400, N), steps=N)
    assert float(model.times.min()) < 0.7**0.5


@pytest.mark.parametrize("solver", SOLVERS[3:], ids=lambda s: type(s).__name__)
def test_the_first_time_is_that_of_the_start(solver: cwdfm.Solver) -> None:
    """Independently of the number of tokens that x_t reveals."""
    model, t = Recorder(SmallModel(MASK.num_tokens)), 0.7**0.5
    tokens = torch.tensor([[0, MASK.mask_id, MASK.mask_id, MASK.mask_id]] * 2)
    tokens[1, 1] = 2
    start = cwdfm.Start(tokens, t)
    cwdfm.sample(model, MASK, SCHEDULE, solver, shape=(2, N), steps=N, start=start)
    assert model.asked[0][1].tolist() == pytest.approx([t, t])


def test_revealed_tokens_of_the_start_are_not_renoised() -> None:
    solver = cwdfm.Euler(corrector=cwdfm.Corrector(50.0))
    start = cwdfm.Start(torch.tensor([[2, MASK.mask_id, 1, MASK.mask_id]] * 500), 0.3)
    model = SmallModel(MASK.num_tokens)
    found = cwdfm.sample(model, MASK, SCHEDULE, solver, shape=(500, N), steps=8, start=start)
    assert int(found.updates[:, ::2].sum()) == 0
    assert int(found.updates[:, 1::2].max()) > 1  # the others are


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_nothing_to_do(solver: cwdfm.Solver) -> None:
    """The noise fraction is so small that no token is noised."""
    start, how = drawn(3), cwdfm.Refine(rounds=2, noise_fraction=1e-6, steps=2)
    found = cwdfm.refine(SmallModel(MASK.num_tokens), MASK, SCHEDULE, solver, start, how)
    assert torch.equal(found.tokens, start)
    assert int(found.evaluations.sum()) == 0


@pytest.mark.parametrize("weight", [None, cwdfm.Neighbor(1, 2.0)], ids=str)
@pytest.mark.parametrize(
    ("source", "solver"),
    [*((MASK, solver) for solver in SOLVERS), *((UNIFORM, solver) for solver in SOLVERS[:2])],
    ids=str,
)
def test_fixed_sequences_are_returned_unchanged(
    source: cwdfm.Source, solver: cwdfm.Solver, weight: cwdfm.Weight | None
) -> None:
    """As with `resample`. Progress counts these sequences like any other."""
    start, how = drawn(5), cwdfm.Refine(rounds=2, noise_fraction=1.0, steps=3)
    flow, reported = (SmallModel(source.num_tokens), source, SCHEDULE), list[int]()
    every, options = torch.ones(N, dtype=torch.bool), {"batch_size": 2, "progress": reported.append}
    found = cwdfm.refine(*flow, solver, start, how, weight=weight, fixed=every, **options)  # type: ignore[arg-type]
    still = cwdfm.resample(*flow, start, fixed=every)
    for name in ("tokens", "updates", "loops", "evaluations", "logit_evaluations"):
        assert torch.equal(*(torch.as_tensor(getattr(x, name)) for x in (found, still))), name
    assert torch.equal(found.tokens, start)
    assert int(found.evaluations.sum()) == found.logit_evaluations == 0
    assert sum(reported) == 5 * how.progress_steps
    fixed = (torch.arange(5) == 3)[:, None].expand(5, N)
    some = cwdfm.refine(*flow, solver, start, how, weight=weight, fixed=fixed)
    assert torch.equal(some.tokens[3], start[3])
    assert (some.evaluations > 0).tolist() == [True, True, True, False, True]


def test_grids_prompts_and_progress() -> None:
    """Options of the sampling also apply to the refinement."""
    trained = cwdfm.load("qm9-uniform-small")
    reported: list[int] = []
    how = cwdfm.Refine(rounds=2, noise_fraction=0.5, steps=3)
    options: dict[str, Any] = {"n": 6, "steps": 4, "grid": "kappa", "prompt": "CC"}
    found = generate(trained, **options, refine=how, progress=reported.append)
    assert sum(reported) == 6 * (4 + 2 * 3)
    plain = generate(trained, **options)
    tokens, fixed = prompt_tokens(trained, prompt="CC")
    assert tokens is not None
    assert fixed is not None
    assert torch.equal(found.tokens[:, fixed], tokens[fixed].expand(6, -1))
    flow = (trained.model, trained.source, trained.schedule, cwdfm.Euler())
    for grid in ("kappa", "t"):
        by_hand = cwdfm.refine(*flow, plain.tokens, how, grid=grid, fixed=fixed)
        assert torch.equal(found.tokens, by_hand.tokens) == (grid == "kappa")
