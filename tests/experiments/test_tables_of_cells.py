"""Values and notes of tables, computed from made-up task results."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.catalog import EXPERIMENTS, curves
from experiments.catalog.baselines import KINDS
from experiments.catalog.locality import MANY
from experiments.catalog.solvers import steps_cells, tuned_cells
from experiments.catalog.variety import variety_cells
from experiments.cell import TRAINING, Cell, flow
from experiments.figure import Curves
from experiments.grid import Entry, grid, model_note
from experiments.measure import measure, over_seeds
from experiments.notes import earlier_runs_note, loss_note, runs_note, solver_notes, weights_note
from experiments.scale import Scale, held_out, size
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.table import Column, Row, Value
from experiments.tasks.base import Corpus, Task
from experiments.tasks.sample import HeldOut, Sample
from experiments.tasks.score import MauveScore, Molecules, Updates


def put(store: Store, task: Task, result: dict[str, Any], day: int = 1, **more: object) -> None:
    """Write a result with a date."""
    store.folder(task).mkdir(parents=True, exist_ok=True)
    record = {"result": result, "provenance": {"date": f"2026-01-{day:02d}"}, **more}
    (store.folder(task) / "result.json").write_text(json.dumps(record))


COUNTS = {name: {"mean": 1.0, "std": None} for name in ("valid", "unique", "novel")}


def score(store: Store, cell: Cell, seed: int) -> None:
    """Write the scores of one run on molecules."""
    (task,) = measure("molecules", cell.scale).tasks(cell.sample(seed))
    put(store, task, COUNTS)


def test_text_values_use_all_samples_and_the_spread_of_folds(tmp_path: Path) -> None:
    store, metric, cell = Store(tmp_path), measure("text", "small"), Cell("text", "small")
    read, compared = metric.tasks(cell.sample())
    put(store, compared, {"mauve": 0.5, "mauve_star": 0.9, "std": 0.03})
    perplexity = {"value": 80.0, "fold_mean": 81.0, "fold_std": 2.0}
    entropy = {"value": 7.0, "fold_mean": 6.9, "fold_std": 0.2}
    found = {"perplexity": {"perplexity": perplexity}, "statistics": {"entropy": entropy}}
    put(store, read, found)
    expected = Value(0.5, 0.03, 3), Value(80.0, 2.0, 1), Value(7.0, 0.2, 2)
    assert metric.values(store, cell.sample()) == expected


def test_data_row_has_a_separate_mauve_reference() -> None:
    """The MAUVE reference and the data row are disjoint held-out texts of equal size."""
    metric, row = measure("text", "small"), held_out("text", "small", 0)
    _, score = metric.tasks(row)
    assert isinstance(score, MauveScore)
    reference = score.reference.samples
    assert isinstance(reference, HeldOut)
    assert reference.n == row.n
    assert reference.part != row.part
    _, score = metric.tasks(Cell("text", "small").sample())
    assert isinstance(score, MauveScore)
    assert score.reference.samples == reference


def test_spread_of_several_runs_is_between_runs() -> None:
    pairs = (1.0, None), (None, None), (4.0, 7.0)
    runs = [(Value(x, 9.0, 1), Value(y, None, 3)) for x, y in pairs]
    first, second = over_seeds(runs)
    assert first == Value(2.5, statistics.stdev([1.0, 4.0]), 1)
    assert second == Value(7.0, None, 3)  # one run has no spread
    assert over_seeds(runs[:1]) == runs[0]  # that of folds


def test_all_methods_train_on_the_same_number_of_tokens(tmp_path: Path) -> None:
    """Block diffusion reads every sequence twice, so it has half the steps and warm-up."""
    store = Store(tmp_path)
    cells = {kind.name: kind.cell("text", "small") for kind in KINDS}
    for cell in cells.values():
        put(store, cell.train(), {})
    read = {name: cell.training(store)[1].value for name, cell in cells.items()}
    recipe = cells["AR"].train().recipe
    assert set(read.values()) == {recipe.steps * recipe.batch_size * recipe.length / 1e6}
    blocks = cells["BD3LM, block 4"].train().recipe
    assert (blocks.steps, blocks.warmup) == (recipe.steps / 2, recipe.warmup / 2)


def test_likelihood_and_evaluations_are_columns(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), Cell("text", "small")
    assert cell.training(store) == (Value(None), Value(None, None, 1), Value(None))
    put(store, cell.likelihood(), {"perplexity": 40.0, "perplexity_error": 2.0})
    put(store, cell.sample(), {"evaluations": 12.5})
    likelihood, _, evaluations = cell.training(store)
    assert likelihood == Value(40.0, 2.0, 3)
    assert evaluations == Value(12.5, None, 1)


def test_every_run_has_its_own_sampling_seed() -> None:
    plain, apart = (Cell("molecules", "small", seeds=3, sample_seed=s) for s in (None, 1000))
    assert [plain.sample(seed).seed for seed in range(3)] == [0, 1, 2]
    assert [apart.sample(seed).seed for seed in range(3)] == [1000, 1001, 1002]
    assert [apart.train(seed).recipe.seed for seed in range(3)] == [0, 1, 2]


def test_only_nelbo_counts_masked_tokens_only() -> None:
    masked_only = {
        (source, loss)
        for source in ("uniform", "mask")
        for loss in ("ce", "nelbo", "bregman", "sce")
        if flow(source, loss)["masked_only"]
    }
    assert masked_only == {("mask", "nelbo")}


def test_rows_of_earlier_runs_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    euler, neighbor, other = (
        Cell("text", "small", choice=SolverChoice(solver=name))
        for name in ("euler", "neighbor", "entropy")
    )
    rows = [(("Euler", "64"), euler), (("Neighbor", ""), neighbor), (("Entropy", ""), other)]
    rows.append((("Euler", "128"), replace(euler, steps=128)))
    train = euler.train()
    put(store, train, {}, 9, earlier=["2026-01-01", "2026-01-05"])
    assert earlier_runs_note(rows, store) == ()
    put(store, other.sample(), {}, 10)
    assert earlier_runs_note(rows, store) == ()
    put(store, euler.sample(), {}, 5)  # the run of that day
    expected = "From an earlier run of the same training, whose model was deleted: "
    several = "From earlier runs of the same training, whose models were deleted, newest first: "
    assert earlier_runs_note(rows, store) == (f"{expected}Euler (64).",)
    put(store, neighbor.sample(), {}, 20, needs={train.name: "2026-01-01"})
    assert earlier_runs_note(rows, store) == (f"{several}(1) Euler (64). (2) Neighbor.",)
    assert earlier_runs_note(rows[:-1], store)[0].startswith(f"{several}(1) Euler. ")  # all of it


def test_note_says_whether_samples_and_likelihood_share_a_run(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), Cell("text", "small")
    put(store, cell.train(), {}, 5, earlier=["2026-01-01"])
    assert cell.one_run(store)
    put(store, cell.sample(), {}, 2)
    assert cell.one_run(store)  # there is no likelihood
    put(store, cell.likelihood(), {}, 3)
    assert cell.one_run(store)
    put(store, cell.likelihood(), {}, 6)
    assert not cell.one_run(store)


def test_note_names_rows_with_fewer_runs(tmp_path: Path) -> None:
    store, behind = Store(tmp_path), "± is one standard deviation between runs."
    ce, sce, none = (
        Cell("molecules", "smoke", {"loss": name}, seeds=3) for name in ("ce", "sce", "nelbo")
    )
    rows = [(("ce", ""), ce), (("sce", ""), sce), (("none", ""), none)]
    assert runs_note(rows, store) == ()
    score(store, ce, 0)
    assert runs_note(rows, store) == ("Means over 1 of 3 runs.",)
    for cell, seed in ((ce, 1), (sce, 0), (sce, 1)):
        score(store, cell, seed)
    assert runs_note(rows, store) == (f"Means over 2 of 3 runs; {behind}",)
    score(store, ce, 2)
    assert runs_note(rows, store) == (f"Means over 3 runs, over fewer for sce (2); {behind}",)
    twice = [(("a", "x"), sce), (("a", "y"), sce), (("b", "x"), ce)]
    assert "over fewer for a (2); ±" in runs_note(twice, store)[0]  # all of it
    parted = [*twice, (("b", "y"), sce)]
    assert "over fewer for a (2); b y (2); ±" in runs_note(parted, store)[0]
    (note,) = runs_note([(labels, replace(cell, seeds=1)) for labels, cell in rows], store)
    assert note == "One run per training; the statistical error is that of counting, at most 1."


def test_note_distinguishes_spread_of_data_and_of_runs(tmp_path: Path) -> None:
    """For text, the spread of the data row is between folds, also if the rows are over runs."""
    store, cell = Store(tmp_path), Cell("text", "small", seeds=2)
    expected = "between five folds of the samples, of MAUVE between five resamples for the data."
    for seed, runs in enumerate(("1 of 2 runs; ± is one standard deviation ", "2 runs; ± is one ")):
        _, compared = measure("text", "small").tasks(cell.sample(seed))
        put(store, compared, {"mauve": 0.5, "std": 0.1})
        (note,) = runs_note([(("a",), cell)], store)
        assert note.startswith(f"Means over {runs}")
        assert note.endswith(expected)
        assert ("between runs, between five folds" in note) == (seed == 1)


def test_note_names_constant_weights() -> None:
    counted, neighbor = SolverChoice("neighbor-counted", 1, 3.0), SolverChoice("neighbor", 1, 3.0)
    one, other = (SolverChoice(solver="entropy", beta=beta) for beta in (1.0, 2.0))
    assert weights_note([SolverChoice(solver="euler")]) == ()
    expected = ("Weights: Neighbor r = 1, s = 3; Entropy beta = 1.",)
    assert weights_note([counted, neighbor, one]) == expected
    assert weights_note([counted, one, other]) == ("Weights: Neighbor r = 1, s = 3.",)
    plain = Cell("molecules", "small", flow("mask"), SolverChoice("neighbor", 1, 4.0))
    fields = flow("mask", "sce", path="context", path_radius=1, path_scale=1.0)
    context = Cell("molecules", "small", fields, SolverChoice("neighbor", 1, 1.0))
    on_path = "Weights on the context-weighted path: Neighbor r = 1, s = 1."
    assert solver_notes([plain, context]) == ("Weights: Neighbor r = 1, s = 4.", on_path)
    assert solver_notes([context]) == ("Weights: Neighbor r = 1, s = 1.",)  # of all there are
    same = replace(context, choice=plain.choice)
    assert solver_notes([plain, same]) == ("Weights: Neighbor r = 1, s = 4.",)
    ce, sce, near = (
        Cell("text", "small", flow("uniform", loss, **more))
        for loss, more in (("ce", {}), ("sce", {}), ("sce", {"loss_radius": 1}))
    )
    assert loss_note([ce]) == ()
    assert loss_note([ce, sce]) == ("Neighbor weights in the loss (SCE): r = 3, s = 0.5.",)
    assert loss_note([sce, near]) == ("Neighbor weights in the loss (SCE): s = 0.5.",)


@pytest.mark.parametrize(("parameters", "expected"), [(17_400_000, "17M"), (123_456, "0.12M")])
def test_figure_notes_name_the_model_size(tmp_path: Path, parameters: int, expected: str) -> None:
    store, task = Store(tmp_path), Cell("molecules", "small").train()
    put(store, task, {"parameters": parameters})
    assert model_note(task, store).startswith(
        f"{expected} parameters, 2,000 training steps of 2,048"
    )


def test_loops_and_updates_are_percentages_of_tokens(tmp_path: Path) -> None:
    store, plan = Store(tmp_path), EXPERIMENTS["updates"].plan("small")
    counts = [400, 300, 200, 50, 25, 15, 6, 3, 1]
    for task in plan.tasks:
        assert isinstance(task, Updates)
        found = {"updates_per_token": 1.1, "standard_error": 0.01, "loop_share": 0.02}
        put(store, task, found | {"histogram": counts, "tokens": sum(counts)})
    (table,) = plan.tables(store)
    for row in table.rows:
        assert row.ours == (Value(1.1, 0.01, 3), Value(2.0, None, 2))
    (figure,) = plan.figures(store)
    assert list(figure.lines) == ["Euler, mean 1.100", "Neighbor, mean 1.100"]
    for line in figure.lines.values():
        shown = [value.value for _, (value,) in line]
        assert shown == pytest.approx([40, 30, 20, 5, 2.5, 1.5, 1.0])  # the last: or more
        assert len(shown) == MANY + 1
    assert axis_labels(figure)[-1] == f"≥{MANY}"


def axis_labels(curves: Curves) -> list[str]:
    """The labels below the first panel."""
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    figure = curves.figure()
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.axes[0].get_xticklabels()]


def test_last_distance_is_labeled_as_a_minimum(tmp_path: Path) -> None:
    """The last count of neighbors is exact; the last distance includes all greater ones."""
    store, plan = Store(tmp_path), EXPERIMENTS["context"].plan("small")
    (task,) = plan.tasks
    names = ("entropy", "entropy_error", "nll", "nll_error")
    bins = {"neighbors": list(range(17)), "distance": list(range(1, 17))}
    curves = {k: {"bins": b} | {n: [1.0] * len(b) for n in names} for k, b in bins.items()}
    assert all(not figure.last for figure in plan.figures(store)), "nothing is done"
    put(store, task, curves)
    neighbors, distance = map(axis_labels, plan.figures(store))
    assert neighbors[-1] == "16"
    assert (distance[0], distance[-1]) == ("1", "≥16")
    tables = plan.tables(store)
    assert [table.title.endswith("(the last: or more)") for table in tables] == [False, True]


def test_cells_become_a_table_and_curves(tmp_path: Path) -> None:
    """Every row has its own values, the last row those of the data; the figure has only points."""
    store, metric = Store(tmp_path), measure("molecules", "small")
    shown, other = (
        Cell("molecules", "small", choice=SolverChoice(solver=name))
        for name in ("euler", "entropy")
    )
    entries = [Entry(("Euler",), shown, "Euler", 8.0), Entry(("Entropy",), other)]
    data = held_out("molecules", "small", 0)
    for count, samples in ((512.0, shown.sample()), (256.0, other.sample()), (1000.0, data)):
        (task,) = metric.tasks(samples)
        names = ("valid", "unique", "novel")
        put(store, task, {n: {"mean": count - i, "std": None} for i, n in enumerate(names)})
    put(store, shown.likelihood(), {"perplexity": 40.0, "perplexity_error": 2.0})
    put(store, shown.train(), {"parameters": 4e6}, 9, earlier=["2026-01-01"])
    for day, cell in ((5, other), (10, shown)):  # of the run before, and of the last one
        put(store, cell.sample(), {"evaluations": 1.0}, day)
    notes = ("What it is.",)
    made = grid("t", ("solver",), x="x", log=True, likelihood=True, notes=notes)
    plan = made(lambda _: entries)("small")
    (table,) = plan.tables(store)
    assert table.columns == (*metric.columns, TRAINING[0])
    assert {row.labels: [value.value for value in row.ours] for row in table.rows} == {
        ("Euler",): [512.0, 511.0, 510.0, 40.0],
        ("Entropy",): [256.0, 255.0, 254.0, 40.0],  # one training
        ("data",): [1000.0, 999.0, 998.0, None],
    }
    meaning, weights, drawn, runs, error, earlier = table.notes
    assert meaning == "What it is."
    assert weights.startswith("Weights: Entropy beta")
    assert drawn == "1,024 samples per run, in 128 steps."
    assert runs == "One run per training; the statistical error is that of counting, at most 16."
    assert error == "± of held-out PPL is one standard error."
    assert earlier.endswith("model was deleted: Entropy.")
    assert {shown.likelihood(), *metric.tasks(data), *metric.tasks(other.sample())} <= set(
        plan.tasks
    )
    (figure,) = plan.figures(store)
    assert (figure.log, list(figure.lines)) == (True, ["Euler"])
    ((x, (valid, novel)),) = figure.lines["Euler"]
    assert (x, valid) == (8.0, Value(512.0, 16.0, 1))  # the root of 1,024 / 4
    assert novel.value == 510.0
    assert [value.value for value in figure.level] == [1000.0, 998.0]
    assert grid("t", ("solver",))(lambda _: entries)("small").figures(store) == []


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_diversity_figure_varies_the_temperature_of_known_solvers(source: str) -> None:
    known: dict[Corpus, dict[tuple[str, int], Cell]] = {
        "text": tuned_cells(source, "small"),
        "molecules": steps_cells("molecules", source, "small"),
    }
    for corpus, others in known.items():
        steps = size(corpus, "small").steps
        for (name, t), cell in variety_cells(corpus, source, "small").items():
            same = cell.sample() == others[name, steps].sample()
            assert same == (t == 1.0)  # which are not redrawn
            assert cell.sample().choice.temperature == t


def test_diversity_figure_uses_measured_entropies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points are connected in order of temperature; missing ones are left out."""

    def values(self: Cell, store: Store) -> tuple[Value, ...]:
        t = self.choice.temperature
        bits = None if t == 0.9 else 7.0 + t
        perplexity = None if t == 0.85 else round(100 * t)
        return Value(0.5, 0.1), Value(perplexity, 5.0), Value(bits, 0.01)

    monkeypatch.setattr(Cell, "values", values)
    plan = EXPERIMENTS["variety"].plan("small")
    uniform, _ = plan.figures(Store(Path("nowhere")))
    assert [x for x, _ in uniform.lines["Euler"]] == pytest.approx([8.0, 7.95, 7.85])
    assert [y.value for _, (_, y) in uniform.lines["Euler"]] == [100.0, 95.0, None]
    expected = [
        {(text.get_text(), *text.xy) for text in axis.texts} for axis in uniform.figure().axes
    ]
    assert expected[0] == {("1", 8.0, 0.5), ("0.85", 7.85, 0.5), ("1.1", 8.1, 0.5)}
    assert expected[1] == {("1", 8.0, 100.0), ("0.95", 7.95, 95.0), ("1.1", 8.1, 110.0)}
    molecules = EXPERIMENTS["variety-molecules"].plan("small").figures(Store(Path("nowhere")))[0]
    found = [(x, y.value) for x, (y,) in molecules.lines["Neighbor"]]
    assert found == [(7.0 + t, 0.5) for t in (1.0, 1.1, 1.2, 1.3)]  # valid against novel ones
    for measured in (True, False):  # then round numbers, else the points' own
        ticks = replace(uniform, measured=measured).figure().axes[0].get_xticks()
        assert any(abs(tick - 7.85) < 1e-9 for tick in ticks) != measured


