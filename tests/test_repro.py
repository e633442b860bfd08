"""`cwdfm repro`: experiments, their cost and their tables, from a command to the files."""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
import cwdfm.repro.cost as cost_module
import cwdfm.repro.scores as scores_module
from cwdfm.cli import perplexity
from cwdfm.cli.options import flag as flag_of
from cwdfm.cli.repro import check_device, main, show, with_toy_judge, with_toys
from cwdfm.cli.repro_options import Options, chosen
from cwdfm.config import from_config, to_config
from cwdfm.method.choice import SolverChoice
from cwdfm.method.flow import Flow, FlowObjective
from cwdfm.repro import listing, paper
from cwdfm.repro.cell import Cell, flow, loss_note, runs_note
from cwdfm.repro.cost import cost
from cwdfm.repro.experiment import Experiment, Plan, write
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.experiments.baselines import KINDS
from cwdfm.repro.experiments.solvers import _best_of
from cwdfm.repro.experiments.training import LOSSES, PATHS, SCALES
from cwdfm.repro.job import Job, Resources, Store, WrongFolder
from cwdfm.repro.jobs import HeldOut, Sample, Train, corpus_of
from cwdfm.repro.measure import measure
from cwdfm.repro.measured import Measured
from cwdfm.repro.scores import Context, Molecules
from cwdfm.repro.sweep import in_order, work
from cwdfm.repro.table import Column, Row, Table, Value
from cwdfm.train.recipe import build
from cwdfm.train.recipes import RECIPES
from tests.command import command
from tests.test_jobs import HERE, Count, silent


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """All experiments at smoke scale, in one folder: they share what they have in common."""
    for package in ("rdkit", "safetensors", "mauve", "matplotlib"):
        pytest.importorskip(package)
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("smoke")
    store = Store(folder / "jobs")
    plans = [experiment.plan("smoke") for experiment in EXPERIMENTS.values()]
    jobs = [job for plan in plans for job in plan.jobs]
    here = with_toy_judge(with_toys(Resources(torch.device("cpu"))), store, jobs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="MAUVE of .* samples is coarse")
        for experiment in EXPERIMENTS.values():
            plan = experiment.plan("smoke")
            outcome = work(store, plan.jobs, here, say=silent)
            assert outcome.complete, (experiment.name, outcome)
            assert list(write(plan, store, folder / "smoke", experiment.name))
    return store


