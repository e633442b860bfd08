"""Losses: each formula in float64, flow_matching's Bregman, and their minimizers."""

import math
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from flow_matching.loss import MixturePathGeneralizedKL
from flow_matching.path import MixtureDiscreteProbPath
from flow_matching.path.scheduler import PolynomialConvexScheduler
from torch import Tensor

import cwdfm
from cwdfm.loss.bregman import rate_divergence
from cwdfm.loss.scaled import RevealedWeight
from tests.support.exact import Array, correlated_target, entropy, neighbor

SCHEDULE = cwdfm.Polynomial(2.0)
SOURCES = [cwdfm.MaskSource(6), cwdfm.UniformSource(6)]
B, N = 40, 9


def example(source: cwdfm.Source, fixed: Tensor | None = None) -> tuple[Tensor, cwdfm.PathSample]:
    g = torch.manual_seed(0)
    x_1 = torch.randint(0, 6, (B, N), generator=g)
    t = torch.rand(B, generator=g, dtype=torch.float64) * 0.95
    batch = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t, seed=2, fixed=fixed)
    logits = torch.randn(B, N, source.num_tokens, generator=g, dtype=torch.float64) * 2
    return logits, batch


def raw_weights(weight: cwdfm.Weight, revealed_N: np.ndarray, p_NV: Array) -> Array:
    """The weights before normalization [N]."""
    match weight:
        case cwdfm.Entropy(beta):
            return np.asarray(np.exp(entropy(beta)(revealed_N, p_NV)))
        case cwdfm.Neighbor() | cwdfm.NeighborShare():
            count_N = neighbor(weight.radius, 1.0)(revealed_N, p_NV)
            count_N = count_N - (0 if weight.center else revealed_N)
            if isinstance(weight, cwdfm.Neighbor):
                return np.asarray(np.exp(weight.scale * count_N))
            return count_N if revealed_N.any() else np.ones(N)
    raise AssertionError(weight)


def by_definition(loss: cwdfm.Loss, logits: Tensor, batch: cwdfm.PathSample) -> Array:
    """The terms [B, N] of the formulas."""
    out = np.zeros((B, N))
    for b in range(B):
        t = float(batch.t[b])
        hazard = 2 * t / (1 - t * t)
        revealed, free = batch.revealed[b].numpy(), ~batch.fixed[b].numpy()
        p_NV = logits[b, :, :6].softmax(-1).numpy()  # without the mask
        x_1, x_t = batch.x_1[b].numpy(), batch.x_t[b].numpy()
        ce = -np.log(p_NV[np.arange(N), x_1])
        match loss:
            case cwdfm.CrossEntropy(coordinates) | cwdfm.NELBO(coordinates):
                terms = ce * (1 if isinstance(loss, cwdfm.CrossEntropy) else hazard)
                out[b] = np.where(revealed & (coordinates == "masked"), 0.0, terms)
            case cwdfm.Bregman(coordinates):
                same = x_t == x_1
                stay = np.where(x_t < 6, p_NV[np.arange(N), np.minimum(x_t, 5)], 0.0)
                terms = hazard * (ce * ~same + same - stay)
                out[b] = np.where(revealed & (coordinates == "masked"), 0.0, terms)
            case cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(radius, scale), "raw" | "level" as mode):
                raw = np.exp(-scale * neighbor(radius, 1.0)(~revealed, p_NV))
                out[b] = ce * (raw if mode == "raw" else raw[free].mean())
            case cwdfm.ScaledCrossEntropy(weight, mode):
                raw = raw_weights(weight, revealed, p_NV)
                over = free if mode == "joint" else ~revealed
                mean = raw[over].mean() if over.any() else 0.0
                alpha = raw / mean if mean > 0 else np.zeros(N)
                if mode in ("one", "zero"):
                    alpha = np.where(revealed, mode == "one", alpha)
                out[b] = ce * alpha
        out[b] *= free
    return out


