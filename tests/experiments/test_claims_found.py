"""Verdicts on claims follow from results: made-up tables that must and must not hold."""

import math
from pathlib import Path

import pytest

from experiments.catalog import EXPERIMENTS
from experiments.catalog.controls import few_data_cells
from experiments.catalog.solvers import TUNED, corrector_steps
from experiments.catalog.tuned import LOSS, PATH
from experiments.cell import Cell
from experiments.claims import (
    ablations,
    claims_page,
    differ,
    exact,
    judging,
    main_table,
    molecule_solvers,
    molecule_trainings,
    on_molecules,
    on_text,
    settings,
    text_solvers,
    training,
    tuned,
    variety,
)
from experiments.claims.beyond import beside_goal, most_valid, reached
from experiments.claims.exact import trend
from experiments.claims.judging import Measured, Missing
from experiments.claims.on_molecules import COUNT_ERROR, Runs
from experiments.job import Job, Result, Store
from experiments.scale import size
from experiments.table import Value


@pytest.mark.parametrize(("kind", "falls"), [("neighbors", True), ("distance", False)])
def test_what_context_does_can_be_refuted(kind: str, falls: bool) -> None:
    rising = [1.0, 5.0, 5.5, 5.8, 6.0]
    values = rising[::-1] if falls else rising
    errors = [0.1] * 5
    curve = {"bins": [1, 2, 4, 8, 16], "entropy_error": errors, "nll_error": errors}
    none, wrong = [3.0] * 5, "does not hold here"

    def word(seen: dict[str, list[float]]) -> str:
        return judging.met(*trend(curve | seen, kind).conditions, effect="").word

    for shown, verdict in ((values, "holds"), (values[::-1], wrong), (none, wrong)):
        assert word({"entropy": shown, "nll": shown}) == verdict
    late = [1.0, 2.0, 3.0, 4.0, 6.0]  # it grows, but not early
    late = late[::-1] if falls else late
    for seen in ({"entropy": values, "nll": late}, {"entropy": late, "nll": values}):
        assert word(seen) == ("holds" if falls else "holds partly")


def test_what_context_does_must_show_in_both_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [claim.verdict.word for claim in exact.locality()][1:]
    assert words == ["holds", "holds partly"]  # the longer run's rise with distance is not early
    own = judging.STORE.result

    def other(job: Job) -> Result | None:
        found = own(job)
        if found is None or job.kind != "context":
            return found
        turned = {k: found["result"][k] for k in ("neighbors", "distance")}
        curves = {k: curve | {"entropy": curve["entropy"][::-1]} for k, curve in turned.items()}
        return found | {"result": curves}

    monkeypatch.setattr(judging.STORE, "result", other)
    assert [claim.verdict.word for claim in exact.locality()][1:] == ["holds partly"] * 2


def test_a_page_without_results_of_experiments_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (judging, exact, on_text, ablations):
        monkeypatch.setattr(module, "STORE", Store(tmp_path))
    made = claims_page()
    for name in ("headline", "revealed", "sweep-molecules-mask"):
        assert f"`python -m experiments run {name} --scale small` is not done yet." in made
    assert "**not tested yet**" in made


def test_a_remark_alone_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runs, "mean", lambda *_: _raise())
    assert training.by_one_solver() == []


def _raise() -> Measured:
    raise Missing


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_tuned_settings_are_the_best_of_the_sweep_on_record(source: str) -> None:
    table = EXPERIMENTS[f"sweep-text-{source}"].plan("small").tables(judging.STORE)[-1]
    assert tuple(value.value for value in table.rows[0].ours) == TUNED[source]


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_tuned_trainings_are_the_best_of_the_searches_on_record(source: str) -> None:
    swept, radii = judging.rows_of(f"sweep-training-{source}"), judging.rows_of("radius")
    for name, settings_of in (("SCE", LOSS), ("SCE, context path", PATH)):
        r, s = settings_of["molecules", source]
        valid = {labels: row[0].value or 0 for labels, row in swept.items() if labels[0] == name}
        assert len(valid) == 9
        assert max(valid, key=valid.__getitem__) == (name, f"r = {r}, s = {s:g}")
    perplexities = {labels[0]: row[1].value or 0 for labels, row in radii.items()}
    del perplexities["data"]
    assert min(perplexities, key=perplexities.__getitem__) == str(LOSS["text", "uniform"][0])
    assert size("text", "small").recipe.loss_scale == LOSS["text", "uniform"][1]