def test_test_perplexity_is_what_the_command_says(
    smoke: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a corpus with nothing to train on, whose last window is filled up."""
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    (tmp_path / "lambada").mkdir()
    for part in ("dev", "test"):
        (tmp_path / "lambada" / f"{part}.txt").write_text("it was the best of times \n" * 9)
    plan = EXPERIMENTS["perplexity"].plan("smoke")
    job = next(
        j for j in plan.jobs if isinstance(j, scores_module.TestLikelihood) and j.test == "lambada"
    )
    store = Store(tmp_path / "jobs")
    shutil.copytree(smoke.place(job.model), store.place(job.model))
    here = Resources(torch.device("cpu"), tests=(("lambada", "lambada"),))
    assert work(store, [job], here, say=silent).complete
    model, out = store.place(job.model) / "model", tmp_path / "bound.json"
    asked = ["--rows", str(job.rows), "--draws", str(job.draws), "--out", str(out)]
    perplexity.main([str(model), "--data", "lambada", *asked])
    (found,) = json.loads(out.read_text())["results"]
    assert found["tokens"] % job.model.recipe.length  # not all of a window counts
    ours = store.found(job)
    assert ours["perplexity"] == pytest.approx(found["perplexity"])
    assert ours["tokens"] == found["tokens"]


def test_the_baselines_at_smoke_scale(smoke: Store) -> None:
    """Every row trained, sampled and scored."""
    text, molecules = EXPERIMENTS["baselines"].plan("smoke").tables(smoke)
    assert [row.labels[1] for row in text.rows] == ["", *(kind.name for kind in KINDS)]
    for row in (*text.rows[1:], *molecules.rows[1:]):
        assert all(value.value is not None for value in row.ours), row
        assert (row.ours[3].value or 0) > 1  # held-out perplexity
    assert molecules.rows[0].ours[0].value == 8  # all of the data are valid


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_write_tables_and_figures_without_blanks(name: str, smoke: Store) -> None:
    out = smoke.folder.parent / "smoke"
    page = (out / f"{name}.md").read_text()
    jobs = len(in_order(EXPERIMENTS[name].plan("smoke").jobs))
    head = f"`cwdfm repro {name}` at smoke scale: {jobs} of {jobs} jobs are done. Toys: "
    assert page.startswith(head)
    for table in EXPERIMENTS[name].plan("smoke").tables(smoke):
        labels = {row.labels for row in table.rows}
        assert len(labels) == len(table.rows)
        if name in ("baselines", "scaled-text"):  # data have no training
            rows = [row for row in table.rows if row.labels[0] != "data"]
        else:
            rows = [] if name == "context" else list(table.rows)  # which has bins without tokens
        assert all(value.value is not None for row in rows for value in row.ours), table
    for picture in re.findall(r"\]\((.*\.png)\)", page):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert (out / picture).with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_the_paper_s_scale_is_the_paper_s_table() -> None:
    cell = KINDS[-1].cell("text", "paper")
    assert cell.train().recipe == replace(
        RECIPES["owt-paper"](),
        data="text",
        tokenizer=None,
        source="mask",
        loss="sce",
        masked_only=False,
        accumulation=8,  # the same step, in parts that a GPU has memory for
    )
    assert (cell.sample().n, cell.sample().steps, cell.sample().choice.top_p) == (5000, 1024, 0.9)


def test_several_experiments_by_one_command(
    smoke: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(smoke.folder, tmp_path / "jobs")
    for path in (tmp_path / "jobs").glob("*/model"):
        shutil.rmtree(path)  # of results alone, tables can be made
    main(["losses", "paths", "losses", "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert re.match(r"losses, paths at smoke scale: 0 of \d+ jobs to do", told)
    assert "complete" in told
    assert (tmp_path / "smoke" / "losses.md").exists()
    assert (tmp_path / "smoke" / "paths.md").exists()
    main(["losses", "--corpora", "molecules", "--out", str(tmp_path)])
    (few,) = re.findall(r"0 of (\d+) jobs", capsys.readouterr().out)
    jobs = in_order(EXPERIMENTS["losses"].plan("smoke").jobs)
    assert 0 < int(few) < len(jobs)
    assert int(few) == sum(corpus_of(job) == "molecules" for job in jobs)
    # Results of another corpus or judge are not passed off as those of the one that is given.
    (tmp_path / "other.smi").write_text("\n".join("C" * length for length in range(1, 20)))
    for option, place, message in (
        ("--judge", "gpt2", "other judge"),
        ("--text", "/nowhere", "neither a dataset nor a file"),
        ("--molecules", tmp_path / "other.smi", "other molecules-32"),
    ):
        with pytest.raises(cwdfm.InputError, match=message):
            main(["losses", "--out", str(tmp_path), option, str(place)])


def test_experiments_and_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*EXPERIMENTS, "all"))
    assert "--help" in listed
    for flags in (["-h"], ["--help"], ["list", "--help"]):
        with pytest.raises(SystemExit) as left:
            main(flags)
        assert not left.value.code
        told = capsys.readouterr().out
        assert all(name in told for name in (*EXPERIMENTS, "all"))
        assert all(flag_of(field.name) in told for field in fields(Options))


def test_experiments_are_found_by_the_paper_s_own_numbers() -> None:
    assert chosen(["figure-4"], "") == ["steps-molecules-mask"]
    assert chosen(["Fig6", "Table 2", "context"], "") == ["context", "losses"]  # Figures 2 and 6
    assert [name.split("-")[0] for name in chosen(["table-5"], "")] == ["sweep"] * 4
    told = {
        "figure-44": "the paper's last is Figure 11, and",
        "tab 9": "the paper's last is Table 7",
    }
    for word in ("figure", "figure-44", "tab 9", "4"):
        with pytest.raises(
            cwdfm.InputError, match=f"unknown experiment '{word}'; {told.get(word, '')}"
        ):
            chosen([word], "")


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("figure-1", "Figure 1 is a drawn example"),
        ("Fig1", "Figure 1 is a drawn example"),
        ("table-4", "Table 4 is the training settings: `cwdfm train owt-paper --help`, "),
    ],
)
def test_what_no_experiment_makes_is_told(word: str, what: str) -> None:
    """By number, also beside an experiment, and in the list; the recipes that it names exist."""
    for words in ([word], ["losses", word]):
        ended = command("repro", *words)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"cwdfm: {word} is no experiment: {what}")
    assert what in listing.listed()
    assert set(re.findall(r"cwdfm train (\S+)", listing.no_experiment(word))) <= set(RECIPES)


def test_the_page_tells_what_each_experiment_beyond_the_paper_shows() -> None:
    page = (Path(__file__).parents[1] / "docs" / "repro.md").read_text()
    rows = page.partition("| experiment | what it asks |")[2].partition("\n\n")[0].splitlines()[1:]
    told = [name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1])]
    assert sorted(told) == sorted(e.name for e in EXPERIMENTS.values() if not e.paper)


def test_figures_with_a_longer_number_are_no_drawing() -> None:
    assert listing.no_experiment("figure-11") == ""
    assert chosen(["figure-11"], "") == ["updates"]


def test_the_list_tells_which_of_the_paper_s_tables_they_are_and_their_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Measured("a GPU", 3, {}, {"paths": 61.4}, 0.6)
    monkeypatch.setattr(listing, "measured", lambda: found)
    own, beyond = listing.listed().split("beyond the paper: controls and causes:")
    lines = {line.split()[0]: line for line in (own + beyond).splitlines() if line[:2] == "  "}
    assert lines.keys() == {*EXPERIMENTS, "all"}
    assert max(map(len, listing.listed().splitlines())) <= 110
    assert re.search(r"  paths +61  Table 3 +mixture and context-weighted path\n", own)
    assert re.search(r"  context +not measured  Figures 2 and 6 +entropy and NLL", own)
    assert re.search(r"  revealed +not measured  SCE's weight of revealed coordinates\n", beyond)
    assert "a GPU that up to 3 jobs had" in beyond
    numbers = [int(n) for n in re.findall(r"(?:Table|Figures?) (\d+)", own)]
    tables = own.count("  Table ")
    assert own.rindex("  Table ") < own.index("  Figure ")
    assert numbers == sorted(numbers[:tables]) + sorted(numbers[tables:])


def test_all_results_of_the_paper_are_experiments() -> None:
    told = [e.paper for e in EXPERIMENTS.values() if e.paper]
    for kind, labels, others in (
        ("Table", paper.TABLES, {4}),  # which recipes hold
        ("Figure", paper.FIGURES, {1}),  # a drawing
    ):
        ours = {int(n) for each in told if each.startswith(kind) for n in re.findall(r"\d+", each)}
        assert ours == set(range(1, len(labels) + 1)) - others
        assert {place for place in listing.NO_EXPERIMENTS if place.startswith(kind)} == {
            f"{kind} {number}" for number in others
        }


def test_the_cost_at_the_paper_s_scale_is_of_what_is_to_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = in_order(EXPERIMENTS["losses"].plan("paper").jobs)
    text = [job for job in jobs if corpus_of(job) == "text"]
    told = cost(text, "paper")
    assert told.startswith("8 trainings on text x 36 GPU days = 288 GPU days (about 96 GPU days on")
    assert "molecules" not in told
    assert "together" not in told
    both = cost(jobs, "paper")
    assert "8 trainings on molecules x 4 GPU hours = 32 GPU hours" in both
    assert "together 289.3 GPU days" in both
    one = next(job for job in text if isinstance(job, Train))
    assert cost([one], "paper").startswith("1 training on text x 36 GPU days = 36 GPU days (about")
    drawn = [job for job in text if isinstance(job, Sample)]
    hours = sum(job.n * job.steps for job in drawn) * 1024 * 0.5e-6 / 3600
    monkeypatch.setattr(cost_module, "measured", lambda: Measured("a GPU", 3, {}, {}, 0.5))
    rest = f"sampling takes at most {hours:.1f} GPU hours more on H200s, by docs/speed.md; scores"
    assert cost(drawn, "paper").startswith(f"no training is to be done here; {rest}")
    assert rest in cost(text, "paper")
    assert cost([], "paper") == ""


def test_the_cost_at_smoke_scale_is_the_page_s() -> None:
    """Alone and of all: they share jobs, so that all take less than each of them in turn."""
    told = cost(EXPERIMENTS["losses"].plan("smoke").jobs, "smoke")
    page = (Path(__file__).parents[1] / "docs" / "repro.md").read_text()
    assert f"to see everything run: {told} |" in page


def test_all_runs_of_a_corpus_cost_the_same_at_the_paper_s_scale() -> None:
    """As many tokens through the same network: the paper has one time for all."""
    plans = [experiment.plan("paper") for experiment in EXPERIMENTS.values()]
    work = set()
    for job in in_order(job for plan in plans for job in plan.jobs):
        if isinstance(job, Train):
            reads = 2 if job.recipe.method == "bd3lm" else 1
            tokens = reads * job.recipe.steps * job.recipe.batch_size * job.recipe.length
            work.add((job.corpus, job.recipe.model, tokens))
    assert len(work) == 2


def test_the_cost_at_small_scale_is_what_runs_were_measured_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = in_order(EXPERIMENTS["paths"].plan("small").jobs)
    model = Cell("text", "small").train().recipe.model
    found = Measured("a GPU", 3, {"text": {model: 6.5}}, {}, 0.6)
    monkeypatch.setattr(cost_module, "measured", lambda: found)
    told = cost(jobs, "small")
    assert "12 trainings on molecules, of a kind that was not measured" in told
    assert "4 trainings on text x 6.5 GPU minutes = 26 GPU minutes; by median runs" in told


def test_a_dry_run_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    end = ["--out", str(tmp_path), "--device", "cpu"]
    main(["square-1", *end])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    capsys.readouterr()
    main(["square-1", "square-2", *end, "--dry-run"])
    told = capsys.readouterr().out
    assert "square-1, square-2 at smoke scale: 1 of 2 jobs to do" in told
    assert "there already: 1 count\nwould be done, on cpu: 1 count\n" in told
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_dry_run_tells_what_lacks_and_what_it_would_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    arguments = ["losses", "--scale", "paper", "--out", str(out), "--device", "cpu", "--dry-run"]
    main([*arguments, "--corpora", "text"])  # of which nothing could be done here
    told = capsys.readouterr().out
    assert "cost: 8 trainings on text x 36 GPU days = 288 GPU days" in told
    assert "there already: none\nwould be done, on cpu: none\n" in told
    assert "not done here: 9 jobs (train (text, uniform source, ce, seed 0), ...): needs a" in told
    assert "not done here: 16 jobs (sample (" in told
    assert "refused" not in told
    main([*arguments, "--only", "sample"])
    told = capsys.readouterr().out
    assert "cost: no training is to be done here" in told
    assert "only sample are to be done" in told
    main([*arguments, "--only", "sample", "context"])  # of which there is none, but elsewhere
    said = capsys.readouterr()
    assert "note: --only context: no such jobs here" in said.err
    assert said.out == told.replace("only sample are", "only sample, context are")
    main(["baselines", "--out", str(out), "--device", "cpu", "--dry-run"])  # with a toy judge
    told = capsys.readouterr().out
    assert "12 text" in told
    assert "not done here" not in told
    with pytest.raises(cwdfm.InputError, match="neither a dataset nor a file"):
        main([*arguments, "--text", "/nowhere"])
    assert not out.exists()


def test_a_dry_run_tells_what_would_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main(["losses", "--scale", "small", "--out", str(tmp_path / "x"), "--dry-run"])
    told = capsys.readouterr().out
    assert "but it would be refused here: --scale small is for a GPU, and here is none" in told
    assert told.endswith("nothing was done: --dry-run\n")


def squares(number: int) -> Experiment:
    def tables(store: Store) -> list[Table]:
        done = store.result(Count(number))
        value = Value(None if done is None else done["result"]["square"], None, 0)
        return [Table("Squares", ("number",), (Column("square"),), (Row(("n",), (value,)),))]

    plan = Plan((Count(number),), tables)
    return Experiment(f"square-{number}", "a square", lambda _: plan)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cwdfm.InputError("a wrong place"), 1),  # of one job: a failure like others
        (WrongFolder("another corpus"), 2),
        (OSError("a full disk"), 2),
        (KeyboardInterrupt("interrupted"), 130),
    ],
)
def test_tables_of_what_is_done_are_written_before_an_error_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    plain = Count.run

    def run(job: Count, *others: Any) -> dict[str, Any]:
        if job.number == 2:
            raise error
        return plain(job, *others)

    monkeypatch.setattr(Count, "run", run)
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    ended = command("repro", "square-1", "square-2", "--out", tmp_path, "--device", "cpu")
    assert ended.returncode == code
    assert str(error) in ended.stderr
    assert "| n | 1 |" in (tmp_path / "smoke" / "square-1.md").read_text()
    assert "| n |  |" in (tmp_path / "smoke" / "square-2.md").read_text()


def test_a_scheduler_s_signal_ends_a_sweep_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Count.run

    def run(job: Count, *others: Any) -> dict[str, Any]:
        if job.number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(job, *others)

    monkeypatch.setattr(Count, "run", run)
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main(["square-1", "square-2", "--out", str(tmp_path), "--device", "cpu"])
    assert ended.value.code == 128 + signal.SIGTERM
    assert "| n | 1 |" in (tmp_path / "smoke" / "square-1.md").read_text()
    assert "| n |  |" in (tmp_path / "smoke" / "square-2.md").read_text()
    assert signal.getsignal(signal.SIGTERM) == before


def test_jobs_say_what_they_are_about() -> None:
    cell = Cell("text", "smoke", {"source": "uniform", "loss": "sce", "path": "context"})
    told = "text, uniform source, sce, context path, seed 2"
    assert cell.train(2).label == f"train ({told})"
    (job, _) = measure("text", "smoke").jobs(cell.sample(2))
    assert job.label == f"text ({told}; auto, 4 steps)"


def test_a_result_without_a_field_of_a_table_costs_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for experiment in (squares(1), squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    arguments = ("repro", "square-1", "square-2", "--out", tmp_path, "--device", "cpu")
    assert command(*arguments).returncode == 0
    path = tmp_path / "jobs" / Count(1).name / "result.json"
    path.write_text(path.read_text().replace('"square"', '"cube"'))
    (tmp_path / "smoke" / "square-2.md").unlink()
    ended = command(*arguments)
    assert ended.returncode == 2
    assert f"square-1 is not written: {path} is damaged (it lacks 'square'); delete" in ended.stdout
    assert ended.stderr.startswith("cwdfm: not written, for what is said above: square-1")
    assert "complete" not in ended.stdout
    assert "| n | 4 |" in (tmp_path / "smoke" / "square-2.md").read_text()


@pytest.mark.parametrize("value", ["9", ["9"], {"mean": 9.0}, 0])
def test_a_result_of_another_shape_is_told_and_costs_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    """As of another version: it is found among the jobs of its experiment, by leaving some out."""
    jobs = tuple(Count(number) for number in range(1, 8))

    def tables(store: Store) -> list[Table]:
        done = [store.result(job) for job in jobs]
        squares = [None if each is None else each["result"]["square"] for each in done]
        rows = [Row(("n",), (Value(square, 0.5),)) for square in squares]
        inverse = sum(1 / square for square in squares if isinstance(square, int))
        rows.append(Row(("inverses",), (Value(inverse),)))
        return [Table("Squares", ("number",), (Column("square"),), tuple(rows))]

    several = Experiment("squares", "squares", lambda _: Plan(jobs, tables))
    for experiment in (several, squares(2)):
        monkeypatch.setitem(EXPERIMENTS, experiment.name, experiment)
    arguments = ("repro", "squares", "square-2", "--out", tmp_path, "--device", "cpu")
    assert command(*arguments).returncode == 0
    path = tmp_path / "jobs" / Count(5).name / "result.json"
    path.write_text(path.read_text().replace('"square": 25', f'"square": {json.dumps(value)}'))
    (tmp_path / "smoke" / "square-2.md").unlink()
    ended = command(*arguments)
    assert ended.returncode == 2
    assert f"squares is not written: {path} is damaged, or of another version (" in ended.stdout
    assert "| n | 4 |" in (tmp_path / "smoke" / "square-2.md").read_text()
    shutil.rmtree(path.parent)
    assert command(*arguments).returncode == 0


def test_tables_and_figures_are_made_of_the_jobs_of_their_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged result of another's could not be found, and would cost tables that lack nothing."""
    read: set[Job] = set()
    monkeypatch.setattr(Store, "result", lambda _, job: read.add(job))
    for experiment in EXPERIMENTS.values():
        plan = experiment.plan("smoke")
        read.clear()
        plan.tables(Store(tmp_path))
        plan.figures(Store(tmp_path))
        assert read <= set(in_order(plan.jobs)), experiment.name


def test_an_error_of_a_table_s_own_is_no_result_s_fault(tmp_path: Path) -> None:
    def tables(_: Store) -> list[Table]:
        raise TypeError("a mistake")

    with pytest.raises(TypeError, match="a mistake"):
        list(write(Plan((Count(1),), tables), Store(tmp_path), tmp_path, "t"))


def test_files_are_told_as_they_are_written_and_which_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "square-1", squares(1))
    in_the_way = tmp_path / "smoke" / "square-1.tex"
    in_the_way.mkdir(parents=True)
    ended = command("repro", "square-1", "--out", tmp_path, "--device", "cpu")
    assert ended.returncode == 2
    written = [tmp_path / "smoke" / f"square-1.{kind}" for kind in ("md", "csv")]
    told = [f"written: {path}" for path in written]
    what = f"square-1 is not written: {in_the_way} could not be written: Is a directory"
    remedy = "Put that right and start again with the same command"
    assert ended.stdout.splitlines()[-3:] == [*told, f"{what}. {remedy}"]