LOSSES: list[cwdfm.Loss] = [
    cwdfm.CrossEntropy(),
    cwdfm.CrossEntropy("masked"),
    cwdfm.NELBO(),
    cwdfm.NELBO("all"),
    cwdfm.Bregman(),
    *(cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(2, 0.7), mode) for mode in get_args(RevealedWeight)),
    cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(2, 0.7, center=False), "extended"),
    cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(2, 0.7, center=False), "joint"),
    cwdfm.ScaledCrossEntropy(cwdfm.NeighborShare(2), "joint"),
    cwdfm.ScaledCrossEntropy(cwdfm.NeighborShare(2, center=False), "extended"),
    cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.5)),
]


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("prompted", [False, True])
def test_formulas(source: cwdfm.Source, loss: cwdfm.Loss, prompted: bool) -> None:
    fixed = None
    if prompted:
        fixed = torch.zeros(B, N, dtype=torch.bool)
        fixed[:, :2] = True
    logits, batch = example(source, fixed)
    expected = by_definition(loss, logits, batch)
    terms = loss(logits, batch, SCHEDULE, per_token=True)
    np.testing.assert_allclose(terms.numpy(), expected, rtol=1e-9, atol=1e-12)
    free = int((~batch.fixed).sum())
    assert float(loss(logits, batch, SCHEDULE)) == pytest.approx(expected.sum() / free, rel=1e-9)


def test_bregman_masked_is_bregman_with_carry_over() -> None:
    logits, batch = example(SOURCES[0])
    carried = logits.clone()
    carried[batch.revealed] = -1e9
    carried[batch.revealed, batch.x_1[batch.revealed]] = 0.0
    torch.testing.assert_close(
        cwdfm.Bregman("masked")(logits, batch, SCHEDULE),
        cwdfm.Bregman("all")(carried, batch, SCHEDULE),
    )
    # and with a mask source that is the NELBO, up to the constant -p(mask) = 0
    torch.testing.assert_close(
        cwdfm.Bregman("masked")(logits, batch, SCHEDULE), cwdfm.NELBO()(logits, batch, SCHEDULE)
    )


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_bregman_matches_flow_matching_s_generalized_kl(source: cwdfm.Source) -> None:
    logits, batch = example(source)
    peer = MixturePathGeneralizedKL(MixtureDiscreteProbPath(PolynomialConvexScheduler(n=2.0)))
    if isinstance(source, cwdfm.MaskSource):
        logits[..., source.mask_id] = -1e9  # flow_matching has no mask id
    theirs = float(peer(logits, batch.x_1, batch.x_t, batch.t))
    assert float(cwdfm.Bregman()(logits, batch, SCHEDULE)) == pytest.approx(theirs, rel=1e-6)


def test_losses_of_masked_tokens_need_no_others() -> None:
    _, batch = example(SOURCES[0])
    scaled = cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(1), "zero")
    for loss in (cwdfm.CrossEntropy("masked"), cwdfm.NELBO(), cwdfm.Bregman("masked"), scaled):
        assert torch.equal(loss.needed(batch), ~batch.revealed)


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_logits_of_the_needed_rows_suffice(source: cwdfm.Source, loss: cwdfm.Loss) -> None:
    """Values and gradients are the same whether the head ran everywhere or only where needed."""
    logits, batch = example(source)
    needed = loss.needed(batch)
    everywhere = logits.clone().requires_grad_()
    rows = logits[needed].clone().requires_grad_()
    a, b = loss(everywhere, batch, SCHEDULE), loss(rows, batch, SCHEDULE)
    torch.testing.assert_close(a, b)
    (ga,) = torch.autograd.grad(a, everywhere)
    (gb,) = torch.autograd.grad(b, rows)
    torch.testing.assert_close(ga[needed], gb)
    assert bool((ga[~needed] == 0).all())
    assert bool(torch.isfinite(ga).all())


