"""Difficulty of predicting masked tokens as a function of their context.

For x_t ~ p_t(. | x_0, x_1) and each masked coordinate i, the entropy of the prediction
H(p^i_{1|t}(. | x_t)) and the negative log-likelihood -log p^i_{1|t}(x_1^i | x_t), in nats, are
averaged by the number of revealed coordinates within a radius, and by the distance to the nearest
revealed coordinate. The paper observes that context makes tokens predictable.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import check_integer, check_mask, check_tokens
from cwdfm.loss.prediction import token_log_prob
from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating, model_device, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.precision import sum_dtype
from cwdfm.path import PathSample, path_for
from cwdfm.schedule import Schedule, stratified_times
from cwdfm.source import Source
from cwdfm.weight import Distance, Neighbor, Weight
from cwdfm.weight.entropy import prediction_entropy
from cwdfm.weight.neighbor import Boundary


@dataclass(frozen=True)
class ContextCurve:
    """Means per bin. Standard errors are over sequences, since tokens of one are not independent.

    The mean of an empty bin is None, and so is the standard error of a bin with fewer than two
    sequences.
    """

    bins: tuple[int, ...]
    tokens: tuple[int, ...]
    entropy: tuple[float | None, ...]
    entropy_error: tuple[float | None, ...]
    nll: tuple[float | None, ...]
    nll_error: tuple[float | None, ...]


@dataclass(frozen=True)
class ContextAnalysis:
    """Entropy and negative log-likelihood of masked tokens, by two measures of context.

    `neighbors` has bins 0..2 radius. `distance` has bins 1..farthest; the last bin includes larger
    distances and sequences without revealed tokens.
    """

    neighbors: ContextCurve
    distance: ContextCurve
    radius: int
    farthest: int
    boundary: Boundary
    sequences: int
    draws: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ContextAnalysis":
        """The inverse of `to_json`; ignores other keys."""
        named = {field.name: data[field.name] for field in fields(cls)}
        curves = {name: ContextCurve(**named[name]) for name in ("neighbors", "distance")}
        return cls(**{**named, **curves})


class _Sums:
    """Sums of token counts, entropy and NLL per sequence and bin: [3, B, bins], float64."""

    def __init__(self, bins: range) -> None:
        self.bins = bins
        self.parts: list[Tensor] = []

    def begin(self, batch: int) -> None:
        self.parts.append(torch.zeros(3, batch, len(self.bins), dtype=torch.float64))

    def add(self, bin_BN: Tensor, masked_BN: Tensor, values_2K: Tensor) -> None:
        """Add the entropy and NLL of the masked coordinates, in row-major order, to their bins."""
        sums = self.parts[-1]
        row_K = masked_BN.nonzero()[:, 0].cpu()
        index_K = row_K * len(self.bins) + bin_BN[masked_BN].cpu() - self.bins[0]
        values_3K = torch.cat([torch.ones(1, len(index_K), dtype=torch.float64), values_2K.cpu()])
        sums.view(3, -1).index_add_(1, index_K, values_3K)

    def curve(self) -> ContextCurve:
        n_BK, entropy_BK, nll_BK = torch.cat(self.parts, dim=1)
        entropy, nll = _ratio(entropy_BK, n_BK), _ratio(nll_BK, n_BK)
        tokens = tuple(int(n) for n in n_BK.sum(0))
        return ContextCurve(tuple(self.bins), tokens, *entropy, *nll)


def _ratio(y_BK: Tensor, n_BK: Tensor) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """The ratio sum y / sum n per bin, and its standard error over the C sequences in the bin,
    sqrt(C / (C - 1) sum_b (y_b - ratio n_b)^2) / sum n.
    """
    total_K, count_K = n_BK.sum(0), (n_BK > 0).sum(0)
    mean_K = y_BK.sum(0) / total_K
    square_K = ((y_BK - mean_K * n_BK) ** 2).sum(0)
    error_K = (square_K * count_K / (count_K - 1)).sqrt() / total_K
    means = tuple(float(m) if n else None for m, n in zip(mean_K, total_K, strict=True))
    errors = tuple(float(e) if c > 1 else None for e, c in zip(error_K, count_K, strict=True))
    return means, errors


@torch.no_grad()
def context_analysis(
    model: Model,
    source: Source,
    schedule: Schedule,
    x_1: Tensor,
    *,
    radius: int = 8,
    farthest: int = 16,
    boundary: Boundary = "circular",
    weight: Weight | None = None,
    fixed: Tensor | None = None,
    draws: int = 4,
    seed: int = 0,
    batch_size: int = 64,
) -> ContextAnalysis:
    """Average entropy and NLL of the masked tokens of x_1 [B, N] by their context.

    Each sequence is corrupted `draws` times, at stratified times in [0, 1]. A token is masked if
    the path has not revealed it, for any source. The paper uses radius 8. `weight` selects the
    context-weighted path. `fixed` [N] marks given tokens, which are context and never masked. The
    result does not depend on `batch_size`.
    """
    check_tokens("x_1", x_1, source.vocab_size)
    check_integer("draws", draws)
    check_integer("batch_size", batch_size)
    check_integer("farthest", farthest)
    neighbor = Neighbor(radius, 1.0, boundary)
    nearest = Distance(1.0, farthest, boundary)
    path = path_for(source, schedule, weight)
    x_1 = x_1.to(model_device(model) or x_1.device)
    if fixed is not None:
        check_mask("fixed", fixed, (x_1.shape[1],))
        fixed = fixed.to(x_1.device)
    by_count, by_distance = _Sums(range(2 * radius + 1)), _Sums(range(1, farthest + 1))
    with evaluating(model):
        for index_B in torch.arange(len(x_1), device=x_1.device).split(batch_size):
            by_count.begin(len(index_B))
            by_distance.begin(len(index_B))
            for d in range(draws):
                t_B = stratified_times(seed, d, index_B, len(x_1))
                given_BN = None if fixed is None else fixed.expand(len(index_B), -1)
                batch = path.sample(
                    x_1[index_B], t_B, seed=seed, step=d, index=index_B, fixed=given_BN
                )
                masked_BN = ~batch.revealed
                values_2K = _difficulty(model, batch, masked_BN)
                by_count.add(neighbor.count(batch.revealed), masked_BN, values_2K)
                by_distance.add(nearest.distance(batch.revealed), masked_BN, values_2K)
    return ContextAnalysis(
        neighbors=by_count.curve(),
        distance=by_distance.curve(),
        radius=radius,
        farthest=farthest,
        boundary=boundary,
        sequences=len(x_1),
        draws=draws,
        seed=seed,
    )


def _difficulty(model: Model, batch: PathSample, masked_BN: Tensor) -> Tensor:
    """Entropy and NLL [2, K] of the masked coordinates, float64."""
    positions = Positions.of(masked_BN)
    target_K = positions.take(batch.x_1)
    parts = [torch.zeros(2, 0, dtype=torch.float64, device=target_K.device)]
    for k, logits_kV in predict_logits(model, batch.source, batch.x_t, batch.t, positions):
        logits = logits_kV.to(sum_dtype(logits_kV))
        nll_k = -token_log_prob(logits, logits.logsumexp(-1), target_K[k])
        parts.append(torch.stack([prediction_entropy(logits), nll_k]).double())
    return torch.cat(parts, dim=1)
