"""`python -m experiments run` and `list`."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.cli import perplexity
from cwdfm.cli.options import flag
from cwdfm.data import loader
from cwdfm.data.molecules import SmilesFile
from cwdfm.data.qm9 import QM9
from cwdfm.metrics.mauve import mauve_score
from experiments import listing, paper
from experiments.catalog import EXPERIMENTS
from experiments.catalog.baselines import KINDS
from experiments.cell import Cell
from experiments.cli.options import Options, select
from experiments.cli.resources import with_smoke_corpora, with_smoke_evaluator
from experiments.cli.run import check_device, main, write_all
from experiments.engine import run_tasks
from experiments.experiment import write
from experiments.store import RESULT, Store, StoreError
from experiments.tasks import score, trigram
from experiments.tasks.base import Resources, Task, in_order
from tests.support.command import command
from tests.support.toy_tasks import Square, squares

HERE = ["--device", "cpu", "--workers", "0"]


# Experiments with tasks of every kind. The others, like the baselines, are slow tests.
QUICK = {
    *("context", "dropout-leak-cpu", "larger-94m", "paths", "perplexity"),
    *("sce-readings", "updates"),
}


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments, square-1 and square-2."""
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)


def selected(session: pytest.Session) -> set[str]:
    """The experiments whose tests run in this session, and those of `QUICK`."""
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    tests = [x for x in items if x.originalname == "test_tables_and_figures_are_complete"]
    named = {"baselines"} if any(x.originalname == "test_the_baselines" for x in items) else set()
    return QUICK | named | {str(test.callspec.params["name"]) for test in tests}


def kinds(names: Iterable[str]) -> set[str]:
    """The kinds of the tasks of some experiments."""
    return {task.kind for n in names for task in in_order(EXPERIMENTS[n].plan("smoke").tasks)}