@pytest.mark.parametrize(
    ("source", "loss"),
    [
        (cwdfm.MaskSource(2), cwdfm.CrossEntropy()),
        (cwdfm.MaskSource(2), cwdfm.NELBO()),
        (cwdfm.MaskSource(2), cwdfm.Bregman()),
        (cwdfm.MaskSource(2), cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(1, 1.0))),
        (cwdfm.UniformSource(2), cwdfm.CrossEntropy()),
        (cwdfm.UniformSource(2), cwdfm.NELBO("all")),
        (cwdfm.UniformSource(2), cwdfm.Bregman()),
    ],
    ids=str,
)
def test_minimized_by_the_true_posterior(source: cwdfm.Source, loss: cwdfm.Loss) -> None:
    """Moving away from the exact posterior increases the loss; the gradient there is zero.

    Fixed time, all 2^4 sequences weighted by the target. SCE is here for the mask source alone:
    with a uniform one its alpha depends on the reveal mask, which x_t does not show, so its
    minimizer is a reweighted posterior.
    """
    target = torch.from_numpy(correlated_target(2, 4, seed=0))
    model = cwdfm.ExactPosterior(target, source, SCHEDULE)
    copies = 4_000
    share_B = model.probabilities_S.repeat_interleave(copies)[:, None]
    x_1 = model.states_SN.repeat_interleave(copies, 0)
    t = torch.full((len(x_1),), 0.6, dtype=torch.float64)
    batch = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t)
    best = model(batch.x_t, t).clamp(min=-50)
    # One direction for each value of x_t, so that a model could realize it.
    table = torch.randn(3**4, 4, source.num_tokens, generator=torch.manual_seed(1))
    code = (batch.x_t * torch.tensor([27, 9, 3, 1])).sum(1)
    direction = table[code].double()

    def value(step: float) -> float:
        terms = loss(best + step * direction, batch, SCHEDULE, per_token=True)
        return float((terms * share_B).sum() / copies)

    centre = value(0.0)
    for step in (0.3, -0.3):
        assert value(step) > centre
    slope = (value(0.01) - value(-0.01)) / 0.02
    curve = (value(0.3) + value(-0.3) - 2 * centre) / 0.09
    assert abs(slope) < 0.05 * curve


