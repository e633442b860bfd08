"""Cells of experiments, their tasks, and the notes below tables."""

import itertools
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.config import from_config, to_config
from cwdfm.data import load
from cwdfm.method.flow import Flow, FlowObjective
from cwdfm.metrics.analysis import context_analysis
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from cwdfm.sample_file import read_samples
from cwdfm.solver_config import SHARED_OPTIONS, SOLVERS, SPECIFIC_OPTIONS, option_names
from experiments.catalog import EXPERIMENTS
from experiments.catalog.baselines import KINDS
from experiments.catalog.solvers import _best_of
from experiments.catalog.training import LOSSES, PATHS, SCALES
from experiments.cell import Cell
from experiments.engine import run_tasks
from experiments.measure import measure
from experiments.recipe import Recipe
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Value
from experiments.tasks import score as scores
from experiments.tasks.base import Resources, in_order
from experiments.tasks.sample import HeldOut
from experiments.tasks.score import Context, Molecules, known_molecules
from experiments.tasks.train import load_model

HERE = Resources("cpu")


def test_paper_scale_matches_the_paper() -> None:
    cell = KINDS[-1].cell("text", "paper")
    assert cell.train().recipe == replace(
        Recipe.named("owt-paper"),
        data="text",
        tokenizer=None,
        source="mask",
        loss="sce",
        masked_only=False,
        accumulation=8,  # the same step, in parts that a GPU has memory for
    )
    assert (cell.sample().n, cell.sample().steps, cell.sample().choice.top_p) == (5000, 1024, 0.9)


def test_task_labels() -> None:
    cell = Cell("text", "smoke", {"source": "uniform", "loss": "sce", "path": "context"})
    expected = "text, uniform source, sce, context path, seed 2"
    assert cell.train(2).label == f"train ({expected})"
    (task, _) = measure("text", "smoke").tasks(cell.sample(2))
    assert task.label == f"text ({expected}; auto, 4 steps)"


def test_molecules_are_scored_against_the_corpus_of_the_folder(tmp_path: Path) -> None:
    """Novelty depends on the corpus."""
    for name, drawn in (("a", "CCO"), ("b", "CCN")):
        carbons = ["C" * length for length in range(1, 20)]
        (tmp_path / f"{name}.smi").write_text("\n".join([*carbons, drawn]))
    task = Molecules(HeldOut("molecules", 32, 1), 1)
    store = Store(tmp_path / "jobs")
    first, second = (Resources(HERE.device, str(tmp_path / f"{name}.smi")) for name in "ab")
    assert run_tasks(store, [task.samples], first, log=lambda _: None).complete
    with pytest.raises(cwdfm.InputError, match="molecules-32"):
        run_tasks(store, [task], second, log=lambda _: None)
    assert run_tasks(store, [task], first, log=lambda _: None).complete


def test_long_molecules_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of length 8 cannot be trained on some molecules, which are not novel for that."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    molecules = ["C" * n for n in range(1, 30)]
    (tmp_path / "a.smi").write_text("\n".join(molecules))
    known, _ = known_molecules(str(tmp_path / "a.smi"), 8)
    held_out = load(tmp_path / "a.smi", length=8).texts("valid")
    assert held_out
    assert set(known) == set(molecules) - set(held_out)


