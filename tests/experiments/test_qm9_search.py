"""What would be accepted, counted from samples that were drawn without; samplers by name."""

import argparse

import pytest

from cwdfm.metrics.molecule import canonical_set
from experiments.studies.qm9_search import KEPT, accepting, named
from experiments.studies.qm9_settings import Setting


def test_the_least_plausible_are_left_out() -> None:
    known = canonical_set(["C"])
    texts = ["C", "C("] * 10  # every other one is wrong, and implausible
    plausible = [0.9 - i / 100 if i % 2 == 0 else 0.3 - i / 1000 for i in range(20)]
    found = {row["share"]: row for row in accepting(texts, plausible, known)}
    assert tuple(found) == KEPT
    assert found[0.5]["valid"] == 1024
    assert found[0.5]["least"] == pytest.approx(0.72)
    assert found[0.8]["valid"] == pytest.approx(1024 * 10 / 16)
    assert found[0.8]["least"] == pytest.approx(0.289)


def test_what_is_left_is_counted_in_folds_of_one_size() -> None:
    kinds = ["C" * (i % 30) + "N" + "O" * (i // 30) for i in range(900)]
    texts = [kinds[i % 900] for i in range(2000)]
    found = {row["share"]: row for row in accepting(texts, [1.0] * 2000, canonical_set(["F"]))}
    for share, fold in ((0.8, 800), (0.5, 1000)):  # two folds, and one with some twice
        assert found[share]["valid"] == 1024
        assert found[share]["unique"] == pytest.approx(min(fold, 900) * 1024 / fold)


def test_a_sampler_is_named_by_what_is_unusual() -> None:
    found = named("solver=euler,steps=64,temperature=1.3,glance=null")
    assert found == Setting(solver="euler", steps=64, temperature=1.3)
    with pytest.raises(argparse.ArgumentTypeError, match="rounding"):
        named("rounding=3")
