"""The MOSES metrics: how close the distribution of sampled molecules is to the data.

Except `valid` and `novelty`, all metrics use the valid samples, including duplicates:

- `unique@k`: the fraction of distinct molecules among the first k;
- `FCD`: the Frechet ChemNet distance;
- `SNN`: the mean similarity to the nearest molecule in the data (Tanimoto, Morgan fingerprints);
- `Frag`, `Scaf`: the cosine similarity of the counts of BRICS fragments and Murcko scaffolds;
- `IntDiv`, `IntDiv2`: one minus the mean similarity of two samples; `IntDiv2` uses the root mean
  square over the other samples instead of the mean;
- `filters`: the fraction that passes the filters;
- `logP`, `SA`, `QED`, `weight`: the Wasserstein distance between the distributions of the property;
- `novelty`: the fraction of distinct molecules that are not in the training set.

Definitions follow Polykovskiy et al. (2020). Metrics that compare with data have its
name as a suffix, as in `FCD/Test`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.readers import Progress
from cwdfm.errors import check_strings, load_extra
from cwdfm.metrics.chemnet import Moments, activations
from cwdfm.metrics.descriptors import Bags, Descriptors
from cwdfm.metrics.reference_statistics import ReferenceStatistics
from cwdfm.metrics.tanimoto import similarities

UNIQUE = {"unique@1k": 1000, "unique@10k": 10_000}
REPLICATES = 20
_COMPARED = 1000  # molecules compared between two progress reports

Estimate = tuple[float, float | None]  # a value and its standard deviation


@dataclass(frozen=True, eq=False)
class DistributionScores:
    """The metrics that could be computed, and the properties of the valid molecules."""

    scores: dict[str, Estimate]
    properties: dict[str, NDArray[np.float64]]  # [n] each

    def to_json(self) -> dict[str, Any]:
        scores = {name: {"value": value, "std": std} for name, (value, std) in self.scores.items()}
        filled = ((name, x) for name, x in self.properties.items() if len(x))
        means = {name: {"mean": x.mean(), "std": x.std()} for name, x in filled}
        return {"scores": scores, "properties": means}


def distribution_scores(
    samples: Sequence[str],
    references: Mapping[str, ReferenceStatistics],
    training: Set[str] | None = None,
    *,
    workers: int = 1,
    progress: Progress = lambda *_: None,
) -> DistributionScores:
    """Compare the distribution of samples with the distributions of `references`.

    Standard deviations are over bootstrap replicates of the samples. Those of `valid` and `novelty`
    are binomial, and `unique@k` has none.

    references: statistics by name; see `reference_statistics`.
    training: canonical SMILES, for `novelty`.
    workers: number of processes and threads. With more than one, a script needs an
        `if __name__ == "__main__":` guard.
    progress: called with the current stage, the number of molecules done, and their total.
    """
    check_strings("samples", samples, "SMILES strings")
    described = Descriptors.of(
        samples,
        workers=workers,
        progress=lambda done: progress("describing the samples", done, len(samples)),
    )
    n, distinct = len(described), set(described.smiles)
    scores = {"valid": _share(n, len(samples))}
    for name, k in UNIQUE.items():
        if n >= k:  # no standard deviation, because resampling would add duplicates
            scores[name] = len(set(described.smiles[:k])) / k, None
    if not n:
        return DistributionScores(scores, described.properties)
    weights = _bootstrap(n)
    compare = partial(_similarities, described.fingerprints, workers=workers, progress=progress)
    if n > 1:
        x_ND = activations(described.smiles, lambda done: progress("ChemNet", done, n))
        moments = [Moments.of(x_ND, weights_N) for weights_N in weights]
        for name, reference in references.items():
            scores[f"FCD/{name}"] = _estimate(reference.moments.distance, moments)
    for name, reference in references.items():
        nearest_N, _, _ = compare(reference.fingerprints, name)
        scores[f"SNN/{name}"] = _mean(nearest_N, weights)
        for metric, ours, theirs in (
            ("Frag", described.fragments, reference.fragments),
            ("Scaf", described.scaffolds, reference.scaffolds),
        ):
            if ours.names and theirs:
                scores[f"{metric}/{name}"] = _estimate(_cosine(ours, theirs), weights)
    _, mean_N, square_N = compare(described.fingerprints, "each other")
    for name, values_N in (("IntDiv", mean_N), ("IntDiv2", square_N)):
        similarity, error = _mean(values_N, weights)
        # Each molecule is on both sides of the pairs, which doubles its influence.
        scores[name] = 1 - similarity, error and 2 * error
    scores["filters"] = _mean(described.passes, weights)
    for name, reference in references.items():
        for key, values_N in described.properties.items():
            distance = _wasserstein(values_N, reference.properties[key])
            scores[f"{key}/{name}"] = _estimate(distance, weights)
    if training is not None:
        scores["novelty"] = _share(len(distinct - training), len(distinct))
    return DistributionScores(scores, described.properties)


def _bootstrap(n: int) -> NDArray[np.int64]:
    """Weights [1 + REPLICATES, n]: ones, then how often each replicate draws each molecule."""
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), REPLICATES)
    return np.concatenate([np.ones((1, n), drawn.dtype), drawn])


def _estimate(statistic: Callable[[Any], float], replicates: Iterable[Any]) -> Estimate:
    """The value for the first replicate, and the standard deviation over the others."""
    value, *others = map(statistic, replicates)
    return value, float(np.std(others, ddof=1))


def _mean(values_N: NDArray[Any], weights: NDArray[np.int64]) -> Estimate:
    """Estimate the mean of one value per molecule."""
    return _estimate(lambda weights_N: float(np.average(values_N, weights=weights_N)), weights)


def _similarities(
    ours: NDArray[np.uint64],
    theirs: NDArray[np.uint64],
    name: str,
    *,
    workers: int,
    progress: Progress,
) -> list[NDArray[np.float64]]:
    """The largest, mean and root mean square similarity [n] of `ours` to all of `theirs`."""
    parts = []
    for start in range(0, len(ours), _COMPARED):
        rows = ours[start : start + _COMPARED]
        parts.append(similarities(rows, theirs, workers))
        progress(f"comparing with {name}", start + len(rows), len(ours))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _share(count: int, total: int) -> Estimate:
    share = count / total
    return share, math.sqrt(share * (1 - share) / total)


def _cosine(ours: Bags, theirs: Mapping[str, int]) -> Callable[[NDArray[Any]], float]:
    """The cosine similarity of the counts of names, as a function of the weights."""
    counts_M = np.array([theirs.get(name, 0) for name in ours.names], float)
    norm = math.sqrt(sum(count**2 for count in theirs.values()))

    def cosine(weights_N: NDArray[Any]) -> float:
        counts = ours.counts(weights_N)
        length = float(np.linalg.norm(counts)) * norm
        return float(counts @ counts_M) / length if length else 0.0

    return cosine


def _wasserstein(
    ours: NDArray[np.float64], theirs: NDArray[np.float64]
) -> Callable[[NDArray[Any]], float]:
    distance = load_extra("scipy.stats", "molecules").wasserstein_distance
    return lambda weights_N: float(distance(ours, theirs, weights_N))
