"""Losses: each formula by loops in float64, the peer's Bregman, and what minimises them."""

import math

import numpy as np
import pytest
import torch
from flow_matching.loss import MixturePathGeneralizedKL
from flow_matching.path import MixtureDiscreteProbPath
from flow_matching.path.scheduler import PolynomialConvexScheduler
from torch import Tensor

import cwdfm
from tests.exact import correlated_target

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


def neighbor_alpha(revealed: np.ndarray, r: int, s: float, over: np.ndarray) -> np.ndarray:
    n = len(revealed)
    count = [sum(revealed[(i + o) % n] for o in range(-r, r + 1)) for i in range(n)]
    raw = np.exp(s * np.array(count))
    return np.asarray(raw / raw[over].mean()) if over.any() else np.zeros(n)


def brute(loss: cwdfm.Loss, logits: Tensor, batch: cwdfm.PathSample) -> np.ndarray:
    """Terms [B, N] by the formulas, with nothing but loops."""
    out = np.zeros((B, N))
    for b in range(B):
        t = float(batch.t[b])
        hazard = 2 * t / (1 - t * t)
        revealed = batch.revealed[b].numpy()
        for i in range(N):
            if batch.fixed[b, i]:
                continue
            z = logits[b, i, :6].tolist()  # the mask id takes no part
            total = sum(math.exp(v) for v in z)
            x_1, x_t = int(batch.x_1[b, i]), int(batch.x_t[b, i])
            ce = -(z[x_1] - math.log(total))
            stay = math.exp(z[x_t]) / total if x_t < 6 else 0.0
            match loss:
                case cwdfm.CrossEntropy(coordinates):
                    out[b, i] = ce if coordinates == "all" or not revealed[i] else 0
                case cwdfm.NELBO(coordinates):
                    out[b, i] = hazard * ce if coordinates == "all" or not revealed[i] else 0
                case cwdfm.Bregman(coordinates):
                    same = x_t == x_1
                    if coordinates == "all" or not revealed[i]:
                        out[b, i] = hazard * ((same - 1) * -ce + same - stay)
                case cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(r, s), mode):
                    over = ~batch.fixed[b].numpy() if mode == "joint" else ~revealed
                    alpha = neighbor_alpha(revealed, r, s, over)[i]
                    if revealed[i]:
                        alpha = {"one": 1, "zero": 0}.get(mode, alpha)
                    out[b, i] = alpha * ce
    return out


LOSSES: list[cwdfm.Loss] = [
    cwdfm.CrossEntropy(),
    cwdfm.CrossEntropy("masked"),
    cwdfm.NELBO(),
    cwdfm.NELBO("all"),
    cwdfm.Bregman(),
    *(
        cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(2, 0.7), mode)
        for mode in ("one", "zero", "extended", "joint")
    ),
]


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("prompted", [False, True])
def test_formula_by_loops(source: cwdfm.Source, loss: cwdfm.Loss, prompted: bool) -> None:
    fixed = None
    if prompted:
        fixed = torch.zeros(B, N, dtype=torch.bool)
        fixed[:, :2] = True
    logits, batch = example(source, fixed)
    expected = brute(loss, logits, batch)
    terms = loss(logits, batch, SCHEDULE, per_token=True)
    np.testing.assert_allclose(terms.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert float(loss(logits, batch, SCHEDULE)) == pytest.approx(expected.mean(), rel=1e-9)


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
def test_bregman_is_the_peer_s_generalised_kl(source: cwdfm.Source) -> None:
    logits, batch = example(source)
    peer = MixturePathGeneralizedKL(MixtureDiscreteProbPath(PolynomialConvexScheduler(n=2.0)))
    if isinstance(source, cwdfm.MaskSource):
        logits[..., source.mask_id] = -1e9  # the peer has no notion of a mask id
    theirs = float(peer(logits, batch.x_1, batch.x_t, batch.t))
    assert float(cwdfm.Bregman()(logits, batch, SCHEDULE)) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("loss", [*LOSSES, cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.0))], ids=str)
def test_logits_of_the_needed_rows_are_enough(source: cwdfm.Source, loss: cwdfm.Loss) -> None:
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


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_mask_logit_has_no_say(loss: cwdfm.Loss) -> None:
    logits, batch = example(SOURCES[0])
    other = logits.clone()
    other[..., 6] = 50.0
    assert torch.equal(loss(logits, batch, SCHEDULE), loss(other, batch, SCHEDULE))


@pytest.mark.parametrize("source", [cwdfm.MaskSource(2), cwdfm.UniformSource(2)], ids=str)
@pytest.mark.parametrize(
    "loss",
    [
        cwdfm.CrossEntropy(),
        cwdfm.NELBO("all"),
        cwdfm.Bregman(),
        cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(1, 1.0)),
    ],
    ids=str,
)
def test_minimised_by_the_true_posterior(source: cwdfm.Source, loss: cwdfm.Loss) -> None:
    """At the exact posterior the gradient with respect to each state's logits averages to zero,
    and moving away in any direction costs. Fixed time, all 2^3 sequences weighted by the target.

    For a uniform source, SCE is left out: its alpha hangs on the reveal mask, which x_t does not
    show, so its minimiser is a reweighted posterior. The mask source shows it.
    """
    if isinstance(loss, cwdfm.ScaledCrossEntropy) and isinstance(source, cwdfm.UniformSource):
        source = cwdfm.MaskSource(2)
    target = torch.from_numpy(correlated_target(2, 4, seed=0))
    model = cwdfm.ExactPosterior(target, source, SCHEDULE)
    copies = 4_000
    share_B = model.probabilities_S.repeat_interleave(copies)[:, None]
    x_1 = model.states_SN.repeat_interleave(copies, 0)
    t = torch.full((len(x_1),), 0.6, dtype=torch.float64)
    batch = cwdfm.MixturePath(source, SCHEDULE).sample(x_1, t)
    best = model(batch.x_t, t).clamp(min=-50)
    # One direction for each value of x_t, so that a model could really move that way.
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
        # and this divergence of rates is the paper's closed form, as the loss computes it
        same = float(x == x_1)
        closed = hazard * ((same - 1) * math.log(p[x_1]) + same - p[x])
        assert divergence(u, u_theta) == pytest.approx(closed)


def test_hazard_is_bounded_at_the_end_of_time() -> None:
    logits, batch = example(SOURCES[1])
    x_1 = batch.x_1
    late = cwdfm.MixturePath(SOURCES[1], SCHEDULE).sample(x_1, torch.ones(B))
    for loss in (cwdfm.NELBO("all"), cwdfm.Bregman()):
        assert math.isfinite(float(loss(logits, late, SCHEDULE)))


def test_half_precision_logits_are_read_in_float32() -> None:
    logits, batch = example(SOURCES[1])
    low = logits.bfloat16()
    for loss in LOSSES:
        value = loss(low, batch, SCHEDULE)
        assert value.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(
            value.double(), loss(low.double(), batch, SCHEDULE), rtol=1e-5, atol=1e-6
        )
