"""The code in README and docs runs as it stands, each page from top to bottom."""

import math
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import variance

import pytest

from benchmarks import repro_costs
from benchmarks.claims import (
    ablations,
    claims_page,
    differ,
    exact,
    judging,
    main_table,
    molecule_solvers,
    on_molecules,
    on_text,
    settings,
    text_samples,
    text_solvers,
    training,
    tuned,
)
from benchmarks.claims.beyond import beside_goal, most_valid, reached
from benchmarks.claims.exact import trend
from benchmarks.claims.judging import Measured, Missing, anchor, judged, no_worse
from benchmarks.claims.on_molecules import COUNT_ERROR, Paired, Runs, counted_folds, short_of
from benchmarks.molecule_sections import _leads
from benchmarks.report import report
from benchmarks.repro_costs import Span, at_once
from benchmarks.repro_sections import LOST, _half, filled, left_out
from benchmarks.search_tables import barred_table
from benchmarks.speed_page import page
from benchmarks.text_sections import picked
from cwdfm.bench.cases import CASES
from cwdfm.repro.cell import Cell
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.experiments.solvers import TUNED, corrector_steps, tuned_cells
from cwdfm.repro.job import Store
from cwdfm.repro.jobs import corpus_of
from cwdfm.repro.measured import FILE
from cwdfm.repro.sweep import in_order
from cwdfm.repro.table import Column, Row, Table, Value

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/guide.md", "docs/extending.md", "docs/molecules.md"]


