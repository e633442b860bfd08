"""Search for samplers: rejection counted afterwards, settings by name."""

import argparse

import pytest

from cwdfm.metrics.molecule import canonical_set
from experiments.studies.qm9_search import KEPT, Setting, accepting, parse_setting, settings_of


def test_least_plausible_samples_are_rejected() -> None:
    known = canonical_set(["C"])
    texts = ["C", "C("] * 10  # every other one is invalid and implausible
    plausible = [0.9 - i / 100 if i % 2 == 0 else 0.3 - i / 1000 for i in range(20)]
    found = {row["share"]: row for row in accepting(texts, plausible, known)}
    assert tuple(found) == KEPT
    assert found[0.5]["valid"] == 1024
    assert found[0.5]["least"] == pytest.approx(0.72)
    assert found[0.8]["valid"] == pytest.approx(1024 * 10 / 16)
    assert found[0.8]["least"] == pytest.approx(0.289)


def test_remaining_samples_form_equal_folds() -> None:
    kinds = ["C" * (i % 30) + "N" + "O" * (i // 30) for i in range(900)]
    texts = [kinds[i % 900] for i in range(2000)]
    found = {row["share"]: row for row in accepting(texts, [1.0] * 2000, canonical_set(["F"]))}
    for share, fold in ((0.8, 800), (0.5, 1000)):  # two folds, and one with repeated molecules
        assert found[share]["valid"] == 1024
        assert found[share]["unique"] == pytest.approx(min(fold, 900) * 1024 / fold)


def test_settings_are_parsed() -> None:
    found = parse_setting("solver=euler,steps=64,temperature=1.3,glance=null")
    assert found == Setting(solver="euler", steps=64, temperature=1.3)
    with pytest.raises(argparse.ArgumentTypeError, match="rounding"):
        parse_setting("rounding=3")


@pytest.mark.parametrize("name", ["qm9_search", "qm9_refine", "qm9_mend", "qm9_spelled24"])
def test_recorded_searches_can_be_repeated(name: str) -> None:
    assert len(settings_of(name)) > 5
