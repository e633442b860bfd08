"""`python -m experiments list`: what there is, where it is in the paper, and what it costs."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import cwdfm
import experiments.cost as cost_module
from cwdfm.cli.options import flag as flag_of
from cwdfm.train.recipes import RECIPES
from experiments import listing, paper
from experiments.catalog import EXPERIMENTS
from experiments.cell import Cell
from experiments.cli.options import Options, chosen
from experiments.cli.run import main
from experiments.cost import cost
from experiments.jobs import Sample, Train, corpus_of
from experiments.measured import Measured
from experiments.sweep import in_order
from tests.support.command import command


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
        ended = command("run", *words)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"cwdfm: {word} is no experiment: {what}")
    assert what in listing.listed()
    assert set(re.findall(r"cwdfm train (\S+)", listing.no_experiment(word))) <= set(RECIPES)


def test_the_page_tells_what_each_experiment_beyond_the_paper_shows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "repro.md").read_text()
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
    updates = EXPERIMENTS["updates"].plan("paper").jobs  # which draw samples of their own
    minutes = 2 * 5000 * 1024 * 1024 * 0.5e-6 / 60
    assert f"sampling takes at most {minutes:.1f} GPU minutes more" in cost(updates, "paper")


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        (119.9, "119.9 GPU minutes"),
        (120, "2 GPU hours"),
        (2879, "48 GPU hours"),
        (2880, "2 GPU days"),
    ],
)
def test_times_are_told_in_a_unit_of_which_there_are_two_at_least(
    minutes: float, told: str
) -> None:
    assert cost_module.gpu_time(minutes) == told


def test_the_cost_at_smoke_scale_is_the_page_s() -> None:
    """Alone and of all: they share jobs, so that all take less than each of them in turn."""
    told = cost(EXPERIMENTS["losses"].plan("smoke").jobs, "smoke")
    page = (Path(__file__).parents[2] / "docs" / "repro.md").read_text()
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