@pytest.fixture(scope="module", autouse=True)
def few_molecules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The first molecules of QM9 in place of all."""
    pytest.importorskip("rdkit")
    if find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack")
    file = tmp_path_factory.mktemp("qm9") / "qm9.smi"
    file.write_text("\n".join(row.smiles for row in QM9.rows(2000)))
    few = replace(SmilesFile.of(file), name="qm9", length=QM9.length, tokens=QM9.tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(loader.DATASETS, "qm9", few)
        patch.setenv("CWDFM_CACHE", str(file.parent / "cache"))
        yield


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Store:
    """The selected experiments at smoke scale."""
    for package in ("rdkit", "safetensors", "mauve", "matplotlib", "transformers"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("smoke")
    store = Store(folder / "jobs")
    plans = {name: EXPERIMENTS[name].plan("smoke") for name in sorted(selected(request.session))}
    tasks = [task for plan in plans.values() for task in plan.tasks]
    resources = with_smoke_evaluator(with_smoke_corpora(Resources("cpu")), store, tasks)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.filterwarnings("ignore", message="MAUVE of .* samples is unreliable")
        # Three MAUVE scores per set of samples instead of six.
        patch.setattr(score, "mauve_score", partial(mauve_score, resamples=2))
        # The real trigram model comes with a package that is only installed for it.
        patch.setattr(trigram, "load_trigram", lambda: lambda words: -float(len(words)))
        outcome = run_tasks(store, tasks, resources, log=lambda _: None)
    assert outcome.complete, outcome
    for name, plan in plans.items():
        assert list(write(plan, store, folder / "smoke", name))
    return store


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in EXPERIMENTS],
)
def test_tables_and_figures_are_complete(name: str, smoke: Store) -> None:
    out = smoke.root.parent / "smoke"
    page = (out / f"{name}.md").read_text()
    plan = EXPERIMENTS[name].plan("smoke")
    count = len(in_order(plan.tasks))
    assert f"run {name}` at smoke scale: {count} of {count} tasks" in page
    for table in plan.tables(smoke):
        assert len({row.labels for row in table.rows}) == len(table.rows)
        if name in ("baselines", "scaled-text") or name.startswith("larger"):
            # The data have no training.
            rows = [row for row in table.rows if row.labels[0] != "data"]
        else:
            rows = [] if name == "context" else list(table.rows)  # has bins without tokens
        assert all(value.value is not None for row in rows for value in row.ours), table
    for picture in re.findall(r"\]\((.*\.png)\)", page):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert (out / picture).with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_quick_experiments_have_tasks_of_every_kind() -> None:
    assert kinds(QUICK) == kinds(EXPERIMENTS)


@pytest.mark.slow
def test_the_baselines(smoke: Store) -> None:
    text, molecules = EXPERIMENTS["baselines"].plan("smoke").tables(smoke)
    assert [row.labels[1] for row in text.rows] == ["", *(kind.name for kind in KINDS)]
    for row in (*text.rows[1:], *molecules.rows[1:]):
        assert all(value.value is not None for value in row.ours), row
        assert (row.ours[3].value or 0) > 1  # held-out perplexity
    assert molecules.rows[0].ours[0].value == 8  # all held-out molecules are valid


@pytest.mark.parametrize(("path", "part"), [("lambada", "test"), ("lambada/*.txt", "all")])
def test_test_perplexity_agrees_with_the_command(
    smoke: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, part: str
) -> None:
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    (tmp_path / "lambada").mkdir()
    for name, text in (("dev", "it was the worst of times"), ("test", "it was the best of times")):
        (tmp_path / "lambada" / f"{name}.txt").write_text(f"{text} \n" * 9)
    where = path if part == "test" else str(tmp_path / path)
    tasks = EXPERIMENTS["perplexity"].plan("smoke").tasks
    task = next(t for t in tasks if isinstance(t, score.TestLikelihood) and t.test == "lambada")
    store = Store(tmp_path / "jobs")
    shutil.copytree(smoke.folder(task.model), store.folder(task.model))
    resources = Resources("cpu", tests=(("lambada", where),))
    assert run_tasks(store, [task], resources, log=lambda _: None).complete
    model, out = store.folder(task.model) / "model", tmp_path / "bound.json"
    sizes = ["--rows", str(task.rows), "--draws", str(task.draws), "--out", str(out)]
    perplexity.main([str(model), "--data", where, "--part", part, *sizes])
    (expected,) = json.loads(out.read_text())["results"]
    assert bool(expected["tokens"] % task.model.recipe.length) == (part == "test")
    found = store.result(task)
    assert found is not None
    assert found["perplexity"] == pytest.approx(expected["perplexity"])
    assert found["tokens"] == expected["tokens"]


def test_tables_need_only_the_results(
    smoke: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(smoke.root, tmp_path / "jobs")
    for path in (tmp_path / "jobs").glob("*/model"):
        shutil.rmtree(path)
    main(["paths", "updates", "paths", "--out", str(tmp_path), *HERE])
    out = capsys.readouterr().out
    assert re.match(r"paths, updates at smoke scale: \d+ tasks, 0 to run", out)
    assert out.endswith("complete\n")
    assert (tmp_path / "smoke" / "paths.md").exists()
    assert (tmp_path / "smoke" / "updates.md").exists()
    main(["paths", "--corpora", "molecules", "--out", str(tmp_path), *HERE])
    (few,) = re.findall(r"(\d+) tasks, 0 to run", capsys.readouterr().out)
    tasks = in_order(EXPERIMENTS["paths"].plan("smoke").tasks)
    assert int(few) == sum(task.corpus_kind == "molecules" for task in tasks) < len(tasks)
    # Results of a different corpus or evaluator are not reused.
    (tmp_path / "other.smi").write_text("\n".join("C" * length for length in range(1, 20)))
    for option, given, fact in (
        ("--eval-model", "gpt2", "judge-any"),
        ("--molecules", str(tmp_path / "other.smi"), "molecules-32"),
    ):
        with pytest.raises(cwdfm.InputError, match=fact):
            main(["paths", "--out", str(tmp_path), option, given, *HERE])


def test_tables_read_only_their_own_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[Task] = set()
    monkeypatch.setattr(Store, "record", lambda _, task: read.add(task))
    for experiment in EXPERIMENTS.values():
        plan = experiment.plan("smoke")
        read.clear()
        plan.tables(Store(tmp_path))
        plan.figures(Store(tmp_path))
        assert read <= set(in_order(plan.tasks)), experiment.name


@pytest.mark.usefixtures("toys")
def test_a_dry_run_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["square-1", "--out", str(tmp_path), *HERE])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    capsys.readouterr()
    main(["square-1", "square-2", "--out", str(tmp_path), *HERE, "--dry-run"])
    out = capsys.readouterr().out
    assert "2 tasks, 1 to run" in out
    assert "finished: 1 square\nwould run: 1 square\n" in out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_dry_run_names_missing_resources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x"
    arguments = ["losses", "--out", str(out), "--dry-run", "--corpora", "text"]
    main([*arguments, "--scale", "paper", "--device", "cpu"])
    printed = capsys.readouterr().out
    assert "would run: none\n" in printed
    assert re.search(r"skipped \d+ tasks \(train \(text, uniform source, ce, seed 0\)", printed)
    assert "--text" in printed
    main(["baselines", "--out", str(out), "--device", "cpu", "--dry-run"])  # has a toy evaluator
    printed = capsys.readouterr().out
    assert "12 text" in printed
    assert "skipped" not in printed
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main(["losses", "--scale", "small", "--out", str(out), "--dry-run"])
    assert "--scale small requires a GPU" in capsys.readouterr().out
    assert not out.exists()


def before_second(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call `act` before the task of square-2 runs."""
    plain = Square.run

    def run(task: Square, *others: Any) -> dict[str, Any]:
        if task.number == 2:
            act()
        return plain(task, *others)

    monkeypatch.setattr(Square, "run", run)


