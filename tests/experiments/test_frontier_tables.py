"""Who is ahead: standard errors, novelty that must not fall, and the tables of both."""

import math
from typing import Any

import pytest

from experiments.studies import frontier_tables as made


def row(family: str, unique: float, novel: float, budget: int = 8) -> dict[str, Any]:
    scores = {"valid": [unique] * 2, "unique": [unique] * 2, "novel": [novel] * 2}
    place = {"task": "QM9, mask", "budget": budget, "family": family}
    return place | {"samples": 128, "evaluations": 7.5, "scores": scores}


RECORD = {
    "rows": [
        row("Euler", 512, 300),
        row("ancestral", 700, 290),
        row("eager", 1000, 50),
        row("recommended", 600, 280),
    ]
}


def test_counts_have_binomial_errors() -> None:
    found = made.value(RECORD["rows"][0], "unique")
    assert found.value == 512
    assert found.spread == pytest.approx(1024 * math.sqrt(0.25 / 256))
    assert made.value(row("all", 1024, 0), "unique").spread == pytest.approx(1024 / 256)


def test_total_variations_have_the_error_of_their_mean() -> None:
    exact = {"scores": {"total variation": [0.1, 0.3]}}
    found = made.value(exact, "total variation")
    assert found.value == pytest.approx(0.2)
    assert found.spread == pytest.approx(0.1)
    assert made.quality(exact).value == pytest.approx(-0.2)


def test_the_leader_is_as_novel_as_the_recommendation() -> None:
    rows = made.at(RECORD, "QM9, mask", 8)
    assert set(made.admitted(rows)) == {"Euler", "ancestral", "recommended"}
    best = made.leader(rows)
    assert best is not None
    assert best["family"] == "ancestral"
    error = [1024 * math.sqrt(p * (1 - p) / 256) for p in (700 / 1024, 600 / 1024)]
    ahead = made.front(RECORD, "QM9, mask").rows[0].ours[-1].value
    assert ahead == pytest.approx(100 / math.hypot(*error))


def test_tables_and_figures_hold_every_score() -> None:
    found = made.tables(RECORD)
    assert [table.title for table in found] == [
        "QM9, mask: the best sampler",
        *(f"QM9, mask: {name} of 1,024" for name in made.COUNTS),
    ]
    (figure,) = made.figures(RECORD)
    assert figure.lines["best sampler"][0][1][1].value == 700
    assert figure.lines["recommended"][0][0] == 8