def test_all_files_are_written_though_nobody_reads_what_is_said(tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    plans = {f"square-{number}": squares(number).plan("smoke") for number in (1, 2)}
    with contextlib.redirect_stdout(Closed()):
        assert show(plans, Store(tmp_path / "jobs"), tmp_path / "smoke") == []
    written = {path.name for path in (tmp_path / "smoke").iterdir()}
    assert written == {f"{name}.{kind}" for name in plans for kind in ("md", "csv", "tex")}


def test_a_folder_that_may_not_be_written_is_refused_but_may_be_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first job, though it is within the folder; the superuser may write anywhere."""
    monkeypatch.setitem(EXPERIMENTS, "square-1", squares(1))
    (tmp_path / "jobs").mkdir()
    closed = {tmp_path / "jobs"}
    plain = os.access
    monkeypatch.setattr(os, "access", lambda path, *how: path not in closed and plain(path, *how))
    arguments = ("repro", "square-1", "--out", tmp_path, "--device", "cpu")
    ended = command(*arguments)
    refused = f"{tmp_path / 'jobs'} cannot be written: there is no permission"
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"cwdfm: {refused}")
    assert not ended.stdout
    ended = command(*arguments, "--dry-run")
    assert ended.returncode == 0
    assert "would be done, on cpu: 1 count\n" in ended.stdout
    assert f"but it would be refused here: {refused}" in ended.stdout


def test_all_experiments_are_named_in_a_word_and_costs_in_short_lines(tmp_path: Path) -> None:
    ended = command("repro", "all", "--scale", "paper", "--out", tmp_path / "x", "--dry-run")
    first, *others = ended.stdout.splitlines()
    assert first.startswith(f"all {len(EXPERIMENTS)} experiments at paper scale: ")
    start = others.index(next(line for line in others if line.startswith("cost: ")))
    cost_told = [
        others[start],
        *itertools.takewhile(lambda line: line[:2] == "  ", others[start + 1 :]),
    ]
    assert len(cost_told) > 2
    assert max(map(len, cost_told)) <= 100
    plans = [experiment.plan("paper") for experiment in EXPERIMENTS.values()]
    jobs = in_order(job for plan in plans for job in plan.jobs)
    whole = " ".join(line.strip() for line in cost_told)
    assert whole == f"cost: {cost(jobs, 'paper')}"


@pytest.mark.parametrize("size", ["2", "two"])
def test_a_group_of_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Under torchrun each would wait in the collectives of another job."""
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(cwdfm.InputError, match=rf"WORLD_SIZE is {size}: .*--workers"):
        main(["updates", "--out", str(tmp_path / "x")])
    assert not list(tmp_path.iterdir())


def test_molecules_are_scored_against_the_corpus_of_the_folder(tmp_path: Path) -> None:
    """What is novel by one corpus may be known by another."""
    for name, drawn in (("a", "CCO"), ("b", "CCN")):
        carbons = ["C" * length for length in range(1, 20)]
        (tmp_path / f"{name}.smi").write_text("\n".join([*carbons, drawn]))
    job = Molecules(HeldOut("molecules", 32, 1), 1)
    store = Store(tmp_path / "jobs")
    first, second = (Resources(HERE.device, str(tmp_path / f"{name}.smi")) for name in "ab")
    assert work(store, [job.samples], first, say=silent).complete
    with pytest.raises(cwdfm.InputError, match=r"other molecules-32 .*give the same, or another"):
        work(store, [job], second, say=silent)
    assert work(store, [job], first, say=silent).complete


def test_a_note_tells_the_rows_of_fewer_runs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cells = {name: Cell("molecules", "smoke", {"loss": name}, seeds=3) for name in ("ce", "sce")}
    rows = [((name, ""), cell) for name, cell in cells.items()]
    assert runs_note(rows, store) == ()

    def done(cell: Cell, seed: int) -> None:
        (job,) = measure("molecules", "smoke").jobs(cell.sample(seed))
        counts = {name: {"mean": 1.0, "std": None} for name in ("valid", "unique", "novel")}
        place = store.place(job)
        place.mkdir()
        record = {"result": counts, "provenance": {"date": "2026-01-01"}}
        (place / "result.json").write_text(json.dumps(record))

    behind = "± is one standard deviation between runs."
    done(cells["ce"], 0)
    assert runs_note(rows, store) == ("Means are over 1 of 3 runs.",)
    done(cells["ce"], 1)
    for seed in (0, 1):
        done(cells["sce"], seed)
    assert runs_note(rows, store) == (f"Means are over 2 of 3 runs; {behind}",)
    done(cells["ce"], 2)
    assert runs_note(rows, store) == (f"Means are over 3 runs, over fewer in sce (2); {behind}",)
    twice = [(("a", "x"), cells["sce"]), (("a", "y"), cells["sce"]), (("b", "x"), cells["ce"])]
    assert "over fewer in a (2); ±" in runs_note(twice, store)[0]  # all of it
    parted = [*twice, (("b", "y"), cells["sce"])]
    assert "over fewer in a (2); b y (2); ±" in runs_note(parted, store)[0]
    (alone,) = runs_note([(labels, replace(cell, seeds=1)) for labels, cell in rows], store)
    assert alone == "One run of each training; their scatter is that of counting, 1 at most."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["losses", "zzz"], "unknown experiment 'zzz'; `cwdfm repro list` has them all"),
        (["all", "zzz"], "unknown experiment 'zzz'; `cwdfm repro list` has them all"),
        (["list", "losses"], "takes nothing more, got losses; what one would do and cost"),
        (["Losess"], "unknown experiment 'Losess'; did you mean losses? `cwdfm repro list` has"),
        (["steps-text"], "did you mean steps-text-uniform or steps-text-mask? `cwdfm repro list`"),
        (["--out", "x", "losses"], "--out stands before the experiment's name; give that first"),
        (["losses", "--out", "x", "--only", "tran"], "--only tran: no such jobs; there are"),
        (["losses", "--out", "x", "--only", "train", "tran"], "--only tran: no such jobs; there"),
        (["losses", "--out", "x", "--only", "context"], "--only context: no such jobs; there are"),
        (
            ["radius", "--out", "x", "--corpora", "molecules"],
            "--corpora molecules: radius has no job on it",
        ),
        (["updates", "--out", "x", "--limit", "-5"], "--limit -5: give a number of seconds"),
        (["updates", "--out", "x", "--limit", "nan"], "--limit nan: give a number of seconds"),
        (["updates", "--out", "x", "--wait", "-1"], "--wait -1: give a finite number of seconds"),
        (["updates", "--out", "x", "--wait", "nan"], "--wait nan: give a finite number of seconds"),
        (["updates", "--out", "x", "--wait", "inf"], "--wait inf: give a finite number of seconds"),
        (["updates", "--out", "x", "--wait", "1e300"], "--wait 1e+300: give a finite number of se"),
        (
            ["perplexity", "--out", "x", "--tests", "lambada", "lambda=y"],
            "--tests lambda: no such test corpus; there are wikitext-103, lambada",
        ),
        (
            ["updates", "perplexity", "--out", "x", "--tests", "lambada=/nowhere"],
            "'/nowhere' is neither a dataset nor a file",
        ),
        (["updates", "--out", "x", "--text", "/nowhere"], "'/nowhere' is neither a dataset"),
        (
            ["baselines", "--out", "x", "--molecules", "/nowhere.npz"],  # no toy judge is left
            "/nowhere.npz does not exist",
        ),
        (["radius", "--out", "x", "--judge", "/nowhere.gguf"], "there is no GGUF file"),
        (  # for the command that judges
            ["radius", "--out", "x", "--only", "train", "--judge", "/nowhere.gguf"],
            "there is no GGUF file",
        ),
        (  # though no job reads it
            ["radius", "--out", "x", "--molecules", "/nowhere.smi"],
            "'/nowhere.smi' is neither a dataset nor a file",
        ),
        (  # by its ending
            ["losses", "--out", "x", "--molecules", __file__],
            f"cannot tell how to read {__file__}: known are one SMILES a line",
        ),
        (["radius", "--out", "x", "--tests", "lambada=/nowhere"], "'/nowhere' is neither a data"),
        (["perplexity", "--out", "x", "--tests", "lambada="], "--tests lambada= names no place"),
        (
            ["perplexity", "--out", "x", "--tests", "lambada", "lambada=y"],
            "--tests names lambada more than once; give one place for it",
        ),
        (
            ["losses", "--out", "x", "--scale", "small", "--corpora", "text"],
            "nothing can be done here: needs a corpus of text: give one by --text",
        ),
    ],
)
def test_wrong_commands_are_told_before_anything_is_done(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cwdfm.InputError, match=re.escape(message)):
        main(arguments)
    assert not list(tmp_path.iterdir())