@pytest.fixture
def hundred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resources:
    """Five of a hundred molecules are held out."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    chains = ["C" * (i % 25 + 1) + "NOFS"[i // 25] for i in range(100)]
    (tmp_path / "hundred.smi").write_text("\n".join(chains))
    return Resources(HERE.device, str(tmp_path / "hundred.smi"))


def test_held_out_parts_are_disjoint(tmp_path: Path, hundred: Resources) -> None:
    store = Store(tmp_path / "jobs")
    tasks = [HeldOut("molecules", 32, n, part) for n, part in ((2, 0), (2, 1), (5, 0), (2, 2))]
    outcome = run_tasks(store, tasks, hundred, log=lambda _: None)
    assert list(outcome.failed) == tasks[3:]
    assert "holds out 5 sequences, but 6 are required" in outcome.failed[tasks[3]]
    rows = load(hundred.molecules).texts("valid")
    for task, expected in zip(tasks[:3], (rows[:2], rows[2:4], rows), strict=True):
        assert read_samples(store.folder(task) / "samples.jsonl").texts == expected


def test_tasks_read_their_snapshot_and_rows(tmp_path: Path, hundred: Resources) -> None:
    store, data = Store(tmp_path / "jobs"), load(hundred.molecules)
    task = replace(Cell("molecules", "smoke").train(), snapshots=(3,))
    source, schedule = cwdfm.MaskSource(data.tokenizer.vocab_size), cwdfm.Linear()
    for at, name in ((None, "model"), (3, "model-3")):
        model = DiT(preset("debug", source.num_tokens)).eval()
        made = cwdfm.Pretrained(model, Flow(source, schedule), data.tokenizer, 32)
        made.save_pretrained(store.folder(task) / name)
        assert load_model(task, store, hundred, at).fingerprint() == made.fingerprint()
    # Both say nothing of any token yet, so that it is the rows that count.
    rows = torch.from_numpy(data.valid[:3]).long()
    found = Context(task, rows=3, draws=2).run(tmp_path, store, hundred)
    assert found == context_analysis(model, source, schedule, rows, draws=2).to_json()


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_loss_table_rows_have_different_gradients(source: str) -> None:
    """Bregman on masked tokens only would have the gradients of the NELBO."""
    gradients = []
    for line in LOSSES:
        if line.labels[0] != source:
            continue
        objective = line.cell("molecules", "small").train().recipe.config().build(5).objective
        assert isinstance(objective, FlowObjective)
        x_1 = torch.randint(5, (4, 32), generator=torch.manual_seed(0))
        batch = objective.path.sample(x_1, torch.tensor([0.2, 0.4, 0.6, 0.8]), seed=1)
        logits = torch.randn(4, 32, 5 + (source == "mask"), generator=torch.manual_seed(2))
        logits.requires_grad_()
        needed = logits[objective.loss.needed(batch)]
        objective.loss(needed, batch, objective.path.schedule).backward()
        assert logits.grad is not None
        gradients.append(logits.grad)
    assert len(gradients) == 4
    for one, other in itertools.combinations(gradients, 2):
        assert not torch.allclose(one, other)


def test_context_paths_match_the_paper() -> None:
    """The radius is 3 on text, where the path table shares its rows with the scale table."""
    for line in (*PATHS, *SCALES):
        for cell, radius in ((line.cell("text", "paper"), 3), (line.cell("molecules", "paper"), 1)):
            recipe = cell.train().recipe
            if line.on_context:
                assert recipe.path_radius == cell.choice.radius == radius
                assert recipe.path_scale == cell.choice.scale == line.fields["path_scale"]
            else:
                assert (recipe.path, cell.choice.solver) == ("mixture", "euler")
    paths, scales = (
        {line.cell("text", "paper").train() for line in lines if line.on_context}
        for lines in (PATHS, SCALES)
    )
    assert len(paths) == 2
    assert paths < scales


def test_context_analysis_uses_as_many_states_as_the_paper() -> None:
    (task,) = EXPERIMENTS["context"].plan("paper").tasks
    assert isinstance(task, Context)
    assert task.rows * task.draws == 16_000


def test_test_perplexity_uses_only_the_paper_corpora_at_paper_scale(tmp_path: Path) -> None:
    plans = {scale: EXPERIMENTS["perplexity"].plan(scale) for scale in ("small", "paper")}
    tests = {
        scale: {task.test for task in plan.tasks if isinstance(task, scores.TestLikelihood)}
        for scale, plan in plans.items()
    }
    assert tests["paper"] == {"wikitext-103", "lambada", "fineweb-edu"}
    assert tests["small"] - tests["paper"] == {"wikitext-2"}
    for scale, plan in plans.items():
        (table,) = plan.tables(Store(tmp_path))
        assert {column.name.removesuffix(", at most") for column in table.columns} == tests[scale]
        assert any("wikitext-2" in note for note in table.notes) == (scale == "small")
        assert table.rows[1].paper == tuple(Value(x, None, 2) for x in (91.53, 133.25, 72.90))


OTHER = SolverChoice(  # every option differs from its default
    "auto", 2, 1.0, "cut", 1.0, 0.5, 1.0, "integrated", 0.5, 0.5, corrector_power=1.0
)
FLOW = Flow(cwdfm.MaskSource(5), cwdfm.Linear())


def test_options_affect_only_the_solvers_that_have_them() -> None:
    names = {field.name for field in fields(SolverChoice)} - {"solver", "stop"}
    assert names <= SPECIFIC_OPTIONS | SHARED_OPTIONS
    for solver, name in itertools.product(SOLVERS, names):
        corrects = "corrector" in option_names(solver)
        scale = 1.0 if corrects and name == "corrector_power" else 0.0
        default = SolverChoice(solver, corrector=scale)
        changed = replace(default, **{name: getattr(OTHER, name)})
        differs = changed.build(FLOW) != default.build(FLOW)
        assert differs == (name in option_names(solver)), (solver, name)


def test_new_settings_keep_existing_names() -> None:
    usual, other = (SolverChoice(corrector=2.0, corrector_power=p) for p in (0.5, 1.0))
    expected = to_config(usual)
    assert "corrector_power" not in expected
    assert to_config(other) == expected | {"corrector_power": 1.0}
    for choice in (usual, other):
        assert from_config(to_config(choice), {"SolverChoice": SolverChoice}) == choice
    name = replace(KINDS[-1].cell("text", "small"), choice=usual).sample().name
    assert name == "sample-2d459e38a729b4c4"  # as before there was this setting
    assert replace(KINDS[-1].cell("text", "small"), choice=other).sample().name != name
    built = other.build(Flow(cwdfm.MaskSource(4), cwdfm.Polynomial(2.0)))
    assert built.corrector == cwdfm.Corrector(2.0, 1.0, 1.0)


def test_ties_are_broken_by_the_lowest_perplexity() -> None:
    def setting(mauve: float, error: float | None, perplexity: float) -> tuple[Any, SolverChoice]:
        choice = SolverChoice(beta=perplexity)
        return (Value(mauve, error), Value(perplexity), Value(7.0)), choice

    highest, close = setting(0.50, 0.03, 300.0), setting(0.41, 0.04, 200.0)
    off = setting(0.35, 0.04, 100.0)  # three standard errors below
    assert _best_of([highest, close, off], text=True) == close


@pytest.mark.parametrize("name", ["baselines", "losses", "paths", "scales", "tuned-losses-text"])
def test_tables_have_a_row_for_the_data(name: str, tmp_path: Path) -> None:
    plan = EXPERIMENTS[name].plan("paper" if name != "tuned-losses-text" else "small")
    tables = plan.tables(Store(tmp_path))
    for table in tables:
        (own,) = (row for row in table.rows if row.labels[0] == "data")
        assert len(own.labels) == len(table.labels)
        assert len(own.ours) == len(table.columns)
        assert len(own.paper) == len(table.paper)
    own_rows = [
        task for task in in_order(plan.tasks) if isinstance(task, HeldOut) and task.part == 0
    ]
    assert len(own_rows) == len(tables)