def test_settings_of_a_search_decide_as_soon_as_all_runs_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing: list[str] = ["mask"]

    def by_seed(cell: Cell, what: int) -> list[float | None]:
        fields = cell.fields
        scale = PATH["molecules", "mask"][1]
        searched = fields.get("path_scale") == scale and cell.choice.solver != "euler"
        if searched and fields["source"] in missing:
            return [620.0, None, 640.0]
        return [880.0, 900.0, 920.0] if searched else [610.0, 630.0, 650.0]

    for module in (on_molecules, molecule_trainings):
        monkeypatch.setattr(module, "by_seed", by_seed)
    monkeypatch.setattr(training, "by_one_solver", list)
    first, *_ = training.paths()
    assert first.verdict.word == "not tested yet"
    missing.clear()
    then, *_ = training.paths()
    error = math.hypot(20, 20) / math.sqrt(3)  # runs scatter by 20
    assert then.verdict.gains["valid"] == pytest.approx([270 / error] * 2)
    assert "630 to 900 (uniform), 630 to 900 (mask) valid" in then.found
    assert then.experiments == ("paths", "tuned-losses-molecules")


def test_three_seeds_of_text_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"ce": 1.0, 3: 2.0, 1: 0.5}
    values: dict[str, list[float | None]] = {
        "uniform": [90.0, 100.0, None],
        "mask": [45.0, 50.0, 55.0],
    }

    def by_seed(cell: Cell, what: int) -> list[float | None]:
        fields = cell.fields
        share = shares[fields.get("loss_radius", "ce")]
        return [x and x * share for x in values[fields["source"]]]

    monkeypatch.setattr(on_text, "by_seed", by_seed)
    claim, *_ = main_table.main_table()
    assert claim.verdict.word == "not tested yet"
    with monkeypatch.context() as patched:  # what lacks is named, not what is there
        patched.setattr(judging, "_complete", lambda name: name == "baselines")
        claim, *_ = main_table.main_table()
        assert "`python -m experiments run tuned-losses-text --scale small` is ready" in claim.found
    values["uniform"][2] = 1000 / 9
    plain, scaled, best = on_text.over_seeds("uniform", on_text.PERPLEXITY).values()
    scatter = math.log(100 / 90)
    assert (plain.value, scaled.value, best.value) == pytest.approx((100, 200, 50))
    assert plain.error == pytest.approx(100 * scatter / math.sqrt(3))
    claim, *_ = main_table.main_table()
    error = scatter * math.sqrt(2 / 3)
    assert claim.verdict.gains["perplexity"] == pytest.approx([math.log(2) / error])  # by r = 1
    assert f"r = 3, s = 0.5: perplexity 200 ({-math.log(2) / error:+.1f} errors)" in claim.found
    assert "r = 1, s = 0.5: perplexity 50" in claim.found
    mauve, *_ = on_text.over_seeds("mask", on_text.MAUVE).values()
    assert (mauve.value, len(on_text.seeds_of("mask"))) == (50, 2)  # nothing was searched
    shares[3] = 1.0  # of which the scatter is 5
    mauve, *_ = on_text.over_seeds("mask", on_text.MAUVE).values()
    assert mauve.error == pytest.approx(5 / math.sqrt(3))
    assert claim.experiments == ("baselines", "tuned-losses-text")