@pytest.mark.parametrize("name", PAGES)
def test_code_blocks_run(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def test_pages_are_linked_and_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    linked = set()
    for each in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", each.read_text()):
            path = (each.parent / target).resolve()
            assert path.exists(), f"{each.name} links to {target}, which is not there"
            linked.add(path)
    assert set(map(Path.resolve, pages[1:])) <= linked


@pytest.mark.parametrize("name", ["results", "speed", "claims"])
def test_generated_pages_are_those_of_the_results(name: str) -> None:
    made = {"results": report, "speed": page, "claims": claims_page}[name]()
    assert (ROOT / "docs" / f"{name}.md").read_text() == made, "run: python -m benchmarks.report"


def test_what_the_package_says_of_costs_is_that_of_the_results() -> None:
    assert FILE.read_text() == repro_costs.measured_file(), "run: python -m benchmarks.report"


def test_costs_are_of_all_jobs_that_an_experiment_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EXPERIMENTS["steps-molecules-mask"].plan("small")  # shares a training with its sweep
    train, sample, scored = in_order(plan.jobs)[:3]
    assert [job.kind for job in (train, sample, scored)] == ["train", "sample", "molecules"]
    spans = {
        train.name: Span(600.0, 1000.0, "a GPU"),
        sample.name: Span(30.0, 1100.0, "a GPU"),
        scored.name: Span(3.0, 1200.0, None),
        "another": Span(100.0, 700.0, "a GPU"),
    }
    monkeypatch.setattr(repro_costs, "spans", lambda: spans)
    assert repro_costs.took(plan) == (
        " They took 9.7 GPU minutes (training 9.2, sampling 0.5) and 0.1 CPU minutes; 9.7 GPU "
        "minutes are of jobs that other experiments need too; up to 2 jobs had the GPU at a time, "
        "10 by their own clocks."
    )
    monkeypatch.setattr(repro_costs, "spans", dict)
    assert repro_costs.took(plan) == ""


def test_jobs_at_a_time_share_the_gpu() -> None:
    spans = {
        "a": Span(10.0, 10.0, "a GPU"),  # from 0 to 10
        "b": Span(6.0, 8.0, "a GPU"),  # from 2 to 8
        "c": Span(4.0, 8.0, "a GPU"),  # from 4 to 8
        "d": Span(9.0, 9.0, None),
        "e": Span(5.0, 25.0, "a GPU"),
    }
    found = repro_costs.shares(spans)
    thirds = 4 / 3
    assert found == pytest.approx({"a": 4 + 1 + thirds, "b": 1 + thirds, "c": thirds, "e": 5.0})


def test_costs_of_an_experiment_s_own_jobs_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    own = in_order(EXPERIMENTS["positions"].plan("small").jobs)
    others = [
        job
        for name, experiment in EXPERIMENTS.items()
        if name != "positions"
        for job in in_order(experiment.plan("small").jobs)
    ]
    alone = next(job for job in own if job not in others)
    shared = next(job for job in own if job in others)
    spans = {
        alone.name: Span(300.0, 1000.0, "a GPU"),
        shared.name: Span(120.0, 2000.0, "a GPU"),
    }
    monkeypatch.setattr(repro_costs, "spans", lambda: spans)
    told = repro_costs.took(EXPERIMENTS["positions"].plan("small"))
    assert "They took 7.0 GPU minutes" in told
    assert told.endswith("; 2.0 GPU minutes are of jobs that other experiments need too.")


def test_jobs_one_after_another_are_not_at_once() -> None:
    first, second, beside = (Span(10.0, end, "a GPU") for end in (100.0, 109.5, 104.0))
    on_cpu = Span(10.0, 100.0, None)
    assert at_once([first], [first, second, on_cpu]) == 1
    assert at_once([first], [first, second, beside]) == 2
    assert at_once([second], [first, second, beside]) == 2


def test_revisions_of_results_are_commits() -> None:
    try:
        made = subprocess.run(
            ["git", "log", "--format=%H"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no history")
    known = {commit[:digits] for commit in made for digits in (7, 12)}
    if not set(LOST.values()) <= known:
        pytest.skip("another history, or a part of it")
    for path in (ROOT / "results").rglob("*.json"):
        for found in re.findall(r'"revision": "(\w+)', path.read_text()):
            assert found in known | LOST.keys(), f"{path} names {found}, which is no commit"


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([2.1], "holds"),
        ([2.1, 2.5], "holds"),
        ([3.1, 1.0], "holds partly"),
        ([3.1, -9.0], "mixed"),
        ([2.9, 1.0, -3.1], "does not hold here"),
        ([2.1, 2.1, -2.1, -2.1], "mixed"),
        ([2.9, 1.0], "undecided here"),  # the larger of two
        ([1.0, -2.9], "undecided here"),
        ([1.0, -3.1], "does not hold here"),
        ([-2.1], "does not hold here"),
        ([2.1, 2.1, 1.9], "holds partly"),
        ([-2.1, -2.1, 1.9], "does not hold here"),
    ],
)
def test_verdicts(gains: list[float], verdict: str) -> None:
    assert judged({"all": gains}, "").word == verdict


@pytest.mark.parametrize(("kind", "falls"), [("neighbors", True), ("distance", False)])
def test_what_context_does_can_be_refuted(kind: str, falls: bool) -> None:
    rising = [1.0, 5.0, 5.5, 5.8, 6.0]
    values = rising[::-1] if falls else rising
    errors = [0.1] * 5
    curve = {"bins": [1, 2, 4, 8, 16], "entropy_error": errors, "nll_error": errors}
    none, wrong = [3.0] * 5, "does not hold here"
    for shown, verdict in ((values, "holds"), (values[::-1], wrong), (none, wrong)):
        assert trend(curve | {"entropy": shown, "nll": shown}, kind)[1].word == verdict
    late = [1.0, 2.0, 3.0, 4.0, 6.0]  # it grows, but not early
    late = late[::-1] if falls else late
    for seen in ({"entropy": values, "nll": late}, {"entropy": late, "nll": values}):
        assert trend(curve | seen, kind)[1].word == ("holds" if falls else "holds partly")


def test_a_page_without_results_of_experiments_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (judging, exact, on_text, ablations):
        monkeypatch.setattr(module, "STORE", Store(tmp_path))
    made = claims_page()
    for name in ("headline", "revealed", "sweep-molecules-mask"):
        assert f"`cwdfm repro {name} --scale small` is not done yet." in made
    assert "**not tested yet**" in made


def test_a_remark_alone_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "number", lambda value: _raise())
    assert training.by_one_solver() == []


def _raise() -> Measured:
    raise Missing


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_tuned_settings_are_the_best_of_the_sweep_on_record(source: str) -> None:
    table = EXPERIMENTS[f"sweep-text-{source}"].plan("small").tables(judging.STORE)[-1]
    assert tuple(value.value for value in table.rows[0].ours) == TUNED[source]


@pytest.mark.parametrize(("source", "word"), [("uniform", "does not hold here"), ("mask", "holds")])
def test_what_is_gained_nowhere_is_nothing(
    monkeypatch: pytest.MonkeyPatch, source: str, word: str
) -> None:
    """Of two sources one gains much at one number of steps, and the other loses."""

    def row(first: float) -> tuple[Value, ...]:
        return (Value(first), *[Value(500.0)] * (len(on_molecules.STEPS) - 1))

    rows = {
        (s, loss, solver): row(value if solver == "Neighbor" else 500.0)
        for s, value in (("uniform", 600.0), ("mask", 400.0))
        for loss in ("CE", "SCE")
        for solver in ("Euler", "Neighbor")
    }
    monkeypatch.setattr(molecule_solvers, "rows_of", lambda name, table: rows)
    (claim,) = (each for each in molecule_solvers.after_scaled() if f"{source} source" in each.said)
    assert claim.verdict.word == word
    assert ("gain nothing either" in claim.found) == (source == "mask")


