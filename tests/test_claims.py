"""The arithmetic behind verdicts on claims, against closed forms and simulation."""

import math

import numpy as np
import pytest

from benchmarks.claims import main_table, tuned
from benchmarks.claims.judging import KEPT, Measured, by_folds, pooled
from benchmarks.claims.on_molecules import COUNTED, counting
from cwdfm.repro.table import Value


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
