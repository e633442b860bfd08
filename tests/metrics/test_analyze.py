"""Analyses against brute force: the exact posterior, token by token, and hand-made counts."""

import json
import math
from collections import defaultdict
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.errors import InputError
from cwdfm.metrics.analysis import (
    ContextAnalysis,
    UpdateStatistics,
    context_analysis,
    update_statistics,
)
from cwdfm.schedule import stratified_times
from tests.support.exact import correlated_target
from tests.support.models import SmallModel, SmallSplitModel

LENGTH, VOCAB, RADIUS, FARTHEST = 5, 3, 2, 3
SCHEDULE = cwdfm.Polynomial(2.0)
X = torch.randint(VOCAB, (40, LENGTH), generator=torch.Generator().manual_seed(0))


def exact(source: cwdfm.Source) -> cwdfm.ExactPosterior:
    target = torch.from_numpy(correlated_target(VOCAB, LENGTH, seed=0))
    return cwdfm.ExactPosterior(target, source, SCHEDULE)


def brute_force(
    model: Any, source: cwdfm.Source, weight: cwdfm.Weight | None, boundary: str
) -> dict[str, dict[int, dict[int, list[tuple[float, float]]]]]:
    """Every masked token by itself: {measure: {bin: {sequence: [(entropy, nll)]}}}."""
    path = cwdfm.MixturePath(source, SCHEDULE)
    context = weight and cwdfm.ContextPath(source, SCHEDULE, weight)
    index = torch.arange(len(X))
    found: dict[str, dict[int, dict[int, list[tuple[float, float]]]]] = {
        name: defaultdict(lambda: defaultdict(list)) for name in ("neighbors", "distance")
    }
    for d in range(2):
        t = stratified_times(7, d, index, len(X))
        batch = (context or path).sample(X, t, seed=7, step=d)
        logits = model(batch.x_t, t.float())[..., :VOCAB]
        for b in range(len(X)):
            for i in range(LENGTH):
                if batch.revealed[b, i]:
                    continue
                p = logits[b, i].double().softmax(-1).tolist()
                entropy = -sum(q * math.log(q) for q in p if q > 0)
                pair = (entropy, -math.log(p[int(X[b, i])]))
                apart = [
                    min(abs(i - j), LENGTH - abs(i - j)) if boundary == "circular" else abs(i - j)
                    for j in range(LENGTH)
                    if batch.revealed[b, j]
                ]
                found["neighbors"][sum(a <= RADIUS for a in apart)][b].append(pair)
                found["distance"][min([*apart, FARTHEST])][b].append(pair)
    return found


def cluster_error(groups: list[list[float]], mean: float) -> float:
    """The standard error of a ratio over clusters, from its textbook formula."""
    total = sum(map(len, groups))
    squares = sum((sum(g) - mean * len(g)) ** 2 for g in groups)
    return math.sqrt(squares * len(groups) / (len(groups) - 1)) / total


@pytest.mark.parametrize("boundary", ["circular", "cut"])
@pytest.mark.parametrize(
    ("source", "weight"),
    [
        (cwdfm.MaskSource(VOCAB), None),
        (cwdfm.UniformSource(VOCAB), None),
        (cwdfm.MaskSource(VOCAB), cwdfm.Neighbor(1, 2.0)),
    ],
    ids=["mask", "uniform", "context-path"],
)
def test_context_against_brute_force(
    source: cwdfm.Source, weight: cwdfm.Weight | None, boundary: Any
) -> None:
    model = exact(source)
    options: dict[str, Any] = {"radius": RADIUS, "farthest": FARTHEST, "boundary": boundary}
    found = context_analysis(
        model, source, SCHEDULE, X, weight=weight, draws=2, seed=7, batch_size=16, **options
    )
    truth = brute_force(model, source, weight, boundary)
    for name, bins in (("neighbors", range(5)), ("distance", range(1, 4))):
        curve = getattr(found, name)
        assert curve.bins == tuple(bins)
        for k, b in enumerate(bins):
            groups = list(truth[name][b].values())
            assert curve.tokens[k] == sum(map(len, groups))
            for part, measure in enumerate(("entropy", "nll")):
                values = [[pair[part] for pair in group] for group in groups]
                mean, error = (getattr(curve, m)[k] for m in (measure, f"{measure}_error"))
                if not groups:
                    assert mean is None
                    continue
                assert mean == pytest.approx(np.mean([v for g in values for v in g]))
                if len(groups) > 1:
                    assert error == pytest.approx(cluster_error(values, mean))
                else:
                    assert error is None
    assert sum(found.neighbors.tokens) == sum(found.distance.tokens)


def test_context_helps_the_exact_posterior() -> None:
    source = cwdfm.MaskSource(VOCAB)
    model = exact(source)
    found = context_analysis(model, source, SCHEDULE, X.repeat(20, 1), radius=2, draws=2)
    most = found.neighbors.entropy
    assert most[0] is not None
    assert most[4] is not None
    assert most[4] < most[0]  # conditioning lowers the entropy


