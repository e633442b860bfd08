"""Statistical verdicts with a stated false-alarm rate.

Every test of a law rejects a right implementation with probability FALSE_ALARM over the choice of
its seed; the seeds are fixed, so a test that passes once passes always on the same arithmetic.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

FALSE_ALARM = 1e-6


def p_value(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Chi-square goodness of fit; cells expecting fewer than 5 are pooled."""
    counts, probabilities = np.asarray(counts), np.asarray(probabilities, dtype=np.float64)
    assert counts.shape == probabilities.shape
    assert abs(probabilities.sum() - 1) < 1e-9
    if counts[probabilities <= 0].sum() > 0:
        return 0.0  # something impossible was drawn
    expected = probabilities * counts.sum()
    small = expected < 5
    observed = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    keep = expected > 0
    if keep.sum() == 1:
        return 1.0
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    return float(stats.chi2.sf(statistic, keep.sum() - 1))


def assert_follows(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
    p = p_value(counts, probabilities)
    assert p > FALSE_ALARM, f"law rejected at p = {p:.3g}: {counts} against {probabilities}"


def assert_differs(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
    """A control: the test must distinguish the law from this one."""
    p = p_value(counts, probabilities)
    assert p < FALSE_ALARM, f"no power: p = {p:.3g} for a law that is known to be wrong"


def assert_same_law(a: NDArray[np.int64], b: NDArray[np.int64]) -> None:
    """Two-sample chi-square of two histograms."""
    table = np.stack([a, b])[:, (a + b) > 0]
    p = stats.chi2_contingency(table, correction=False).pvalue
    assert p > FALSE_ALARM, f"two laws differ at p = {p:.3g}: {a} against {b}"


def histogram(x_BN: Tensor, base: int) -> NDArray[np.int64]:
    """How often each of the base^N sequences occurs, in row-major order of their tokens."""
    digits = x_BN.cpu().numpy()
    code = np.zeros(len(digits), dtype=np.int64)
    for column in digits.T:
        code = code * base + column
    return np.bincount(code, minlength=base ** digits.shape[1])


def binomial(n: int, p: float) -> NDArray[np.float64]:
    law: NDArray[np.float64] = stats.binom.pmf(np.arange(n + 1), n, p)
    return np.asarray(law / law.sum())