def check_first_table_only(out: Path) -> None:
    assert "| n | 1 |" in (out / "smoke" / "square-1.md").read_text()
    assert "| n |  |" in (out / "smoke" / "square-2.md").read_text()


@pytest.mark.usefixtures("toys")
def test_sigterm_writes_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before_second(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised:
        main(["square-1", "square-2", "--out", str(tmp_path), *HERE])
    assert raised.value.code == 128 + signal.SIGTERM
    check_first_table_only(tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cwdfm.InputError("a wrong path"), 1),
        (StoreError("a different corpus"), 2),
        (OSError("a full disk"), 2),
        (KeyboardInterrupt("interrupted"), 130),
    ],
)
@pytest.mark.usefixtures("toys")
def test_errors_do_not_prevent_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail() -> None:
        raise error

    before_second(monkeypatch, fail)
    ended = command("run", "square-1", "square-2", "--out", tmp_path, *HERE)
    assert ended.returncode == code
    assert str(error) in ended.stderr
    check_first_table_only(tmp_path)


@pytest.mark.usefixtures("toys")
def test_a_damaged_record_affects_one_table(tmp_path: Path) -> None:
    arguments = ("run", "square-1", "square-2", "--out", tmp_path, *HERE)
    assert command(*arguments).returncode == 0
    path = tmp_path / "jobs" / Square(1).name / RESULT
    path.write_text(path.read_text().replace('"square": 1', '"cube": 1'))
    (tmp_path / "smoke" / "square-2.md").unlink()
    ended = command(*arguments)
    assert ended.returncode == 2
    assert f"square-1 was not written: {path} is damaged ('square'" in ended.stdout
    assert "square-1" in ended.stderr
    assert "complete" not in ended.stdout
    assert "| n | 4 |" in (tmp_path / "smoke" / "square-2.md").read_text()
    shutil.rmtree(path.parent)
    assert command(*arguments).returncode == 0


@pytest.mark.usefixtures("toys")
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "smoke" / "square-1.tex"
    blocked.mkdir(parents=True)
    ended = command("run", "square-1", "--out", tmp_path, *HERE)
    assert ended.returncode == 2
    assert f"cannot write {blocked}: Is a directory" in ended.stdout
    for kind in ("md", "csv"):
        assert f"wrote {tmp_path / 'smoke' / f'square-1.{kind}'}\n" in ended.stdout


def test_tables_are_written_to_a_closed_pipe(tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    plans = {f"square-{number}": squares(number).plan("smoke") for number in (1, 2)}
    with contextlib.redirect_stdout(Closed()):
        assert write_all(plans, Store(tmp_path / "jobs"), tmp_path / "smoke") == []
    written = {path.name for path in (tmp_path / "smoke").iterdir()}
    assert written == {f"{name}.{kind}" for name in plans for kind in ("md", "csv", "tex")}


@pytest.mark.usefixtures("toys")
def test_a_folder_without_permission_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    plain = os.access
    monkeypatch.setattr(os, "access", lambda p, *how: p != tmp_path / "jobs" and plain(p, *how))
    arguments = ("run", "square-1", "--out", tmp_path, *HERE)
    ended = command(*arguments)
    assert ended.returncode == 2
    assert str(tmp_path / "jobs") in ended.stderr
    assert not ended.stdout
    ended = command(*arguments, "--dry-run")
    assert ended.returncode == 0
    assert str(tmp_path / "jobs") in ended.stdout


@pytest.mark.parametrize("size", ["2", "two"])
def test_torchrun_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(cwdfm.InputError, match=rf"WORLD_SIZE is {size}.*--workers"):
        main(["updates", "--out", str(tmp_path / "x")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["losses", "zzz"], ["'zzz'", "list"]),
        (["all", "zzz"], ["'zzz'"]),
        (["Losess"], ["'Losess'", "losses"]),
        (["steps-text"], ["steps-text-uniform or steps-text-mask"]),
        (["--out", "x", "losses"], ["--out"]),
        (["radius", "--out", "x", "--corpora", "molecules"], ["--corpora molecules", "radius"]),
        (["updates", "--out", "x", "--time-limit", "-5"], ["--time-limit", "-5"]),
        (["updates", "--out", "x", "--time-limit", "nan"], ["--time-limit", "nan"]),
        (["updates", "--out", "x", "--workers", "-1"], ["--workers", "-1"]),
        (["updates", "--out", "x", "--tests", "lambda=y"], ["--tests lambda", "lambada"]),
        (["updates", "--out", "x", "--tests", "lambada=/nowhere"], ["'/nowhere'"]),
        (["updates", "--out", "x", "--text", "/nowhere"], ["'/nowhere'"]),
        (["baselines", "--out", "x", "--molecules", "/nowhere.npz"], ["/nowhere.npz"]),
        (["radius", "--out", "x", "--eval-model", "/nowhere.gguf"], ["/nowhere.gguf"]),
        (["radius", "--out", "x", "--molecules", "/nowhere.smi"], ["'/nowhere.smi'"]),  # unused
        (["losses", "--out", "x", "--molecules", __file__], [__file__, "SMILES"]),
        (["perplexity", "--out", "x", "--tests", "lambada="], ["--tests lambada="]),
        (
            ["perplexity", "--out", "x", "--tests", "lambada", "lambada=y"],
            ["lambada more than once"],
        ),
        (["losses", "--out", "x", "--scale", "small", "--corpora", "text"], ["--text"]),
    ],
)
def test_wrong_arguments_are_errors_before_anything_runs(
    arguments: list[str], facts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cwdfm.InputError) as raised:
        main(arguments)
    assert [fact for fact in facts if fact not in str(raised.value)] == []
    assert not list(tmp_path.iterdir())


