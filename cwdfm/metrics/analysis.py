"""The paper's analyses: prediction difficulty by context, and updates per token of a solver."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer, check_mask, check_tokens
from cwdfm.loss.prediction import token_log_prob
from cwdfm.metrics.folds import ratio
from cwdfm.model.positions import Positions
from cwdfm.model.predict import evaluating, model_device, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.precision import sum_dtype
from cwdfm.path import PathSample, path_for
from cwdfm.schedule import Schedule, stratified_times
from cwdfm.solver import Samples
from cwdfm.source import Source
from cwdfm.weight import Distance, Neighbor, Weight
from cwdfm.weight.entropy import prediction_entropy
from cwdfm.weight.neighbor import Boundary


@dataclass(frozen=True)
class ContextCurve:
    """Mean entropy and NLL per bin, with standard errors over sequences (see `folds.ratio`).

    The mean of an empty bin and the error of a bin with fewer than two sequences are None.
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
        return asdict(self)


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
    """Measure how hard the masked tokens of x_1 [B, N] are to predict, depending on their context.

    For x_t ~ p_t(. | x_0, x_1) and each masked coordinate i, the entropy of the prediction
    H(p^i_{1|t}(. | x_t)) and the negative log-likelihood -log p^i_{1|t}(x_1^i | x_t), in nats, are
    averaged by the number of revealed coordinates within `radius` (the paper uses 8), and by the
    distance to the nearest revealed coordinate.

    Each sequence is corrupted `draws` times, at stratified times in [0, 1]. With any source, a
    token counts as masked if the path has not revealed it yet. `weight` selects the
    context-weighted path. Tokens marked in `fixed` [N] are never masked and serve as context. The
    result does not depend on `batch_size`.
    """
    check_tokens("x_1", x_1, source.vocab_size)
    check_integer("draws", draws)
    check_integer("batch_size", batch_size)
    check_integer("farthest", farthest)
    neighbor, nearest = Neighbor(radius, 1.0, boundary), Distance(1.0, farthest, boundary)
    path = path_for(source, schedule, weight)
    x_1 = x_1.to(model_device(model) or x_1.device)
    if fixed is not None:
        check_mask("fixed", fixed, (x_1.shape[1],))
        fixed = fixed.to(x_1.device).expand(x_1.shape)
    by_count_3BK = torch.zeros(3, len(x_1), 2 * radius + 1, dtype=torch.float64)
    by_distance_3BK = torch.zeros(3, len(x_1), farthest, dtype=torch.float64)
    with evaluating(model):
        for index_B in torch.arange(len(x_1), device=x_1.device).split(batch_size):
            for d in range(draws):
                t_B = stratified_times(seed, d, index_B, len(x_1))
                fixed_BN = None if fixed is None else fixed[index_B]
                batch = path.sample(
                    x_1[index_B], t_B, seed=seed, step=d, index=index_B, fixed=fixed_BN
                )
                masked_BN, values_3K = ~batch.revealed, _difficulty(model, batch)
                row_K = index_B[masked_BN.nonzero()[:, 0]]
                count_K = neighbor.count(batch.revealed)[masked_BN]
                distance_K = nearest.distance(batch.revealed)[masked_BN]
                _add(by_count_3BK, row_K, count_K, values_3K)
                _add(by_distance_3BK, row_K, distance_K - 1, values_3K)
    return ContextAnalysis(
        neighbors=_curve(range(2 * radius + 1), by_count_3BK),
        distance=_curve(range(1, farthest + 1), by_distance_3BK),
        radius=radius,
        farthest=farthest,
        boundary=boundary,
        sequences=len(x_1),
        draws=draws,
        seed=seed,
    )


def _difficulty(model: Model, batch: PathSample) -> Tensor:
    """The count (1), the entropy and the NLL [3, K] of each masked coordinate, float64."""
    positions = Positions.of(~batch.revealed)
    target_K = positions.take(batch.x_1)
    parts = [torch.zeros(3, 0, dtype=torch.float64, device=target_K.device)]
    for k, logits_kV in predict_logits(model, batch.source, batch.x_t, batch.t, positions):
        logits = logits_kV.to(sum_dtype(logits_kV))
        nll_k = -token_log_prob(logits, logits.logsumexp(-1), target_K[k])
        parts.append(torch.stack([torch.ones_like(nll_k), prediction_entropy(logits), nll_k]))
    return torch.cat([part.double() for part in parts], dim=1).cpu()


def _add(sums_3BK: Tensor, row_K: Tensor, bin_K: Tensor, values_3K: Tensor) -> None:
    """Add the values of the masked coordinates to the sums per sequence and bin."""
    index_K = row_K.cpu() * sums_3BK.shape[2] + bin_K.cpu()
    sums_3BK.view(3, -1).index_add_(1, index_K, values_3K)


def _curve(bins: range, sums_3BK: Tensor) -> ContextCurve:
    n_BK, *values_BK = sums_3BK
    columns: list[tuple[Any, ...]] = []
    for y_BK in values_BK:
        pairs = zip(y_BK.T, n_BK.T, strict=True)
        ratios = [ratio(y_B, n_B) if n_B.any() else (None, None) for y_B, n_B in pairs]
        columns += zip(*ratios, strict=True)
    return ContextCurve(tuple(bins), tuple(map(int, n_BK.sum(0))), *columns)


@dataclass(frozen=True)
class UpdateStatistics:
    """Updates per free token, and the fraction of updates that are loops.

    A loop is an update that restores the data token before the previous update. The standard error
    is over sequences (None for a single one). `histogram[k]` counts the tokens with k updates.
    """

    updates_per_token: float
    standard_error: float | None
    loop_share: float  # fraction of all updates; 0 if there are none
    histogram: tuple[int, ...]
    sequences: int

    @property
    def tokens(self) -> int:
        """Number of free tokens."""
        return sum(self.histogram)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"tokens": self.tokens}


def update_statistics(samples: Samples, fixed: Tensor | None = None) -> UpdateStatistics:
    """Count how often a solver updated each token; `fixed` [B, N] or [N] marks prompt tokens."""
    check_instance("samples", samples, Samples, "the return value of cwdfm.sample")
    updates_BN = samples.updates.cpu().long()
    free_BN = torch.ones(updates_BN.shape, dtype=torch.bool)
    if fixed is not None:
        check_mask("fixed", fixed, tuple(updates_BN.shape), (updates_BN.shape[1],))
        free_BN = ~fixed.cpu().expand(updates_BN.shape)
    if not bool(free_BN.any()):
        raise InputError("all positions are fixed; at least one must be free to count updates")
    updates_BN = updates_BN * free_BN
    mean, error = ratio(updates_BN.sum(1).double(), free_BN.sum(1).double())
    loops = int((samples.loops.cpu() * free_BN).sum())
    return UpdateStatistics(
        updates_per_token=mean,
        standard_error=error,
        loop_share=loops / max(1, int(updates_BN.sum())),
        histogram=tuple(torch.bincount(updates_BN[free_BN]).tolist()),
        sequences=int(free_BN.any(1).sum()),
    )
