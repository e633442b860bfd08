"""Context weights: each score against explicit loops, normalization and sums."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.weight.base import terms


def random_masks(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.rand(batch, length, generator=torch.manual_seed(seed)) < 0.5


def brute_alpha(score_BN: np.ndarray, revealed_BN: Tensor) -> np.ndarray:
    masked = ~revealed_BN.numpy()
    raw = np.exp(score_BN) * masked
    return np.asarray(raw / raw.sum(1, keepdims=True) * masked.sum(1, keepdims=True))


@pytest.mark.parametrize("boundary", ["circular", "cut"])
@pytest.mark.parametrize(("axes", "radius"), [((11,), 1), ((11,), 2), ((11,), 4), ((5, 6), 1)])
def test_neighbor_counts_by_loops(axes: Any, radius: int, boundary: Any) -> None:
    weight = cwdfm.Neighbor(radius, 0.7, boundary, axes if len(axes) == 2 else None)
    revealed = random_masks(10, math.prod(axes))
    masks, counts = (x.reshape(-1, *axes) for x in (revealed, weight.count(revealed)))
    for mask, count in zip(masks, counts, strict=True):
        for place in product(*map(range, axes)):
            cells = list(product(*(range(i - radius, i + radius + 1) for i in place)))
            if boundary == "cut":
                cells = [c for c in cells if all(0 <= i < n for i, n in zip(c, axes, strict=True))]
            wrapped = [tuple(i % n for i, n in zip(c, axes, strict=True)) for c in cells]
            assert count[place] == sum(bool(mask[cell]) for cell in wrapped)
    expected = brute_alpha(0.7 * weight.count(revealed).numpy(), revealed)
    np.testing.assert_allclose(weight(revealed).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("boundary", ["circular", "cut"])
@pytest.mark.parametrize("grid", [None, (4, 5)])
def test_neighbor_table_agrees_with_the_counts(boundary: str, grid: tuple[int, int] | None) -> None:
    weight = cwdfm.Neighbor(1, 1.0, boundary, grid)  # type: ignore[arg-type]
    revealed = random_masks(10, 20)
    table = weight.neighbors(20)
    seen = torch.where(table >= 0, revealed[:, table.clamp(min=0)], False).sum(-1)
    assert torch.equal(seen + revealed, weight.count(revealed))


@pytest.mark.parametrize(("grid", "places"), [(None, 2 * 19), ((4, 5), 7 * 9 - 1)])
def test_a_radius_larger_than_the_sequence_covers_all(
    grid: tuple[int, int] | None, places: int
) -> None:
    """Tables are no wider than the sequence; tables of the full radius would exhaust memory."""
    weight = cwdfm.Neighbor(10_000 if grid is None else 200, 0.5, "cut", grid)
    revealed = random_masks(10, 20)
    assert torch.equal(weight.count(revealed), revealed.sum(1, keepdim=True).expand(10, 20))
    assert weight.neighbors(20).shape == (20, places)
    x_1, t = torch.zeros(10, 20, dtype=torch.int64), torch.linspace(0, 1, 10)
    path = cwdfm.ContextPath(cwdfm.MaskSource(3), cwdfm.Linear(), weight)
    assert bool(path.sample(x_1, t).revealed[-1].all())
    alone = cwdfm.Neighbor(5, 1.0, "cut")
    assert alone(torch.tensor([[False]])).tolist() == [[1.0]]


@pytest.mark.parametrize("boundary", ["circular", "cut"])
@pytest.mark.parametrize("radius", [1, 3])
def test_neighbor_share_is_proportional_to_the_count(radius: int, boundary: str) -> None:
    """Without any revealed token all weights are equal."""
    n = 11
    revealed = random_masks(30, n)
    revealed[0] = False
    weight = cwdfm.NeighborShare(radius, boundary)  # type: ignore[arg-type]
    count = cwdfm.Neighbor(radius, 1.0, boundary).count(revealed)  # type: ignore[arg-type]
    count = torch.where(revealed.any(1, keepdim=True), count, 1).masked_fill(revealed, 0)
    expected = count / count.sum(1, keepdim=True).double() * (~revealed).sum(1, keepdim=True)
    torch.testing.assert_close(weight(revealed), expected)
    assert weight.equivariant == (boundary == "circular")


def test_a_certain_prediction_has_a_finite_weight() -> None:
    """1 / 0 is bounded: two certain coordinates share the total weight equally."""
    logits = torch.tensor([[[60.0, -60.0], [60.0, -60.0], [0.0, 0.0]]])
    alpha = cwdfm.EntropyInverse()(torch.zeros(1, 3, dtype=torch.bool), logits)
    assert alpha[0].tolist() == pytest.approx([1.5, 1.5, 0.0], abs=1e-5)


@pytest.mark.parametrize("boundary", ["circular", "cut"])
@pytest.mark.parametrize("cap", [1, 4, 12, 120])
def test_distance_by_loops(boundary: str, cap: int) -> None:
    n = 12
    revealed = random_masks(30, n) & random_masks(30, n, 1)
    revealed[0] = False
    weight = cwdfm.Distance(0.5, cap, boundary)  # type: ignore[arg-type]
    for row, mask in zip(weight.distance(revealed), revealed, strict=True):
        for i in range(n):
            gaps = [abs(i - j) for j in range(n) if mask[j]]
            if boundary == "circular":
                gaps = [min(g, n - g) for g in gaps]
            assert row[i] == min([*gaps, cap])
    expected = brute_alpha(-0.5 * weight.distance(revealed).numpy(), revealed)
    np.testing.assert_allclose(weight(revealed).numpy(), expected, rtol=1e-12)


def test_prediction_weights_by_loops() -> None:
    revealed = random_masks(3, 6)
    logits = torch.randn(3, 6, 5, dtype=torch.float64, generator=torch.manual_seed(1))
    p = logits.softmax(-1).numpy()
    entropy = np.array([[-sum(q * math.log(q) for q in row) for row in s] for s in p])
    ordered = np.sort(p, axis=-1)
    expected = {
        cwdfm.Entropy(6.0): -6.0 * entropy,
        cwdfm.EntropyInverse(): -np.log(entropy),
        cwdfm.Confidence(3.0): 3.0 * ordered[..., -1],
        cwdfm.Margin(2.0): 2.0 * (ordered[..., -1] - ordered[..., -2]),
    }
    for weight, score in expected.items():
        alpha = weight(revealed, logits=logits).numpy()
        np.testing.assert_allclose(alpha, brute_alpha(score, revealed), rtol=1e-9)


def test_excluded_tokens_do_not_make_nan() -> None:
    logits = torch.tensor([[[0.0, -torch.inf, 1.0], [0.0, 0.0, -torch.inf]]])
    revealed = torch.zeros(1, 2, dtype=torch.bool)
    weights = (cwdfm.Entropy(6.0), cwdfm.EntropyInverse(), cwdfm.Confidence(), cwdfm.Margin())
    for weight in weights:
        alpha = weight(revealed, logits=logits)
        assert bool(torch.isfinite(alpha).all())
        assert float(alpha.mean()) == pytest.approx(1)


def test_scores_add() -> None:
    revealed = random_masks(5, 9)
    logits = torch.randn(5, 9, 4, dtype=torch.float64, generator=torch.manual_seed(2))
    neighbor, entropy, distance = cwdfm.Neighbor(2, 1.5), cwdfm.Entropy(2.0), cwdfm.Distance(0.3)
    total = neighbor + entropy + distance
    assert total.needs_logits
    assert not total.equivariant
    product = neighbor(revealed) * entropy(revealed, logits=logits) * distance(revealed)
    masked = ~revealed
    expected = product / product.sum(1, keepdim=True) * masked.sum(1, keepdim=True)
    torch.testing.assert_close(total(revealed, logits=logits), expected)
    masks_only = neighbor + distance
    assert not masks_only.needs_logits
    assert masks_only.equivariant
    assert masks_only.prediction_score(logits).tolist() == torch.zeros(5, 9).tolist()
    torch.testing.assert_close((neighbor + neighbor)(revealed), cwdfm.Neighbor(2, 3.0)(revealed))
    assert list(terms(total)) == list(terms(neighbor + (entropy + distance)))
    assert list(terms(total)) == [neighbor, entropy, distance]
    assert list(terms(None)) == []


def test_extreme_scales_stay_normalized() -> None:
    revealed = random_masks(50, 40)
    for scale in (-1e4, -50.0, 50.0, 1e4):
        alpha = cwdfm.Neighbor(3, scale)(revealed)
        total = alpha.sum(1)
        torch.testing.assert_close(total, (~revealed).sum(1).double())


def test_source_removes_the_mask_logit() -> None:
    source = cwdfm.MaskSource(4)
    revealed = random_masks(3, 6)
    logits = torch.randn(3, 6, 5, generator=torch.manual_seed(4))
    weight = cwdfm.Entropy(2.0)
    expected = weight(revealed, logits=logits[..., :4])
    torch.testing.assert_close(weight(revealed, logits=logits, source=source), expected)
    assert not torch.allclose(weight(revealed, logits=logits), expected)


def test_weights_are_equivariant_if_they_claim_to_be() -> None:
    """Theorem 1's second condition, checked by shifting: alpha(shift b) = shift alpha(b)."""
    revealed = random_masks(200, 9, 3)
    revealed[0] = False
    weights = [
        cwdfm.Distance(0.7, 100),
        cwdfm.Neighbor(2, 1.3),
        cwdfm.Neighbor(2, 1.3, "cut"),
        cwdfm.Distance(0.7, 3),
        cwdfm.Distance(0.7, 3, "cut"),
    ]
    for weight in weights:
        shifts = [
            torch.allclose(weight(revealed.roll(k, 1)), weight(revealed).roll(k, 1))
            for k in range(1, 9)
        ]
        assert all(shifts) == weight.equivariant


