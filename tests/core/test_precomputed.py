"""Precomputed reveals give the same samples as the step-by-step loop."""

from itertools import product
from typing import Any

import pytest
import torch

from cwdfm.model.positions import Positions
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.schedule import Linear, Polynomial, Schedule, time_grid
from cwdfm.solver import Corrector, Euler, Samples, sample
from cwdfm.solver.precomputed import Plan, run_plan
from cwdfm.source import MaskSource, UniformSource
from cwdfm.weight import Distance, Entropy, Neighbor
from tests.support.cases import slow
from tests.support.kernels import perturbed
from tests.support.models import Recorder

VOCAB, LENGTH, BATCH = 6, 12, 5
SOURCE = MaskSource(VOCAB)
WEIGHTS = [None, Neighbor(radius=1, scale=5.0), Distance(radius=3, scale=1.0)]


@pytest.fixture(scope="module")
def model() -> DiT:
    config = DiTConfig(num_tokens=SOURCE.num_tokens, width=16, depth=1, heads=2)
    net = perturbed(config, 0.5).eval()
    with torch.no_grad():
        # With logits of order 1, tokens depend on the draws, the context and the time.
        x = torch.randint(SOURCE.num_tokens, (64, LENGTH))
        net.readout.weight.div_(net(x, torch.rand(64)).std())
    return net


def both(model: DiT, solver: Euler, schedule: Schedule, **options: Any) -> list[Samples]:
    """Samples with precomputed reveals, and step by step, which a callback enforces."""
    options |= {"shape": (BATCH, LENGTH), "seed": 3}
    stepped = sample(model, SOURCE, schedule, solver, callback=lambda state, info: None, **options)
    return [sample(model, SOURCE, schedule, solver, **options), stepped]


@pytest.mark.parametrize("steps", [1, 3, 40, slow(200)])
@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_samples_equal_the_step_by_step_loop(
    model: DiT, weight: Neighbor | None, steps: int
) -> None:
    solver = Euler(weight=weight, hazard="integrated" if steps == 40 else "euler")
    visited, stepped = both(model, solver, Polynomial(2.0), steps=steps, batch_size=3)
    for name in ("tokens", "updates", "loops", "evaluations"):
        assert torch.equal(getattr(visited, name), getattr(stepped, name)), name
    assert visited.logit_evaluations == stepped.logit_evaluations == BATCH * LENGTH


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_precomputing_from_a_later_state(model: DiT, weight: Neighbor | None) -> None:
    """A state after some steps continues with the same draws."""
    solver, schedule, taken = Euler(weight=weight), Linear(), 3
    times = time_grid(schedule, 10).tolist()
    state = solver.init(SOURCE, torch.arange(BATCH), LENGTH, seed=3)
    with torch.no_grad():
        for k in range(taken):
            state, _ = solver.step(model, SOURCE, schedule, state, times[k], times[k + 1])
        reveals = solver.precompute_reveals(SOURCE, schedule, state, times[taken:])
        assert reveals is not None
        plan = Plan.of(reveals.step, times[taken:])
        visited = run_plan(model, SOURCE, solver, state, plan, lambda share: None)
        for k in range(taken, 10):
            state, _ = solver.step(model, SOURCE, schedule, state, times[k], times[k + 1])
    assert torch.equal(visited, state.tokens)


def test_prompts_are_kept(model: DiT) -> None:
    """Sequences without a free token need no evaluation."""
    prompt = torch.full((BATCH, LENGTH), SOURCE.mask_id)
    for b in range(BATCH - 1):  # the last has nothing given, the first only one token free
        prompt[b, : LENGTH - 1 - 2 * b] = b
    prompt[2] = 1
    visited, stepped = both(model, Euler(), Linear(), steps=30, prompt=prompt)
    assert torch.equal(visited.tokens, stepped.tokens)
    assert torch.equal(visited.evaluations, stepped.evaluations)
    given = prompt != SOURCE.mask_id
    assert torch.equal(visited.tokens[given], prompt[given])
    assert torch.equal(visited.updates, (~given).int())
    assert visited.evaluations[2] == 0


