"""Counter-based randomness: a sample is a function of (seed, index) and nothing else."""

from itertools import product

import pytest
import torch

import cwdfm
from cwdfm.model import predict
from cwdfm.model.positions import Positions
from tests.support.cases import slow
from tests.support.examples import MASK_ONLY, examples
from tests.support.models import SmallModel, SmallSplitModel

SCHEDULE = cwdfm.Polynomial(2.0)
SOURCES = [cwdfm.MaskSource(7), cwdfm.UniformSource(7)]
SOLVERS = [
    *examples(cwdfm.Solver),
    cwdfm.Euler(weight=cwdfm.Entropy(4.0), corrector=cwdfm.Corrector(2.0)),
    cwdfm.TopK(temperature=0.7, top_p=0.9, dtype=torch.float32),
    cwdfm.FirstHitting(cwdfm.Neighbor(2, 1.0) + cwdfm.Entropy(2.0), temperature=1.3, top_p=0.8),
]
CASES = [
    (source, solver)
    for source, solver in product(SOURCES, SOLVERS)
    if source == SOURCES[0] or not isinstance(solver, MASK_ONLY)
]
SHAPE = (5, 20)


def draw(model: cwdfm.Model, source: cwdfm.Source, solver: cwdfm.Solver, **options: object):  # type: ignore[no-untyped-def]
    settings: dict[str, object] = {"shape": SHAPE, "steps": 6, "seed": 11, **options}
    return cwdfm.sample(model, source, SCHEDULE, solver, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "solver"),
    [
        case if case[0] == SOURCES[0] or "Theta" in type(case[1]).__name__ else slow(*case)
        for case in CASES
    ],
    ids=str,
)
def test_samples_depend_on_seed_and_index_only(
    source: cwdfm.Source, solver: cwdfm.Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the batch, the way the model is evaluated, or the global generator."""
    fixed = torch.arange(20) == 5
    prompt: dict[str, object] = {"prompt": torch.arange(20) % 7, "fixed": fixed}
    model, split = SmallModel(source.num_tokens), SmallSplitModel(source.num_tokens)
    before = torch.get_rng_state()
    whole = draw(model, source, solver, **prompt)
    assert torch.equal(torch.get_rng_state(), before)
    assert int(whole.tokens.max()) < 7, "a mask id leaked"
    torch.manual_seed(2)
    others = [draw(model, source, solver, batch_size=size, **prompt) for size in (1, 3)]
    others.append(draw(split, source, solver, **prompt))
    monkeypatch.setitem(predict.MAX_ELEMENTS, "cpu", 16 * source.num_tokens)  # chunks of rows
    others.append(draw(split, source, solver, **prompt))
    for other in others:
        for name in ("tokens", "updates", "evaluations"):
            assert torch.equal(getattr(other, name), getattr(whole, name)), name
        assert other.logit_evaluations == whole.logit_evaluations
    chosen = torch.tensor([4, 1, 3])
    some = draw(model, source, solver, shape=(3, 20), index=chosen, **prompt)
    assert torch.equal(some.tokens, whole.tokens[chosen])
    assert not torch.equal(draw(model, source, solver, seed=12, **prompt).tokens, whole.tokens)


@pytest.mark.parametrize("kind", [SmallModel, SmallSplitModel])
@pytest.mark.parametrize("size", [1, 3, 1000])
@torch.no_grad()
def test_chunks_of_logits_come_with_their_slices(
    kind: type[SmallModel], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[0]
    model = kind(source.num_tokens)
    x, t = torch.arange(40).view(4, 10) % 8, torch.full((4,), 0.5)
    rows = Positions.of((x > 3) & (torch.arange(4) != 2)[:, None])  # none in one sequence
    monkeypatch.setitem(predict.MAX_ELEMENTS, "cpu", size * source.num_tokens)
    chunks = list(predict.predict_logits(model, source, x, t, rows))
    covered = [i for k, _ in chunks for i in range(k.start, k.stop)]
    assert covered == list(range(len(rows)))
    assert [k.stop - k.start for k, _ in chunks[:-1]] == [size] * (len(chunks) - 1)
    wanted = source.data_logits(rows.take(model(x, t)))
    for k, logits in chunks:
        torch.testing.assert_close(logits, wanted[k])


def test_drawing_jumps_first_saves_model_calls() -> None:
    """Mask source, more steps than tokens: the head sees each token once, the trunk a bounded
    number of sequences, however many steps there are.
    """
    source = SOURCES[0]
    for steps in (100, 1_000):
        model = SmallSplitModel(source.num_tokens)
        out = draw(model, source, cwdfm.Euler(weight=cwdfm.Neighbor(1, 2.0)), steps=steps)
        # and four rows of one more sequence, used to compare trunk and head with the model
        assert model.rows - 4 == out.logit_evaluations == SHAPE[0] * SHAPE[1]
        assert model.sequences - 1 == int(out.evaluations.sum()) <= SHAPE[0] * SHAPE[1]


def test_unweighted_uniform_source_evaluates_only_jumps() -> None:
    source = SOURCES[1]
    model = SmallSplitModel(source.num_tokens)
    out = draw(model, source, cwdfm.Euler(), steps=200)
    # the expected number of forward clocks that ring is the integrated hazard up to the last step
    assert model.rows < 0.05 * 200 * SHAPE[0] * SHAPE[1]
    assert model.rows - 4 == out.logit_evaluations
