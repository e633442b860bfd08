"""MAUVE (Pillutla et al. 2021): the similarity of two text distributions.

The `mauve-text` package computes the score: k-means quantizes the features of both sets jointly,
and MAUVE is the area under the divergence curve of the two histograms. The score depends on the
numbers of samples and buckets, which are recorded with it. Compare only scores of equally large
sets.
"""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, check_integer, describe, load_extra
from cwdfm.metrics.folds import spread
from cwdfm.metrics.text_model import load_text_model, token_budget

# The package's default of samples / 10 buckets needs 20 samples for two buckets. Its authors
# recommend several thousand samples.
MIN_SAMPLES, RECOMMENDED_SAMPLES = 20, 1000
SCALING = 5.0  # the paper's constant c
SEED = 25  # of the clustering and of the resampling; the default of the package


class Embedder:
    """A sentence-embedding model, such as MiniLM.

    An embedding is the mean of the last hidden states over the tokens of a text, normalized to
    length 1. Texts are truncated to `max_seq_length` in sentence_bert_config.json, and to the
    number of positions of the model.
    """

    def __init__(self, model: str, *, device: str = "auto") -> None:
        self.loaded = load_text_model("AutoModel", model, dtype="float32", device=device)
        path = Path(model).expanduser() / "sentence_bert_config.json"
        configured = json.loads(path.read_text()).get("max_seq_length") if path.is_file() else None
        limits = [n for n in (configured, self.loaded.max_positions) if n]
        self.max_tokens: int = min(limits, default=512)

    def conventions(self) -> dict[str, Any]:
        """The settings to report with a result."""
        features = "mean of the last hidden states, normalized to length 1"
        return self.loaded.conventions() | {"features": features, "max_tokens": self.max_tokens}

    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings [B, D]."""
        truncation = {"truncation": True, "max_length": self.max_tokens}
        encoded = self.loaded.tokenizer(list(texts), **truncation, verbose=False)["input_ids"]
        # Estimates the activations of a layer generously as 64 hidden vectors per token.
        width = self.loaded.model.config.hidden_size * self.loaded.model.dtype.itemsize
        return self.loaded.features(encoded, token_budget(self.loaded.device, 64 * width), _mean)


def _mean(hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    mask_BT1 = mask_BT[..., None]
    return F.normalize((hidden_BTD.float() * mask_BT1).sum(1) / mask_BT1.sum(1))


@dataclass(frozen=True)
class Mauve:
    """MAUVE in [0, 1] (higher is closer), with its values on bootstrap resamples.

    Bootstrap resampling adds noise that lowers MAUVE, so only the spread of the resampled values is
    meaningful, not their mean.
    """

    mauve: float
    mauve_star: float  # with smoothed histograms (Pillutla et al. 2023)
    resamples: tuple[float, ...]
    samples: int
    reference: int
    buckets: int
    scaling: float
    seed: int
    features: dict[str, Any] = field(default_factory=dict)  # conventions of the feature model

    @property
    def std(self) -> float | None:
        """The standard deviation over bootstrap resamples."""
        return spread(self.resamples)

    def conventions(self) -> dict[str, Any]:
        """The settings to report with a result."""
        sizes = {"reference": self.reference, "buckets": self.buckets, "scaling": self.scaling}
        return sizes | self.features

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"resamples": list(self.resamples), "std": self.std}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Mauve":
        fields = {name: value for name, value in data.items() if name != "std"}
        return cls(**fields | {"resamples": tuple(data["resamples"])})


def mauve_score(
    samples: NDArray[Any],
    reference: NDArray[Any],
    *,
    buckets: int | None = None,
    resamples: int = 5,
) -> Mauve:
    """Compute MAUVE between samples and reference, both as features [B, D] of the same model.

    The model is a `LoadedEvaluatorLM` or an `Embedder`. `buckets` defaults to a tenth of the size
    of the smaller set.
    """
    check_integer("resamples", resamples, 0)
    _check_features("samples", samples)
    _check_features("reference", reference)
    if samples.shape[1] != reference.shape[1]:
        raise InputError(
            f"samples have {samples.shape[1]} features, but reference has {reference.shape[1]}; "
            f"use the same feature model for both"
        )
    size = min(len(samples), len(reference))
    buckets = max(2, round(size / 10)) if buckets is None else buckets
    check_integer("buckets", buckets, 2)
    if buckets > size:
        raise InputError(
            f"buckets must not exceed the number of samples, got {buckets} for {size}; "
            f"a tenth of the number of samples is a common choice"
        )
    compute = load_extra("mauve", "text").compute_mauve
    if size < RECOMMENDED_SAMPLES:
        warnings.warn(
            f"MAUVE of {size} samples is unreliable: compare it only with scores of equally many "
            f"samples, and use at least {RECOMMENDED_SAMPLES:,} for published results",
            stacklevel=2,
        )
    options = {"num_buckets": buckets, "mauve_scaling_factor": SCALING, "seed": SEED}
    rng = np.random.default_rng(SEED)
    values = []
    with _silence_stderr():
        result = compute(p_features=reference, q_features=samples, **options)
        for _ in range(resamples):
            p, q = (x[rng.integers(len(x), size=len(x))] for x in (reference, samples))
            values.append(float(compute(p_features=p, q_features=q, **options).mauve))
    return Mauve(
        mauve=float(result.mauve),
        mauve_star=float(result.mauve_star),
        resamples=tuple(values),
        samples=len(samples),
        reference=len(reference),
        buckets=buckets,
        scaling=SCALING,
        seed=SEED,
    )


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard the stderr output of native code.

    faiss warns below 39 samples per cluster; the default number of buckets gives 20.
    """
    saved, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(devnull)


def _check_features(name: str, features_BD: NDArray[Any]) -> None:
    valid = isinstance(features_BD, np.ndarray) and features_BD.dtype.kind == "f"
    if not valid or features_BD.ndim != 2 or not np.isfinite(features_BD).all():
        raise InputError(
            f"{name} must be finite floating-point features [samples, width], such as "
            f"EvaluatorLM().load().features(texts), got {describe(features_BD)}"
        )
    if len(features_BD) < MIN_SAMPLES:
        raise InputError(
            f"MAUVE compares histograms and needs at least {MIN_SAMPLES} samples per set, but "
            f"{name} has {len(features_BD)}; at least {RECOMMENDED_SAMPLES:,} are recommended"
        )