def test_a_sum_needs_only_summaries_if_all_its_terms_do() -> None:
    """Entropy and maximum probability replace logits; they do not determine the margin."""
    near, sure, clear = cwdfm.Neighbor(1, 1.0), cwdfm.Confidence(3.0), cwdfm.Margin(2.0)
    logits = torch.randn(2, 5, 4, generator=torch.manual_seed(0), dtype=torch.float64)
    p = logits.softmax(-1)
    summary = (-(p * p.log()).sum(-1), p.amax(-1))
    entropy, inverse = cwdfm.Entropy(2.0), cwdfm.EntropyInverse()
    for weight in (entropy, inverse, sure, near + sure, entropy + sure, near + (sure + entropy)):
        assert weight.needs_only_summary
        torch.testing.assert_close(weight.summary_score(*summary), weight.prediction_score(logits))
    for other in (clear, near + clear, sure + clear, (near + sure) + clear):
        assert not other.needs_only_summary
    assert (near + cwdfm.Distance(1.0)).needs_only_summary
    with pytest.raises(TypeError, match="the logits themselves"):
        clear.summary_score(*summary)


def test_entropies_of_half_precision_logits_are_computed_in_float32() -> None:
    logits = torch.randn(3, 5_000, generator=torch.manual_seed(0)).bfloat16()
    p = logits.double().softmax(-1)
    entropy = -(p * p.log()).sum(-1)
    score = cwdfm.Entropy(1.0).prediction_score(logits)
    torch.testing.assert_close(score, -entropy, rtol=1e-5, atol=0.0)