@pytest.mark.parametrize(("source", "word"), [("uniform", "does not hold here"), ("mask", "holds")])
def test_what_is_gained_nowhere_is_nothing(
    monkeypatch: pytest.MonkeyPatch, source: str, word: str
) -> None:
    """Of two sources one gains much at one number of steps, and the other loses."""

    def by_seed(cell: Cell, what: int) -> list[float | None]:
        weighted = cell.choice.solver == "neighbor" and cell.steps == on_molecules.STEPS[0]
        return [{"uniform": 600.0, "mask": 400.0}[cell.fields["source"]] if weighted else 500.0] * 3

    monkeypatch.setattr(on_molecules, "by_seed", by_seed)
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
    cells = few_data_cells("small")
    better: list[tuple[str, str]] = []

    def by_seed(cell: Cell, what: int) -> list[float | None]:
        count = 900.0 if any(cells[labels] == cell for labels in better) else 600.0
        return [count - 15, count + 15, None]  # one run is to come

    monkeypatch.setattr(on_molecules, "by_seed", by_seed)
    names = ("CE, Neighbor", "SCE, context path, own weights")
    assert few_words() == ["undecided here"] * 2
    better += [("all", name) for name in names]  # of which the claim is not
    assert few_words() == ["undecided here"] * 2
    for name, words in zip(names, (["holds", "undecided here"], ["holds", "holds"]), strict=True):
        better += [(part, name) for part in ("1,000", "10,000")]
        assert few_words() == words
    solvers, paths = molecule_solvers.few_data()
    error = math.hypot(15, 15) / math.sqrt(2)  # of counting, of two runs
    assert solvers.verdict.gains["valid"] == pytest.approx([300 / error] * 2)
    scatter = math.hypot(15, 15)  # of two runs, 30 apart
    assert paths.verdict.gains["novel"] == pytest.approx([300 / scatter] * 2)
    assert "2 runs each" in paths.found


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
    rows["uniform", "Euler"] = (Value(1.0), Value(90.0), Value(1.0))
    (told,) = training.by_other_weights("path-solvers-text", on_text.PERPLEXITY)
    assert "perplexity: 90 to 100 (uniform), least by Euler" in told
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


def test_weights_stand_beside_a_temperature_of_the_same_entropy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = Value(0.5, 0.1), Value(100.0, 5.0), Value(7.0, 0.1)
    rows = dict.fromkeys(alike("variety"), measured)
    counts = dict.fromkeys(alike("variety-molecules"), (Value(640.0), Value(630.0), Value(200.0)))
    for t, bits, perplexity in ((1.0, 7.4, 400.0), (0.95, 7.2, 100.0), (0.9, 6.8, 90.0)):
        rows["uniform", "Euler", f"{t:g}"] = Value(0.5), Value(perplexity, 5.0), Value(bits)
    rows["uniform", "Neighbor", "1"] = Value(0.5), Value(150.0, 5.0), Value(7.3)
    rows["uniform", "Entropy", "1"] = Value(0.5), Value(80.0, 5.0), Value(6.5)
    counts["mask", "Euler", "1"] = Value(500.0), Value(500.0), Value(300.0)
    counts["mask", "Euler", "0.9"] = Value(720.0), Value(700.0), Value(250.0)
    counts["mask", "Neighbor", "1"] = Value(650.0), Value(640.0), Value(275.0)
    counts["mask", "Euler", "0.6"] = counts["mask", "Euler", "0.5"] = (Value(None),) * 3  # to come
    for t, valid, novel in ((1.0, 500.0, 300.0), (0.9, 600.0, 320.0), (0.8, 900.0, 310.0)):
        counts["uniform", "Euler", f"{t:g}"] = Value(valid), Value(valid), Value(novel)
    counts["uniform", "Neighbor", "1"] = Value(650.0), Value(640.0), Value(310.0)
    tables = {"variety": rows, "variety-molecules": counts}
    monkeypatch.setattr(variety, "rows_of", tables.__getitem__)
    told = variety.variety()
    assert "Neighbor 650 at 275 novel, Euler 600;" in told  # the root of 500 x 720
    assert "Neighbor 650 at 310 novel, Euler 548;" in told  # the root of 500 x 600, not of the last
    assert "Neighbor 150 at 7.30 bits, Euler 200;" in told  # the middle of 100 and 400
    assert "Entropy 80 at 6.50 bits, Euler 90 at 6.80 bits, the nearest;" in told