def test_a_cpu_does_not_train_large_models_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    resources, options = Resources("auto"), Options(Path("x"), scale="small")
    train, sample = Cell("molecules", "small").train(), Cell("molecules", "small").sample()
    for scale in ("small", "paper"):
        with pytest.raises(cwdfm.InputError, match=f"--scale {scale} requires a GPU"):
            check_device(replace(options, scale=scale), resources, [train])
    check_device(options, resources, [sample])
    for change in ({"device": "cpu"}, {"time_limit": 0}, {"scale": "smoke"}, {"config": Path("x")}):
        check_device(replace(options, **change), resources, [train])


def test_the_list_and_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    ended = command("list")
    assert all(name in ended.stdout for name in (*EXPERIMENTS, "all"))
    assert command("list", "losses").returncode == 2
    assert command("run").returncode == 2
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    assert not raised.value.code
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS)
    assert all(flag(field.name) in out for field in fields(Options))


def test_the_list_names_the_paper_s_numbers_and_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listing.Costs("a GPU", 3, {"paths": 61.4})
    monkeypatch.setattr(listing, "costs", lambda: found)
    text = listing.list_experiments()
    own, others = text.split("further experiments:")
    lines = {line.split()[0] for line in text.splitlines() if line[:2] == "  "}
    assert lines == {*EXPERIMENTS, "all"}
    assert max(map(len, text.splitlines())) <= 110
    assert re.search(r"  paths +61  Table 3 ", own)
    assert re.search(r"  context +not measured  Figures 2 and 6 ", own)
    assert re.search(r"  revealed +not measured ", others)
    tables = own.count("  Table ")
    numbers = [int(n) for n in re.findall(r"(?:Table|Figures?) (\d+)", own)]
    assert own.rindex("  Table ") < own.index("  Figure ")
    assert numbers == sorted(numbers[:tables]) + sorted(numbers[tables:])


def test_experiments_can_be_named_by_the_paper_s_numbers() -> None:
    assert select(["figure-4"], "") == ["steps-molecules-mask"]
    assert select(["Fig6", "Table 2", "context"], "") == ["context", "losses"]  # Figures 2 and 6
    assert [name.split("-")[0] for name in select(["table-5"], "")] == ["sweep"] * 4
    assert select(["figure-11"], "") == ["updates"]
    for word, last in (("figure", ""), ("figure-44", "Figure 11"), ("tab 9", "Table 7"), ("4", "")):
        with pytest.raises(cwdfm.InputError, match=f"'{word}'.*{last}"):
            select([word], "")
    for word, fact in (("Fig1", "Figure 1"), ("table-4", "cwdfm train owt-paper")):
        with pytest.raises(cwdfm.InputError, match=fact):
            select(["losses", word], "")


def test_the_paper_s_tables_and_figures_are_experiments() -> None:
    places = [e.paper for e in EXPERIMENTS.values() if e.paper]
    for kind, count, others in (("Table", paper.TABLES, {4}), ("Figure", paper.FIGURES, {1})):
        ours = {
            int(n) for each in places if each.startswith(kind) for n in re.findall(r"\d+", each)
        }
        assert ours == set(range(1, count + 1)) - others