def test_a_cpu_is_not_set_to_train_for_days_unasked() -> None:
    train = Cell("molecules", "small").train()
    cpu, gpu, out = torch.device("cpu"), torch.device("cuda"), Path("x")
    asked = Options(out, scale="small")
    for scale in ("small", "paper"):
        with pytest.raises(cwdfm.InputError, match=f"--scale {scale} is for a GPU.*--limit 0.*cpu"):
            check_device(replace(asked, scale=scale), cpu, {train: None})
    check_device(asked, gpu, {train: None})
    check_device(asked, cpu, {train: "no text", Cell("molecules", "small").sample(): None})
    check_device(replace(asked, device="cpu"), cpu, {train: None})
    check_device(replace(asked, limit=0), cpu, {train: None})
    check_device(replace(asked, scale="smoke"), cpu, {train: None})


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_rows_of_the_table_of_losses_are_different_losses(source: str) -> None:
    """By their gradients: Bregman of masked tokens alone would be the NELBO under another name."""
    gradients = []
    for line in LOSSES:
        if line.labels[0] != source:
            continue
        objective = build(line.cell("molecules", "small").train().recipe, 5).objective
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


def test_tables_tell_the_weights_of_their_scaled_losses() -> None:
    plain, one, other = (
        Cell("text", "small", fields)
        for fields in (
            flow("uniform"),
            flow("uniform", "sce"),
            flow("uniform", "sce", loss_radius=1),
        )
    )
    assert loss_note([plain]) == ()
    assert loss_note([plain, one]) == ("Neighbor weights in the loss (SCE): r = 3, s = 0.5.",)
    assert loss_note([one, other]) == ("Neighbor weights in the loss (SCE): s = 0.5.",)