def test_our_settings_are_judged_at_few_steps_and_at_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entropy weights lead at few steps, and Neighbor weights at many in all but MAUVE."""
    first, last = str(tuned.CURVE[0]), str(tuned.CURVE[-1])
    rows = {
        (solver, str(k)): (Value(0.5, 0.1), Value(300.0, 5.0))
        for solver in (*tuned.SOLVERS, *tuned.COUNTED)
        for k in tuned.CURVE
    }
    rows["Entropy", first] = Value(0.5, 0.1), Value(200.0, 5.0)
    rows["Neighbor", last] = Value(0.5, 0.1), Value(200.0, 5.0)
    monkeypatch.setattr(tuned, "rows_of", lambda name: rows)
    words = [claim.verdict.word for claim in tuned.tuned()]
    # Beside Euler and Entropy at many steps, and at few: of the uniform source, then of the mask.
    assert words == ["holds partly", "holds partly", "holds", "holds", "holds", "holds"]


def alike(name: str) -> dict[tuple[str, ...], tuple[Value, ...]]:
    """An experiment's table in which all rows have the same values, and errors."""
    (table, *_) = EXPERIMENTS[name].plan("small").tables(Store(Path("nowhere")))
    return {row.labels: (Value(100.0, 5.0),) * len(table.columns) for row in table.rows}


def test_best_settings_hold_in_part_where_only_one_is_to_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neighbor weights are ahead of Euler with the paper's settings, Entropy weights with none."""
    rows = alike("sweep-molecules-uniform")
    monkeypatch.setattr(settings, "rows_of", lambda name: rows)

    def verdict() -> str:
        return settings._beside_best("molecules", "uniform", "", "valid")[1].word

    assert verdict() == "undecided here"
    rows["Neighbor", "r = 1, s = 4"] = (Value(900.0),) * 3
    assert verdict() == "holds partly"
    rows["Entropy", "beta = 7"] = (Value(900.0),) * 3
    assert verdict() == "holds"
    rows["Entropy", "beta = 1"] = rows["Neighbor", "r = 3, s = 5"] = (Value(1000.0),) * 3
    assert verdict() == "does not hold here"


def test_best_settings_of_text_are_compared_at_many_steps_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("sweep-text-uniform", "steps-text-uniform", "tuned-text-uniform")
    tables = {name: alike(name) for name in names}
    for module in (settings, tuned):
        monkeypatch.setattr(module, "rows_of", tables.__getitem__)
    swept = tables["sweep-text-uniform"]
    swept["Neighbor", "r = 1, s = 3"] = swept["Entropy", "beta = 1"] = (
        Value(0.5, 0.1),
        Value(50.0, 1.0),
    )
    told, verdict = settings._beside_best("text", "uniform", "sweep-text-uniform", "perplexity")
    many = "At 1,024 steps, r = 1, s = 3 and beta = 1, Euler 100, solvers on other runs: Neighbor"
    assert f"{many} 100" in told
    assert verdict.word == "does not hold here"  # there is nothing to choose at many steps
    tables["tuned-text-uniform"]["Euler", "1024"] = Value(0.5, 0.1), Value(300.0, 5.0)
    _, verdict = settings._beside_best("text", "uniform", "sweep-text-uniform", "perplexity")
    assert verdict.word == "holds partly"  # near at many steps, not at the sweep's number


def test_entropies_as_shares_are_judged_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first = str(tuned.CURVE[0])
    names = ["entropy-shares", *(f"tuned-text-{source}" for source in TUNED)]
    tables = {name: alike(name) for name in names}
    monkeypatch.setattr(tuned, "rows_of", tables.__getitem__)
    told, verdict = tuned.by_shares()
    assert verdict.word == "undecided here"
    assert "uniform source: Euler 100, Neighbor 100, Entropy 100 (3), 100 (6), 100 (12)" in told
    for source in TUNED:
        tables["entropy-shares"][source, "6 / log V", first] = (Value(0.5), Value(50.0, 1.0))
    assert tuned.by_shares()[1].word == "holds"


def test_solvers_after_sce_are_judged_by_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = alike("scaled-solvers")
    monkeypatch.setattr(text_solvers, "rows_of", lambda name: rows)
    (claim,) = text_solvers.after_scaled_on_text()
    assert claim.verdict.word == "holds"  # nothing gained
    for source in TUNED:
        for k in corrector_steps("text", "small"):
            rows[source, "Neighbor", str(k)] = (Value(0.5), Value(50.0, 1.0))
    (claim,) = text_solvers.after_scaled_on_text()
    assert claim.verdict.word == "does not hold here"


