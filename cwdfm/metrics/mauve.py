"""MAUVE (Pillutla et al. 2021): how close the samples' distribution is to the data's.

The `mauve-text` package does the work: features of both sides are quantised together by k-means,
and the score is the area under the curve of the histograms' divergences to their mixtures. It
depends on the number of samples and buckets, so both are recorded, and scores compare only between
sets of one size.
"""

import os
import statistics
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cwdfm.errors import InputError, check_integer, check_positive, describe, load_extra
from cwdfm.metrics.perplexity import check_strings

# Two buckets of ten a side are the least that the package's rule (samples / 10) can make; its
# authors advise some thousands of samples.
LEAST, ADVISED = 20, 1000


class FeatureModel(Protocol):
    """What turns texts into features: a loaded `EvaluatorLM` or a loaded `Embedder`."""

    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row a text."""

    def conventions(self) -> dict[str, Any]:
        """What a result must say about them."""


@dataclass(frozen=True)
class Mauve:
    """MAUVE in [0, 1], higher is closer, with its values on bootstrap resamples.

    A resample draws samples and reference anew with replacement, which adds noise of its own: its
    values lie below `mauve` on average, and only their spread is of use.
    """

    mauve: float
    mauve_star: float  # with smoothed histograms (Pillutla et al. 2023)
    resamples: tuple[float, ...]
    samples: int
    reference: int
    buckets: int
    scaling: float
    seed: int
    features: dict[str, Any]  # the feature model; empty where features were given

    @property
    def std(self) -> float | None:
        """The standard deviation over bootstrap resamples; None for fewer than two."""
        return statistics.stdev(self.resamples) if len(self.resamples) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.3f}"
        return (
            f"MAUVE {self.mauve:.3f}{spread} ({self.samples:,} samples against "
            f"{self.reference:,}, {self.buckets} buckets)"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict: the scores and how they were made."""
        return asdict(self) | {"resamples": list(self.resamples), "std": self.std}


def mauve_score(
    samples: Sequence[str] | NDArray[Any],
    reference: Sequence[str] | NDArray[Any],
    features: FeatureModel | None = None,
    *,
    buckets: int | None = None,
    scaling: float = 5.0,
    resamples: int = 5,
    seed: int = 25,
) -> Mauve:
    """MAUVE between samples and reference: texts with a feature model, or feature arrays [B, D].

    `buckets` None is the package's rule: the smaller side's number over ten. `scaling` is the
    paper's constant c.
    """
    check_integer("resamples", resamples, 0)
    check_integer("seed", seed, 0)
    check_positive("scaling", scaling)
    few = min(_check_size("samples", samples), _check_size("reference", reference))
    buckets = _buckets(buckets, few)
    compute = load_extra("mauve", "text").compute_mauve
    q_BD, p_BD = _both(samples, reference, features)
    if few < ADVISED:
        warnings.warn(
            f"MAUVE of {few} samples is coarse: compare it only with scores of as many, and use "
            f"{ADVISED:,} or more for figures to publish",
            stacklevel=2,
        )

    def score(p: NDArray[Any], q: NDArray[Any]) -> Any:
        with _quiet():
            return compute(
                p_features=p,
                q_features=q,
                num_buckets=buckets,
                mauve_scaling_factor=scaling,
                seed=seed,
            )

    whole = score(p_BD, q_BD)
    random = np.random.default_rng(seed)
    spread = []
    for _ in range(resamples):
        p, q = (x[random.integers(len(x), size=len(x))] for x in (p_BD, q_BD))
        spread.append(float(score(p, q).mauve))
    return Mauve(
        mauve=float(whole.mauve),
        mauve_star=float(whole.mauve_star),
        resamples=tuple(spread),
        samples=len(q_BD),
        reference=len(p_BD),
        buckets=buckets,
        scaling=scaling,
        seed=seed,
        features={} if features is None else features.conventions(),
    )


def _buckets(asked: int | None, few: int) -> int:
    """How many buckets there are for `few` samples; too many are refused."""
    buckets = max(2, round(few / 10)) if asked is None else asked
    check_integer("buckets", buckets, 2)
    if buckets > few:
        raise InputError(
            f"buckets must not exceed the number of samples, got {buckets} for {few}; "
            f"a tenth of them is usual"
        )
    return buckets


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what native code writes to stderr.

    faiss warns below 39 texts a cluster, and MAUVE's own rule makes clusters of 20.
    """
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _check_size(name: str, side: Sequence[str] | NDArray[Any]) -> int:
    if isinstance(side, np.ndarray):
        if side.ndim != 2 or side.dtype.kind != "f" or not np.isfinite(side).all():
            raise InputError(
                f"{name} must be finite floating features [samples, width], got an array of "
                f"{side.dtype} of shape {side.shape}"
            )
    else:
        check_strings(name, side)
    if len(side) < LEAST:
        raise InputError(
            f"MAUVE compares histograms and needs at least {LEAST} samples a side, {name} has "
            f"{len(side)}; {ADVISED:,} or more are advised"
        )
    return len(side)


def _both(
    samples: Sequence[str] | NDArray[Any],
    reference: Sequence[str] | NDArray[Any],
    features: FeatureModel | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The features of both sides, [B, D] each."""
    q_BD, p_BD = _rows("samples", samples, features), _rows("reference", reference, features)
    if q_BD.shape[1] != p_BD.shape[1]:
        raise InputError(
            f"samples have {q_BD.shape[1]} features, reference {p_BD.shape[1]}; make both with "
            f"one feature model"
        )
    return q_BD, p_BD


def _rows(
    name: str, side: Sequence[str] | NDArray[Any], features: FeatureModel | None
) -> NDArray[Any]:
    if isinstance(side, np.ndarray):
        return side
    if features is None:
        raise InputError(
            f"{name} are texts, and no feature model was given, got features={describe(None)}; "
            f"pass a loaded EvaluatorLM or Embedder, or arrays of features"
        )
    return features.features(side)
