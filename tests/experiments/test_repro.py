"""`python -m experiments run`: experiments at smoke scale, and the command."""

import itertools
import json
import os
import re
import shutil
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
import experiments.scores as scores_module
from cwdfm.cli import perplexity
from experiments.catalog import EXPERIMENTS
from experiments.catalog.baselines import KINDS
from experiments.cell import Cell
from experiments.cli.options import Options
from experiments.cli.run import check_device, main, with_toy_evaluator, with_toys
from experiments.cost import cost
from experiments.experiment import write
from experiments.job import Resources, Store
from experiments.jobs import corpus_of
from experiments.sweep import in_order, work
from tests.experiments.test_jobs import Count, silent
from tests.support.command import command
from tests.support.squares import squares


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
    here = with_toy_evaluator(with_toys(Resources(torch.device("cpu"))), store, jobs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="MAUVE of .* samples is coarse")
        for experiment in EXPERIMENTS.values():
            plan = experiment.plan("smoke")
            outcome = work(store, plan.jobs, here, say=silent)
            assert outcome.complete, (experiment.name, outcome)
            assert list(write(plan, store, folder / "smoke", experiment.name))
    return store


@pytest.mark.parametrize(("place", "part"), [("lambada", "test"), ("lambada/*.txt", "all")])
def test_test_perplexity_is_what_the_command_says(
    smoke: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, part: str
) -> None:
    """Of the test part of a corpus with nothing to train on, or of all files of one's own."""
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    (tmp_path / "lambada").mkdir()
    for name, text in (("dev", "it was the worst of times"), ("test", "it was the best of times")):
        (tmp_path / "lambada" / f"{name}.txt").write_text(f"{text} \n" * 9)
    where = place if part == "test" else str(tmp_path / place)
    plan = EXPERIMENTS["perplexity"].plan("smoke")
    job = next(
        j for j in plan.jobs if isinstance(j, scores_module.TestLikelihood) and j.test == "lambada"
    )
    store = Store(tmp_path / "jobs")
    shutil.copytree(smoke.place(job.model), store.place(job.model))
    here = Resources(torch.device("cpu"), tests=(("lambada", where),))
    assert work(store, [job], here, say=silent).complete
    model, out = store.place(job.model) / "model", tmp_path / "bound.json"
    asked = ["--rows", str(job.rows), "--draws", str(job.draws), "--out", str(out)]
    perplexity.main([str(model), "--data", where, "--part", part, *asked])
    (found,) = json.loads(out.read_text())["results"]
    filled = found["tokens"] % job.model.recipe.length  # of a window not all counts
    assert bool(filled) == (part == "test")
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
    head = (
        f"`python -m experiments run {name}` at smoke scale: {jobs} of {jobs} jobs are done. Toys: "
    )
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
        ("--eval-model", "gpt2", "other judge"),
        ("--text", "/nowhere", "neither a dataset nor a file"),
        ("--molecules", tmp_path / "other.smi", "other molecules-32"),
    ):
        with pytest.raises(cwdfm.InputError, match=message):
            main(["losses", "--out", str(tmp_path), option, str(place)])


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
    assert "not done here: 10 jobs (train (text, uniform source, ce, seed 0), ...): needs a" in told
    assert "not done here: 17 jobs (sample (" in told
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


def test_all_experiments_are_named_in_a_word_and_costs_in_short_lines(tmp_path: Path) -> None:
    ended = command("run", "all", "--scale", "paper", "--out", tmp_path / "x", "--dry-run")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["losses", "zzz"], "unknown experiment 'zzz'; `python -m experiments list` has them all"),
        (["all", "zzz"], "unknown experiment 'zzz'; `python -m experiments list` has them all"),
        (["list", "losses"], "takes nothing more, got losses; what one would do and cost"),
        (
            ["Losess"],
            "unknown experiment 'Losess'; did you mean losses? `python -m experiments list` has",
        ),
        (
            ["steps-text"],
            "did you mean steps-text-uniform or steps-text-mask? `python -m experiments list`",
        ),
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
        (["radius", "--out", "x", "--eval-model", "/nowhere.gguf"], "there is no GGUF file"),
        (  # for the command that judges
            ["radius", "--out", "x", "--only", "train", "--eval-model", "/nowhere.gguf"],
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