def test_few_data_are_judged_by_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = alike("few-data")
    monkeypatch.setattr(molecule_solvers, "rows_of", lambda name: rows)
    assert few_words() == ["undecided here"] * 2
    better = (Value(900.0), Value(900.0), Value(300.0))
    for name in ("CE, Neighbor", "SCE, context path, own weights"):
        rows["all", name] = better  # of which the claim is not
    assert few_words() == ["undecided here"] * 2
    for part in ("1,000", "10,000"):
        rows[part, "CE, Neighbor"] = better
    assert few_words() == ["holds", "undecided here"]
    for part in ("1,000", "10,000"):
        rows[part, "SCE, context path, own weights"] = better
    assert few_words() == ["holds", "holds"]


def few_words() -> list[str]:
    """Verdicts on solvers where data are few, and on paths."""
    return [claim.verdict.word for claim in molecule_solvers.few_data()]


def test_a_bound_above_a_level_guess_is_in_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {name: alike(name) for name in ("baselines", "perplexity")}
    monkeypatch.setattr(main_table, "rows_of", lambda name, table: tables[name])
    whole = len(next(main_table.perplexities()).verdict.gains["worse"])
    rest = tables["perplexity"]["DFM + SCE", "mask"][1:]
    tables["perplexity"]["DFM + SCE", "mask"] = (Value(main_table.LEVEL + 1.0, 5.0), *rest)
    uniform, mask = main_table.perplexities()
    assert len(uniform.verdict.gains["worse"]) == whole
    assert len(mask.verdict.gains["hardly changed"]) == whole - 1
    assert "wikitext-103: 100 to 50,258 (above a level guess" in mask.found
    assert mask.found.count("above a level guess") == 1
    tables["perplexity"]["DFM", "mask"] = (Value(None), *tables["perplexity"]["DFM", "mask"][1:])
    assert "not to be had here: wikitext-103" in list(main_table.perplexities())[1].found


def test_perplexities_hardly_change_or_do(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {name: alike(name) for name in ("baselines", "perplexity")}
    monkeypatch.setattr(main_table, "rows_of", lambda name, table: tables[name])
    words = [claim.verdict.word for claim in main_table.perplexities()]
    assert words == ["does not hold here", "holds"]  # the first promises a growth
    tables["baselines"]["non-AR", "DFM + SCE, mask"] = (Value(200.0, 1.0),) * 4
    tables["perplexity"]["DFM + SCE", "mask"] = (Value(200.0, 1.0),) * 4
    words = [claim.verdict.word for claim in main_table.perplexities()]
    assert words == ["does not hold here", "does not hold here"]


def test_a_training_is_judged_by_all_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_text, "done_again", lambda: ["other", "same"])
    runs = {"other": [10.0, 20.0], "same": [100.0, 400.0, 200.0, 200.0]}
    monkeypatch.setattr(on_text, "tabled", lambda row, of: runs[row])
    monkeypatch.setattr(on_text, "sample_scatter", lambda of, source, diverging: 0.1)
    assert on_text.all_runs(Value(400.0)) == runs["same"]
    found = on_text.over_runs(Value(400.0, 0.0), "uniform")
    assert found.value == pytest.approx(200.0)
    assert found.error == pytest.approx(200 * 0.1)  # they do not tell of other seeds
    assert on_text.all_runs(Value(300.0)) == [300.0]  # of which there is no other run


def test_solvers_on_different_runs_have_the_scatter_of_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = tuned_cells("uniform", "small")
    one, same, other = (cells[name, 64] for name in ("Euler", "Neighbor", "Entropy"))
    dates = {one.sample(): "monday", same.sample(): "monday", other.sample(): "tuesday"}
    monkeypatch.setattr(Store, "run_of", lambda self, need, job: dates[job])
    monkeypatch.setattr(on_text, "rerun_scatter", lambda source: 0.1)
    before, after = Value(math.e * 100.0, math.e * math.sqrt(5)), Value(100.0, math.sqrt(5))
    folds = 0.01 * math.sqrt(2)
    gain = on_text.drawn(before, one).over(on_text.drawn(after, same))
    assert gain == pytest.approx(1 / folds)
    gain = on_text.drawn(before, one).over(on_text.drawn(after, other))
    assert gain == pytest.approx(1 / math.hypot(folds, 0.1 * math.sqrt(2)))
    assert on_text.of_runs([one, same]) == "one run"
    assert on_text.of_runs([one, other]) == "some solvers on other runs of it"