def test_best_solver_at_each_number_of_steps() -> None:
    """Checked by enumeration: three solvers, one with a missing value, at all smoke steps."""
    steps = curves.steps_of("smoke")
    few, many = (Value(float(10 + k)) for k in range(2))
    rest = [few] * (len(steps) - 2)
    rows = [
        Row(("mask", "CE", "Euler"), (many, few, *rest)),
        Row(("mask", "CE", "Neighbor"), (few, many, *rest)),
        Row(("mask", "CE", "Entropy"), (Value(None), few, *rest)),
    ]
    table = curves._best("smoke", Column("valid", True), rows)
    euler, best = table.rows
    assert euler == rows[0]
    first, second, *others = steps
    at = ", ".join(str(k) for k in (first, *others))
    assert best.labels == ("mask", "CE", f"best: Euler ({at}), Neighbor ({second})")
    assert best.ours == (many, many, *rest)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_best_molecule_settings_have_the_most_valid_samples(tmp_path: Path, scale: Scale) -> None:
    """Also at the paper's scale, where folds give every count a spread that the next is within."""
    store, plan = Store(tmp_path), EXPERIMENTS["sweep-molecules-mask"].plan(scale)
    for task in plan.tasks:
        assert isinstance(task, Molecules)
        if not isinstance(task.samples, Sample):
            continue
        choice = task.samples.choice
        best = (choice.radius, choice.scale, choice.beta) in ((2, 3.0, 6.0), (1, 4.0, 5.0))
        valid = {"mean": 500.0 + best, "std": 9.0 if scale == "paper" else None}
        unique = {"mean": 400.0 + best, "std": None}  # fewer of the others
        put(store, task, {"valid": valid, "unique": unique, "novel": unique})
    _, table = plan.tables(store)
    (row,) = table.rows
    assert [value.value for value in row.ours] == [2, 3.0, 5.0]
    assert [value.value for value in row.paper] == [1, 4.0, 6.0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baselines", "for OpenWebText at its own scale, with a nucleus of 0.9"),
        ("losses", "for OpenWebText at its own scale, with a nucleus of 0.9"),
        ("losses", "for 92M parameters and 25,000 training steps"),
        ("perplexity", "for models of OpenWebText at its own scale"),
        ("updates", "for OpenWebText at its own scale; ± is between five folds"),
    ],
)
def test_notes_say_that_paper_columns_have_another_scale(
    tmp_path: Path, name: str, expected: str
) -> None:
    tables = EXPERIMENTS[name].plan("small").tables(Store(tmp_path))
    notes = [[n for n in table.notes if "paper's columns" in n] for table in tables if table.paper]
    assert all(len(each) == 1 for each in notes)  # every table that has such columns
    assert any(f"The paper's columns are {expected}" in note for (note,) in notes)


def test_molecule_columns_state_their_totals(tmp_path: Path) -> None:
    _, table = EXPERIMENTS["losses"].plan("smoke").tables(Store(tmp_path))
    assert [column.name for column in table.columns] == ["valid of 8", "unique", "novel"]
    assert [column.name for column in table.paper] == ["valid of 1,024", "novel"]