@pytest.mark.parametrize("kind", [SmallModel, SmallSplitModel])
def test_context_does_not_depend_on_batches(kind: Any) -> None:
    source = cwdfm.UniformSource(5)
    x = torch.randint(5, (13, 8), generator=torch.Generator().manual_seed(1))
    results = [
        context_analysis(kind(5), source, SCHEDULE, x, radius=3, farthest=4, batch_size=size)
        for size in (1, 5, 99)
    ]
    for other in results[1:]:
        for name in ("neighbors", "distance"):
            a, b = getattr(results[0], name), getattr(other, name)
            assert a.tokens == b.tokens
            for part in ("entropy", "entropy_error", "nll", "nll_error"):
                pairs = zip(getattr(a, part), getattr(b, part), strict=True)
                assert all(p == pytest.approx(q) for p, q in pairs)


def made(updates: list[list[int]], loops: list[list[int]]) -> cwdfm.Samples:
    u = torch.tensor(updates, dtype=torch.int32)
    zeros = torch.zeros(len(updates), dtype=torch.int64)
    return cwdfm.Samples(u.long(), u, torch.tensor(loops, dtype=torch.int32), zeros, 0)


def test_updates_by_hand() -> None:
    samples = made([[1, 2, 0], [1, 1, 4]], [[0, 1, 0], [0, 0, 2]])
    found = update_statistics(samples)
    assert found.histogram == (1, 3, 1, 0, 1)
    assert (found.updates_per_token, found.loop_share, found.tokens) == (1.5, 3 / 9, 6)
    assert found.standard_error == pytest.approx(np.std([1.0, 2.0], ddof=1) / math.sqrt(2))
    free = update_statistics(samples, torch.tensor([False, True, False]))
    assert (free.histogram, free.loop_share) == ((1, 2, 0, 0, 1), 2 / 6)
    uneven = torch.tensor([[True, True, True], [True, False, False]])
    one = update_statistics(samples, uneven)
    assert (one.updates_per_token, one.standard_error, one.sequences) == (2.5, None, 1)
    data = json.loads(json.dumps(found.to_json()))
    assert (data["histogram"], data["tokens"]) == ([1, 3, 1, 0, 1], 6)
    # Of 1, 3 and 2 free tokens: 1, 6 and 4 updates, where 11 / 6 a token are expected.
    samples = made([[1, 2, 0], [1, 1, 4], [2, 2, 2]], [[0] * 3] * 3)
    some = update_statistics(samples, torch.tensor([[0, 1, 1], [0, 0, 0], [0, 0, 1]]).bool())
    square = (1 - 11 / 6) ** 2 + (6 - 33 / 6) ** 2 + (4 - 22 / 6) ** 2
    assert some.standard_error == pytest.approx(math.sqrt(3 / 2 * square) / 6)


def test_a_mask_source_updates_every_token_once() -> None:
    source = cwdfm.MaskSource(6)
    model = SmallModel(source.num_tokens)
    samples = cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(64, 12), steps=16)
    found = update_statistics(samples)
    assert found == UpdateStatistics(1.0, 0.0, 0.0, (0, 64 * 12), 64)


def analysis(x: Tensor = X, model: Any = None, **options: Any) -> ContextAnalysis:
    model = model or SmallModel(4)
    return context_analysis(
        model, cwdfm.MaskSource(VOCAB), SCHEDULE, x, **{"radius": RADIUS, **options}
    )


def test_context_as_json() -> None:
    data = json.loads(json.dumps(analysis().to_json()))
    assert data["neighbors"]["bins"] == [0, 1, 2, 3, 4]


ONE = made([[1]], [[0]])
WRONG: dict[str, tuple[Any, str]] = {
    "nan-logits": (
        lambda: analysis(model=lambda x, t: torch.full((*x.shape, 4), torch.nan)),
        "logits are NaN",
    ),
    "radius": (lambda: analysis(radius=8), "radius 8 is too large.*boundary='cut'"),
    "ids": (lambda: analysis(X + 9), r"allowed are 0\.\.2"),
    "weight": (lambda: analysis(weight=cwdfm.Entropy()), "cannot use Entropy"),
    "draws": (lambda: analysis(draws=0), "draws must be an integer >= 1"),
    "context-fixed-list": (
        lambda: analysis(fixed=[True] * LENGTH),
        rf"fixed must be a bool tensor of shape \({LENGTH},\), got list \[True.*arange",
    ),
    "context-fixed-length": (
        lambda: analysis(fixed=torch.zeros(LENGTH + 1, dtype=torch.bool)),
        rf"fixed must be .* \({LENGTH},\), got a torch.bool tensor of shape",
    ),
    "not-samples": (lambda: update_statistics(cast(Any, X)), "samples must be a Samples"),
    "fixed-shape": (
        lambda: update_statistics(ONE, torch.zeros(2, 2, dtype=torch.bool)),
        "fixed must be a bool tensor",
    ),
    "fixed-length": (
        lambda: update_statistics(ONE, torch.zeros(2, dtype=torch.bool)),
        "fixed must be a bool tensor",
    ),
    "fixed-list": (
        lambda: update_statistics(ONE, cast(Any, [False])),
        r"fixed must be a bool tensor of shape \(1, 1\) or \(1,\), got list",
    ),
    "all-fixed": (
        lambda: update_statistics(ONE, torch.ones(1, dtype=torch.bool)),
        "all positions are fixed",
    ),
}


@pytest.mark.parametrize("row", WRONG)
def test_wrong_input(row: str) -> None:
    act, message = WRONG[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        act()