def test_number_of_evaluations_is_that_of_the_longest_plan(model: DiT) -> None:
    plain, steps = Recorder(model), 400
    found = sample(plain, SOURCE, Linear(), Euler(), shape=(BATCH, LENGTH), steps=steps)
    assert len(plain.asked) == int(found.evaluations.max()) <= LENGTH
    # Each sequence at its own time of the grid.
    assert any(len(t.unique()) > 1 for _, t in plain.asked)
    assert torch.allclose(plain.times * steps, (plain.times * steps).round(), atol=1e-3)


def test_progress_adds_up(model: DiT) -> None:
    """Also in batches of one sequence, if only the third sequence has a free token."""
    prompt = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    prompt[2, 4] = SOURCE.mask_id
    cases: list[dict[str, Any]] = [{"batch_size": 3}, {"batch_size": 1, "prompt": prompt}]
    for solver, options in product((Euler(), Euler(weight=Entropy(1.0))), cases):
        reported: list[int] = []
        options = {**options, "shape": (BATCH, LENGTH), "steps": 7, "progress": reported.append}
        sample(model, SOURCE, Linear(), solver, **options)
        assert sum(reported) == 7 * BATCH
        assert min(reported) >= 0


def test_reveals_that_depend_on_the_model_are_not_precomputed() -> None:
    times = [0.0, 0.5, 1.0]
    solvers = [Euler(weight=Entropy(1.0)), Euler(corrector=Corrector(0.5))]
    for solver in solvers:
        state = solver.init(SOURCE, torch.arange(2), LENGTH)
        assert solver.precompute_reveals(SOURCE, Linear(), state, times) is None
    uniform = UniformSource(VOCAB)
    state = Euler().init(uniform, torch.arange(2), LENGTH)
    assert Euler().precompute_reveals(uniform, Linear(), state, times) is None


def test_rounds_follow_the_steps_of_each_sequence() -> None:
    g = torch.Generator().manual_seed(0)
    reveal = torch.randint(-1, 9, (6, 7), generator=g)
    reveal[3] = -1  # nothing to do
    times = [k / 9 for k in range(10)]
    plan = Plan.of(reveal, times)
    due = [sorted({int(s) for s in row if s >= 0}) for row in reveal]
    assert plan.evaluations.tolist() == [len(steps) for steps in due]
    assert len(plan.rounds) == max(map(len, due))
    for r, each in enumerate(plan.rounds):
        expected = torch.zeros_like(reveal, dtype=torch.bool)
        for b, steps in enumerate(due):
            if r < len(steps):
                expected[b] = reveal[b] == steps[r]
                assert int(each.step[b]) == steps[r]
                assert float(each.t[b]) == pytest.approx(times[steps[r]])
        assert torch.equal(each.rows.mask, expected)
        assert torch.equal(each.rows.flat, expected.flatten().nonzero()[:, 0])
        active = list(range(6)) if each.rows.active is None else each.rows.active.tolist()
        assert sorted(active) == expected.any(1).nonzero()[:, 0].tolist()


def test_positions_within_active_sequences() -> None:
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(6, 5, generator=g) < 0.3
    mask[2] = False
    mask[4] = True
    rows = Positions.of(mask)
    assert rows.active is not None
    assert rows.active.tolist() == mask.any(1).nonzero()[:, 0].tolist()
    x = torch.randn(6, 5, 3, generator=g)
    backwards = rows.active.flip(0)
    assert torch.equal(x[backwards].flatten(0, 1)[rows.flat_within(backwards)], x[mask])
    assert torch.equal(rows.take(x), x[mask])
    assert Positions.of(torch.ones(2, 3, dtype=torch.bool)).active is None