def test_fourth_proposition() -> None:
    """D(alpha u, alpha u_theta) = alpha D(u, u_theta), summed over target states, by rates."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        p, x, x_1 = rng.dirichlet(np.ones(5)), int(rng.integers(5)), int(rng.integers(5))
        hazard, alpha = rng.random() * 3 + 0.1, rng.random() * 3
        u = hazard * np.eye(5)[x_1] * (np.arange(5) != x)
        u_theta = hazard * p * (np.arange(5) != x)

        def divergence(a: np.ndarray, b: np.ndarray) -> float:
            return float(sum(s * math.log(s / r) - s + r if s > 0 else r for s, r in zip(a, b)))  # noqa: B905

        weighted = divergence(alpha * u, alpha * u_theta)
        assert weighted == pytest.approx(alpha * divergence(u, u_theta))
        # the loss and the bound compute this divergence of rates
        log_p = torch.from_numpy(p).log()
        ours = rate_divergence(log_p[x_1], log_p[x], torch.tensor(x == x_1))
        assert divergence(u, u_theta) == pytest.approx(hazard * float(ours))


def test_bound_losses_include_the_weight_of_the_path() -> None:
    """On a context path the terms of Bregman and NELBO include alpha; otherwise they raise."""
    weight = cwdfm.Neighbor(2, 0.7)
    logits, plain = example(SOURCES[0])
    batch = replace(plain, weight=weight)  # the same state, labeled as from the context path
    alpha = weight(plain.revealed)
    for kind in (cwdfm.NELBO, cwdfm.Bregman):
        bare = kind("masked")(logits, plain, SCHEDULE, per_token=True)
        weighted = kind("masked", weight)(logits, batch, SCHEDULE, per_token=True)
        torch.testing.assert_close(weighted, alpha * bare)
    path = cwdfm.ContextPath(SOURCES[0], SCHEDULE, weight)
    assert path.sample(plain.x_1, plain.t).weight == weight


def test_entropy_weights_are_detached() -> None:
    logits, batch = example(SOURCES[1])
    logits.requires_grad_()
    (whole,) = torch.autograd.grad(
        cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.5))(logits, batch, SCHEDULE), logits
    )
    ce = cwdfm.CrossEntropy()(logits, batch, SCHEDULE, per_token=True)
    alpha = cwdfm.Entropy(1.5)(batch.revealed, logits=logits.detach())
    alpha = torch.where(batch.revealed, 1.0, alpha)
    (held,) = torch.autograd.grad((alpha * ce).mean(), logits)
    torch.testing.assert_close(whole, held)


@pytest.mark.parametrize("mode", ["extended", "joint"])
def test_huge_scales_leave_gradients_finite(mode: Literal["extended", "joint"]) -> None:
    """A prompt of three and nothing else revealed: alpha overflows inside the prompt.

    Of the six others the two at its ends share all the weight, 3 each, so the gradient is known.
    """
    fixed = torch.zeros(B, N, dtype=torch.bool)
    fixed[:, :3] = True
    logits, batch = example(SOURCES[1], fixed)
    batch = cwdfm.MixturePath(SOURCES[1], SCHEDULE).sample(batch.x_1, torch.zeros(B), fixed=fixed)
    assert torch.equal(batch.revealed, fixed)
    logits.requires_grad_()
    loss = cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(1, 600.0), mode)(logits, batch, SCHEDULE)
    (gradient,) = torch.autograd.grad(loss, logits)
    alpha = torch.zeros(B, N, dtype=torch.float64)
    alpha[:, [3, N - 1]] = 3.0
    error = logits.detach().softmax(-1) - torch.eye(6, dtype=torch.float64)[batch.x_1]
    torch.testing.assert_close(gradient, alpha[..., None] * error / (6 * B))


def test_a_fixed_token_is_excluded_from_the_level() -> None:
    fixed = torch.zeros(B, N, dtype=torch.bool)
    fixed[:, 0] = True
    logits, batch = example(SOURCES[0], fixed)
    logits[:, 0], logits[:, 1:] = 0.0, 1e4 * torch.eye(logits.shape[-1])[0]  # e^(1000 log 6); 1
    loss = cwdfm.ScaledCrossEntropy(cwdfm.Entropy(-1000.0), "level")
    plain = cwdfm.CrossEntropy()(logits, batch, SCHEDULE)
    torch.testing.assert_close(loss(logits, batch, SCHEDULE), plain)


def test_raw_neighbor_share_is_one_if_all_is_revealed() -> None:
    """n / 3 with radius 1 and a finished last sequence: late times weigh most."""
    logits, batch = example(SOURCES[0])
    revealed = batch.revealed.clone()
    revealed[-1] = True
    batch = replace(batch, revealed=revealed, x_t=torch.where(revealed, batch.x_1, batch.x_t))
    count = revealed.int() + revealed.roll(1, 1).int() + revealed.roll(-1, 1).int()
    count[~revealed.any(1)] = 1  # 0 / 0: equal weights
    ce = cwdfm.CrossEntropy()(logits, batch, SCHEDULE, per_token=True)
    raw = cwdfm.ScaledCrossEntropy(cwdfm.NeighborShare(1), "raw")
    torch.testing.assert_close(raw(logits, batch, SCHEDULE, per_token=True), ce * count / 3)


def test_loss_is_zero_if_all_is_fixed() -> None:
    logits, batch = example(SOURCES[0], fixed=torch.ones(B, N, dtype=torch.bool))
    for loss in (cwdfm.CrossEntropy(), cwdfm.NELBO(), cwdfm.Bregman()):
        assert float(loss(logits, batch, SCHEDULE)) == 0


def test_hazard_is_bounded_at_t_1() -> None:
    """It equals that of t = 0.999, with flat logits and everything revealed."""
    _, batch = example(SOURCES[1])
    late = cwdfm.MixturePath(SOURCES[1], SCHEDULE).sample(batch.x_1, torch.ones(B))
    coarse = replace(late, t=torch.full((B,), 0.9995, dtype=torch.bfloat16))  # rounds to 1
    hazard = 2 * 0.999 / (1 - 0.999**2)
    flat = torch.zeros(B, N, 6, dtype=torch.float64)
    for loss, divergence in ((cwdfm.NELBO("all"), math.log(6)), (cwdfm.Bregman(), 1 - 1 / 6)):
        for end in (late, coarse):
            assert float(loss(flat, end, SCHEDULE)) == pytest.approx(hazard * divergence, rel=1e-9)


def test_half_precision_logits_are_converted_to_float32() -> None:
    logits, batch = example(SOURCES[1])
    low = logits.bfloat16()
    for loss in LOSSES:
        value = loss(low, batch, SCHEDULE)
        assert value.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(
            value.double(), loss(low.double(), batch, SCHEDULE), rtol=1e-5, atol=1e-6
        )


def test_tokens_of_weight_0_may_be_impossible() -> None:
    """With weights that underflow to 0, an impossible correct token does not give NaN."""
    logits, batch = example(SOURCES[1])
    weight = cwdfm.Neighbor(2, 1e4)
    nothing = ~batch.revealed & (weight(batch.revealed) == 0)
    assert bool(nothing.any())
    right = torch.nn.functional.one_hot(batch.x_1, logits.shape[-1]).bool()
    impossible = logits.masked_fill(right & nothing[..., None], -torch.inf)
    loss = cwdfm.ScaledCrossEntropy(weight)
    found = loss(impossible, batch, SCHEDULE)
    torch.testing.assert_close(found, loss(logits, batch, SCHEDULE))