def test_runs_of_one_seed_scatter_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(*perplexities: float, **more: object) -> object:
        sample = {"choice": {"solver": "euler"}, "perplexities": perplexities}
        told = {"method": "flow", "source": "mask", "loss": "ce", "masked_only": False}
        return told | {"samples": [sample]} | more

    e = math.e
    rows = [
        row(1.0, e),
        row(1.0, e**5, masked_only=True),
        row(1.0, e**6, method="bd3lm"),
        row(1.0, e**7, loss="nelbo"),
        row(1.0, e**2, source="uniform"),
    ]
    monkeypatch.setattr(on_text, "done_again", lambda: rows)
    assert on_text.rerun_scatter("mask") == pytest.approx(1 / math.sqrt(2))
    assert on_text.rerun_scatter("uniform") == pytest.approx(2 / math.sqrt(2))


def test_weights_leave_an_exact_target_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts(entropy: float) -> list[str]:
        rows = [
            {"source": source, "solver": solver, "steps": 128, "total_variation": far}
            for source in ("mask", "uniform")
            for solver, far in (
                ("Euler", 0.02),
                ("Neighbor-weighted", 0.02),
                ("Entropy-weighted", entropy if source == "uniform" else 0.02),
            )
        ]
        found = {"rows": rows, "floor": 0.01, "config": {"samples": 7}}
        monkeypatch.setattr(exact, "read", lambda name: found)
        return [claim.verdict.word for claim in exact.in_place()]

    assert verdicts(0.025) == ["holds", "holds"]
    assert verdicts(0.05) == ["holds", "holds partly"]


def test_an_entropy_is_comparable_or_falls() -> None:
    def seen(bits: float) -> text_samples.Seen:
        return text_samples.Seen(Measured(1, 1), Measured(1, 1), Measured(bits, 0.01))

    (kept,) = text_samples.by_entropy([(seen(7.3), seen(7.15))])
    (fallen,) = text_samples.by_entropy([(seen(7.3), seen(6.8))])
    assert kept == judging.KEPT
    assert fallen == pytest.approx(-0.5 / (0.01 * math.sqrt(2)))


def test_claims_at_a_glance_lead_to_their_evidence_and_to_what_shows_them() -> None:
    made = claims_page()
    glance = made[: made.index("## How a verdict")]
    headings = {anchor(line[4:]) for line in made.splitlines() if line.startswith("### ")}
    linked = re.findall(r"\[\d+\]\(#([^)]+)\)", glance)
    assert len(linked) == len(set(linked)) > 40
    assert set(linked) == headings
    commands = [row.split(" | ")[-1] for row in glance.splitlines() if row.startswith("| [")]
    for named in {name for cell in commands for name in re.findall("`([^`]+)`", cell)}:
        first, *rest = named.split()
        match first:
            case "pytest":
                assert (ROOT / rest[0]).is_file(), named
            case "python":
                module = f"{rest[1].replace('.', '/')}.py" if rest[0] == "-m" else rest[0]
                assert (ROOT / module).is_file(), named
            case "cwdfm":
                assert set(rest[4:]) <= set(CASES), named
            case _:
                assert named in EXPERIMENTS


def test_experiments_take_half_an_hour_at_most_but_for_those_that_the_page_names() -> None:
    had = repro_costs.shares(repro_costs.spans())
    minutes: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for name, experiment in EXPERIMENTS.items():
        for job in in_order(experiment.plan("small").jobs):
            minutes[name, corpus_of(job)] += had.get(job.name, 0.0) / 60
            minutes[name, "both"] += had.get(job.name, 0.0) / 60
    long = {key for key, found in minutes.items() if found > 30}
    assert {name for name, corpus in long if corpus == "both"} == {"losses", "revealed"}
    assert {key for key in long if key[1] != "both"} == {("revealed", "molecules")}
    assert max(minutes.values()) < 33  # "a little more"


