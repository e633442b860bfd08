"""The arithmetic behind verdicts on claims, against closed forms and simulation."""

import math
from statistics import variance

import numpy as np
import pytest

from experiments.catalog.solvers import tuned_cells
from experiments.cell import Cell
from experiments.claims import (
    judging,
    main_table,
    molecule_trainings,
    on_molecules,
    on_text,
    text_samples,
    tuned,
)
from experiments.claims.judging import KEPT, Measured, Missing, by_folds, judged, no_worse, pooled
from experiments.claims.on_molecules import (
    COUNT_ERROR,
    COUNTED,
    Paired,
    Runs,
    counted_folds,
    counting,
    short_of,
)
from experiments.job import Store
from experiments.table import Value


def test_differences_are_told_in_their_standard_errors() -> None:
    assert Measured(10.0, 3.0).above(Measured(2.0, 4.0)) == pytest.approx(8 / 5)
    # Errors of 3% and 4% are errors of logarithms.
    before, after = Measured(200.0, 6.0), Measured(100.0, 4.0)
    assert before.over(after) == pytest.approx(math.log(2) / 0.05)
    assert after.over(before) == pytest.approx(-math.log(2) / 0.05)


def test_the_error_of_a_mean_of_folds_is_what_such_means_scatter_by() -> None:
    folds = np.random.default_rng(0).normal(100.0, 10.0, (20_000, 5))
    told = by_folds(Value(100.0, 10.0))
    assert told.error == pytest.approx(folds.mean(1).std(), rel=0.02)  # four standard errors


def test_the_error_of_a_count_is_what_counts_scatter_by() -> None:
    share, samples = 0.75, 5 * COUNTED
    counts = np.random.default_rng(0).binomial(samples, share, 20_000) / samples * COUNTED
    assert counting(share * COUNTED, samples) == pytest.approx(counts.std(), rel=0.02)


def test_groups_share_their_scatter_by_degrees_of_freedom() -> None:
    groups = [[1.0, 3.0], [10.0, 10.0, 16.0], [7.0]]  # squares 2 and 24, of 1 and 2 degrees
    assert pooled(groups) == pytest.approx(math.sqrt(26 / 3))
    assert pooled([[7.0]]) == 0.0


def test_a_perplexity_grows_by_more_than_is_promised_or_hardly() -> None:
    before, after = Measured(100.0, 3.0), Measured(200.0, 8.0)
    grown = main_table._grown
    assert grown(before, after) == pytest.approx(math.log(2) / 0.05)
    assert grown(before, after, by=math.log(4)) == pytest.approx(-math.log(2) / 0.05)
    # Hardly, that is by less than 5%; beyond, either way, as far as errors tell.
    assert main_table._same(Measured(100.0, 1.0), Measured(104.0, 1.0)) == KEPT
    for one, other in ((before, after), (after, before)):
        assert main_table._same(one, other) == pytest.approx(-math.log(2) / 0.05)


def test_counted_jumps_leave_more_than_half_of_a_loss_or_less() -> None:
    euler, weighted = Measured(100.0, 6.0), Measured(300.0, 8.0)  # the middle is 200 ± 5
    for value in (150.0, 200.0, 250.0):
        left = tuned._left(euler, weighted, Measured(value, 12.0))
        assert left == pytest.approx((value - 200) / 13)


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


def test_an_entropy_is_comparable_or_falls() -> None:
    def seen(bits: float) -> text_samples.Seen:
        return text_samples.Seen(Measured(1, 1), Measured(1, 1), Measured(bits, 0.01))

    (kept,) = text_samples.by_entropy([(seen(7.3), seen(7.15))])
    (fallen,) = text_samples.by_entropy([(seen(7.3), seen(6.8))])
    assert kept == judging.KEPT
    assert fallen == pytest.approx(-0.5 / (0.01 * math.sqrt(2)))


def test_a_growth_short_of_the_papers_counts_against_a_claim() -> None:
    same, far = (Measured(valid, 5.0) for valid in (500.0, 900.0))
    pairs = [("mask", same, same), ("uniform", same, far)]
    gains, told = molecule_trainings.behind(pairs, "ce", "sce")
    ((short, kept),) = gains.values()
    assert short < -2
    assert kept == judging.KEPT
    assert told.endswith(f"larger than ours by {-short:.0f} (mask) standard errors")


def test_runs_scatter_in_held_out_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_text, "loss_scatter", lambda: 0.03)
    assert on_text.run_likelihood(Value(200.0, 8.0)).error == pytest.approx(10.0)
    monkeypatch.setattr(on_text, "sample_scatter", lambda of, source: 0.03)
    folds = 0.04 * math.sqrt(5)
    assert on_text.run_entropy(Value(7.0, folds), "mask").error == pytest.approx(0.05)


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
    monkeypatch.setattr(on_text, "by_seed", lambda cell, column: [1.0, None, e])
    scatter = on_text.sample_scatter
    seeds = {"uniform": 3, "mask": 2}  # trainings with seeds: CE, SCE, and with a search's weights
    uniform = math.sqrt((0.5 + 2 + 0.5 * seeds["uniform"]) / (3 + seeds["uniform"]))
    assert scatter("perplexities", "uniform") == pytest.approx(uniform)
    squares = (1 + seeds["uniform"]) * variance([1.0, e]) + 2 * variance([1.0, e, e**2])
    assert scatter("entropies", "uniform") == pytest.approx(math.sqrt(squares / 6))  # as they are
    masked = math.sqrt((4.5 + 2 + 0.5 * seeds["mask"]) / (2 + seeds["mask"]))
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


def test_solvers_are_compared_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
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