def test_context_paths_are_the_papers_and_sampled_with_their_own_weights() -> None:
    """Radius 3 on text, where the rows of the table of paths are rows of the table of scales."""
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


def test_context_is_measured_on_as_many_states_as_in_the_paper() -> None:
    (job,) = EXPERIMENTS["context"].plan("paper").jobs
    assert isinstance(job, Context)
    assert job.rows * job.draws == 16_000


def test_a_setting_that_came_later_leaves_names_as_they_were() -> None:
    usual, other = (SolverChoice(corrector=2.0, corrector_power=p) for p in (0.5, 1.0))
    told = to_config(usual)
    assert "corrector_power" not in told
    assert to_config(other) == told | {"corrector_power": 1.0}
    for choice in (usual, other):
        assert from_config(to_config(choice), {"SolverChoice": SolverChoice}) == choice
    name = replace(KINDS[-1].cell("text", "small"), choice=usual).sample().name
    assert name == "sample-2d459e38a729b4c4"  # as before there was this setting
    assert replace(KINDS[-1].cell("text", "small"), choice=other).sample().name != name
    built = other.build(Flow(cwdfm.MaskSource(4), cwdfm.Polynomial(2.0)))
    assert built.corrector == cwdfm.Corrector(2.0, 1.0, 1.0)


def test_of_settings_as_good_as_the_best_the_lowest_perplexity_is_taken() -> None:
    def setting(mauve: float, error: float | None, perplexity: float) -> tuple[Any, SolverChoice]:
        choice = SolverChoice(beta=perplexity)
        return (Value(mauve, error), Value(perplexity), Value(7.0)), choice

    highest, close = setting(0.50, 0.03, 300.0), setting(0.41, 0.04, 200.0)
    off = setting(0.35, 0.04, 100.0)  # three standard errors below
    assert _best_of([highest, close, off]) == close
    assert _best_of([setting(500.0, None, 1.0), setting(499.0, None, 0.0)])[1].beta == 1.0