def test_weights_clearly_apart_from_the_default_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with more as well as those with fewer."""
    counts = {"zero": 400.0, "raw": 800.0}
    monkeypatch.setattr(
        Runs, "counts", lambda self, cell, what: [counts.get(cell.fields.get("revealed"), 600.0)]
    )
    told = differ._revealed()
    assert "from `one`, the default: zero (uniform source), raw (uniform source), zero (m" in told


def test_weights_that_are_not_normalised_stand_beside_the_plain_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def counts(self: Runs, cell: Cell, what: int) -> list[float]:
        weight = cell.fields.get("revealed", "")
        if cell.fields["source"] == "mask" or weight == "level":
            return [600.0] if not weight else []  # not done
        return [700.0 + {"raw": 10, "joint": -20}.get(weight, 0)] * 3

    monkeypatch.setattr(Runs, "counts", counts)
    gain = 10 / (COUNT_ERROR * math.sqrt(2 / 3))
    raw, joint = training.not_normalised().split("; ")  # what is not done is not told
    assert raw.endswith(f"(`raw`): 700 to 710 (uniform) valid, {gain:+.1f} (uniform) errors")
    lost = f"{-2 * gain:+.1f} (uniform) errors"
    assert joint.endswith(f"(`joint`): 700 to 680 (uniform) valid, {lost}")


def test_mean_gains_have_the_error_of_the_counts_they_are_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = alike("positions")
    learned = [key for key in rows if key[0].startswith("learned") and key[1] == "Neighbor"]
    for key in learned:
        rows[key] = (Value(160.0),) * 3
    monkeypatch.setattr(differ, "rows_of", lambda name: rows)
    told = differ._known()
    assert "the mean gain is +60 with learned positions, +0 with rotary ones" in told
    # Each gain is a difference of two counts.
    assert f"each ± {math.sqrt(2 * COUNT_ERROR**2 / len(learned)):.0f}." in told


def test_a_growth_short_of_the_papers_counts_against_a_claim() -> None:
    same, far = (Measured(valid, 5.0) for valid in (500.0, 900.0))
    gains, told = training.behind([("mask", same, same), ("uniform", same, far)], "ce", "sce")
    ((short, kept),) = gains.values()
    assert short < -2
    assert kept == judging.KEPT
    assert told.endswith(f"larger than ours by {-short:.0f} (mask) standard errors")


def test_entropy_is_to_grow_on_the_context_path(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, others = alike("paths"), judging.rows_of
    rows["uniform", "context"] = (*rows["uniform", "context"][: on_text.ENTROPY], Value(200.0, 5.0))

    def rows_of(name: str, table: int = 0) -> dict[tuple[str, ...], tuple[Value, ...]]:
        return rows if name == "paths" else others(name, table)

    for module in (training, on_text):
        monkeypatch.setattr(module, "rows_of", rows_of)
    _, text = training.paths()
    (gain,) = text.verdict.gains["uniform, entropy"]
    assert gain > 2


def test_runs_scatter_in_held_out_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_text, "loss_scatter", lambda: 0.03)
    assert on_text.run_likelihood(Value(200.0, 8.0)).error == pytest.approx(10.0)
    monkeypatch.setattr(on_text, "sample_scatter", lambda of, source: 0.03)
    folds = 0.04 * math.sqrt(5)
    assert on_text.run_entropy(Value(7.0, folds), "mask").error == pytest.approx(0.05)


def test_what_settings_give_is_told_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = alike("path-solvers")
    rows["mask", "Euler"] = (Value(700.0), Value(1.0), Value(1.0))
    monkeypatch.setattr(training, "rows_of", lambda name: rows)
    (told,) = training.by_other_weights()
    assert "100 to 100 (uniform)" in told
    assert "100 to 700 (mask), most by Euler" in told
    assert training.best_of_sweep() == {"uniform": 100.0, "mask": 700.0}
    rows["mask", "Euler"] = (Value(None), Value(None), Value(None))
    (told,) = training.by_other_weights()
    assert "(mask)" not in told
    assert training.best_of_sweep() == {}
    scaled = alike("scaled-text")
    monkeypatch.setattr(differ, "rows_of", lambda name: scaled)
    assert "100 and 100 (SCE, r = 3, s = 0.5, raw)" in differ._settings_of_scaled()
    powers = alike("corrector-powers")
    monkeypatch.setattr(text_solvers, "rows_of", lambda name: powers)
    assert "100 (Neighbor, a = b = 0.25), 100 (Neighbor, a = b = 0.5)" in text_solvers.by_powers()
    powers["Euler", "1"] = (Value(None),) * 3
    assert text_solvers.by_powers() == ""
    read = alike("readings")
    read["uniform", "context", "CE"] = (Value(700.0), Value(1.0), Value(200.0))
    monkeypatch.setattr(differ, "rows_of", lambda name: read)
    assert "; uniform, context, CE: 700 and 200; " in differ._readings()
    drawn = alike("nucleus")
    drawn["uniform", "SCE", "0.9"] = (Value(0.5), Value(40.0, 1.0), Value(7.0))
    monkeypatch.setattr(differ, "rows_of", lambda name: drawn)
    assert "100 to 40 (uniform source, p = 0.9), 100 to 100 (mask source, p = 0.9)" in (
        differ._in_nucleus()
    )


def test_runs_on_text_scatter_by_source_and_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(
        source: str, loss: str, *perplexities: float | None, solver: str = "euler", **more: object
    ) -> object:
        numbers = dict.fromkeys(("perplexities", "entropies"), perplexities)
        sample = {"choice": {"solver": solver}, **numbers}
        told = {"corpus": "text", "method": "flow", "masked_only": False, "samples": [sample]}
        return told | {"source": source, "loss": loss} | more

    e = math.e
    rows = [
        row("uniform", "ce", 1.0, None, e),  # one missing; the logarithms are 0 and 1
        row("uniform", "sce", 1.0, e, e**2),
        row("uniform", "ce", 1.0, e**9, solver="entropy"),  # of which no table is
        row("mask", "ce", 1.0, e**3),
        row("mask", "ce", 1.0, e**8, masked_only=True),  # which no table has
        row("mask", "ce", 1.0, e**2, method="bd3lm", masked_only=True),
        row("mask", "nelbo", 1.0, e**5, masked_only=True),
        row("mask", "sce", e**7),  # done once
    ]
    monkeypatch.setattr(on_text, "read", lambda name: {"rows": rows})
    monkeypatch.setattr(on_text, "by_seed", lambda cell, column: [1.0, None, e])  # CE's and SCE's
    scatter = on_text.sample_scatter
    assert scatter("perplexities", "uniform") == pytest.approx(math.sqrt((0.5 + 2) / 3))
    squares = variance([1.0, e]) + 2 * variance([1.0, e, e**2])
    assert scatter("entropies", "uniform") == pytest.approx(math.sqrt(squares / 3))  # as they are
    masked = math.sqrt((4.5 + 2 + 0.5 + 0.5) / 4)
    assert scatter("perplexities", "mask") == pytest.approx(masked)
    for source in ("uniform", "mask"):  # which is all that is known of such losses
        found = scatter("perplexities", source, diverging=True)
        assert found == pytest.approx(5 / math.sqrt(2))
    run = on_text.run_perplexity(Value(100.0, 0.0), "mask")
    assert run.error == pytest.approx(100.0 * masked)


def test_cells_of_a_table_share_the_scatter_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    many, one, none = (Cell("molecules", "small", seeds=seeds) for seeds in (3, 2, 1))
    counts = {3: [500.0, 600.0, 700.0], 2: [400.0], 1: []}
    monkeypatch.setattr(Runs, "counts", lambda self, cell, what: counts[cell.seeds])
    runs = Runs((many, one, none))
    assert runs.scatter(0) == pytest.approx(100.0)  # by the three, with two degrees of freedom
    assert runs.mean(many, 0).value == 600.0
    assert runs.mean(many, 0).error == pytest.approx(100.0 / math.sqrt(3))
    assert runs.mean(one, 0).error == pytest.approx(100.0)  # a single run has the others' scatter
    with pytest.raises(Missing):
        runs.mean(none, 0)
    counts[3] = [600.0, 600.0, 600.0]
    assert runs.scatter(0) == COUNT_ERROR  # counting scatters, however equal three runs are


def test_solvers_are_compared_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (Cell("molecules", "small", steps=steps, seeds=3) for steps in (1, 2))
    counts = {1: [400.0, 500.0, 600.0], 2: [430.0, 530.0, 630.0]}
    monkeypatch.setattr(on_molecules, "by_seed", lambda cell, what: counts[cell.steps])
    runs = Paired(((before, after),))
    # Runs differ by a hundred, but not in what the solver adds: counting is all the error.
    expected = 30 / (math.sqrt(2) * COUNT_ERROR / math.sqrt(3))
    assert runs.gain(before, after, 0) == pytest.approx(expected)
    assert runs.gain(after, before, 0) == pytest.approx(-expected)
    counts[2] = [430.0, 530.0, 720.0]  # 30, 30, 120 more
    assert runs.gain(before, after, 0) == pytest.approx(60 / (math.sqrt(2700) / math.sqrt(3)))


def test_folds_that_agree_by_chance_have_the_error_of_counting() -> None:
    assert counted_folds(Value(600.0, 2.0)).error == pytest.approx(COUNT_ERROR / math.sqrt(5))
    assert counted_folds(Value(600.0, 30.0)).error == pytest.approx(30.0 / math.sqrt(5))


def test_from_how_many_steps_on_weights_are_ahead() -> None:
    def ahead(*gains: float) -> str:
        return text_samples.ahead("higher", {64 * 4**i: gain for i, gain in enumerate(gains)})

    assert ahead(0.1, -0.1, 0.1) == "higher from 1024 steps on"
    assert ahead(0.1, 0.1, 0.1) == "higher from 64 steps on"
    assert ahead(0.1, 0.1, 0.0) == "higher at no number of steps"


def test_experiments_that_are_not_shown_are_named() -> None:
    assert left_out(EXPERIMENTS) == []
    (told,) = left_out(EXPERIMENTS.keys() - {"losses"})
    assert "`losses` (" in told


def test_what_must_not_be_worse() -> None:
    for gain, other, word in (
        (2.1, -1.9, "holds"),
        (3.1, -2.1, "holds partly"),
        (1.0, -3.1, "does not hold here"),
    ):
        assert judged({"one": [gain], "other": [no_worse(other)]}, "").word == word


def test_a_verdict_names_what_it_rests_on() -> None:
    found = judged({"perplexity": [10.8, -0.04], "MAUVE": [no_worse(0.4)]}, "")
    assert str(found) == "**holds partly** (perplexity: +10.8, +0.0; MAUVE: kept)"


def test_a_growth_is_measured_by_the_one_that_is_promised() -> None:
    # Odds of 1, 3 and 9; an error of 1,024 x share x rest x e is one of e in logarithms.
    one, three, nine = (
        Measured(1024 * odds / (1 + odds), 1024 * odds / (1 + odds) ** 2 * 0.1)
        for odds in (1, 3, 9)
    )
    assert short_of((one, three), (three, nine)) == pytest.approx(0)
    assert short_of((one, three), (one, nine)) == pytest.approx(math.log(3) / 0.2)
    assert short_of((one, nine), (one, three)) == pytest.approx(-math.log(3) / 0.2)


def test_the_most_valid_ones_that_leave_novel_ones() -> None:
    rows = [{"valid": v, "novel": n} for v, n in ((990.0, 200.0), (950.5, 260.0), (900.0, 310.0))]
    assert most_valid(rows) == "950.5 valid with 260 novel or 900 valid with 310 novel"
    assert most_valid(rows[:2]) == "950.5 valid with 260 novel; none leaves 300 novel ones"
    assert most_valid(rows[:1]) == "none leaves 250 novel ones"


def test_a_goal_is_reached_in_both_numbers_or_missed() -> None:
    row = {"valid": 990.0, "novel": 309.0, "samples": 1024}
    assert not reached(row)
    assert beside_goal(row).startswith("misses the goal, +10 ± 5.7 valid and -1 ± ")
    assert reached(row | {"novel": 310.0})


def test_few_points_of_a_curve_have_both_ends() -> None:
    assert picked(17) == [0, 1, 2, 4, 8, 16]
    assert picked(16) == [0, 1, 2, 4, 8, 15]
    assert picked(2) == [0, 1]


def test_a_table_is_shown_once_half_of_it_is_done() -> None:
    columns, done, blank = (Column("a"), Column("b")), Value(1.0), Value(None)

    def half(*values: Value, data: Value = blank) -> bool:
        rows = (Row(("data",), (data, data)), Row(("x",), values[:2]), Row(("y",), values[2:]))
        return _half(Table("title", ("row",), columns, rows))

    assert half(done, done, blank, blank)
    assert not half(done, blank, blank, blank)
    assert not half(done, blank, blank, blank, data=done)  # which has no training


def test_a_bar_costs_those_that_it_leaves_out() -> None:
    setting = {"temperature": 1, "solver": "euler", "steps": 64, "mend": 0}
    kept = {"share": 0.5, "least": 0.1, "valid": 990.0, "novel": 300.0}
    row = {"model": "m", "setting": setting, "evaluations": 60.0, "valid": 980.0, "novel": 400.0}
    made = barred_table({"rows": [row | {"accepting": [kept]}]}).splitlines()
    assert [line.split("|")[-3:-1] for line in made[2:]] == [
        [" 60.0 ", " 980 / 400 "],  # 970 at least
        [" 60.0 ", " 980 / 400 "],
        [" 120.0 ", " 990 / 300 "],
    ]


def test_solvers_that_are_even_lead_nowhere() -> None:
    row = {"valid": {"mean": 500.0}, "novel": {"mean": 300.0}, "folds": 4}
    solvers = ("euler", "neighbor", "entropy")
    keys = [(source, s, k) for source in ("uniform", "mask") for s in solvers for k in (64, 128)]
    told = _leads(dict.fromkeys(keys, row), [64, 128])
    assert told.count("at no number of steps") == 6
    assert told.endswith(f"Means scatter by about {COUNT_ERROR / 2:.0f}.")


def test_blank_columns_are_told_and_not_shown() -> None:
    a, b, c = columns = tuple(Column(name) for name in "abc")
    one, two, none = Value(1.0), Value(2.0), Value(None)
    rows = (Row(("x",), (one, none, two), (two, one)), Row(("y",), (none, none, one)))
    found = filled(Table("title", ("row",), columns, rows, paper=(a, b)))
    assert found.columns == (a, c)
    assert found.paper == (a,)
    assert [(row.ours, row.paper) for row in found.rows] == [
        ((one, two), (two,)),
        ((none, one), ()),
    ]
    assert found.notes == ("Not done yet: b.",)
    assert filled(found) is found
