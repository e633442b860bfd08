"""GIDD: its formulas against the authors' code, its samples and bounds against exact chains."""

import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import integrate, special
from torch import Tensor

import cwdfm
from cwdfm.baselines.gidd import GIDD, S_END
from cwdfm.baselines.sedd import Analytic, ScoreEuler
from cwdfm.method import SampleRequest
from tests.support.cases import slow
from tests.support.exact import Array, correlated_target
from tests.support.stats import assert_differs, assert_follows, histogram

VOCAB, MASK, P_UNIFORM = 3, 3, 0.3
TARGET = correlated_target(VOCAB, 2, seed=0)
STATES = list(product(range(VOCAB + 1), repeat=2))
METHOD = GIDD(VOCAB, P_UNIFORM)


def kernel(s: float | Array) -> Array:
    """q_s(y | x) [..., x, y] for all ids, by the definition."""
    s = np.asarray(s)[..., None, None]
    c = 2 * P_UNIFORM / (1 - P_UNIFORM) * np.sqrt(s * (1 - s))
    token, mask = np.repeat(c / VOCAB, VOCAB, axis=-1), s
    noise = np.concatenate([token, mask], axis=-1)
    return np.asarray(((1 - s) * np.eye(VOCAB + 1) + noise) / (1 + c))


class Others:
    """The exact network p(x_1^i | z^-i) of TARGET, or a flawed one."""

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        s_B = 1 - t.double().numpy().clip(min=1e-9)  # at s = 1 most states are impossible
        q = kernel(s_B)[:, :VOCAB]  # [B, x, y]
        b = np.arange(len(z))
        first = np.einsum("xw,bw->bx", TARGET, q[b, :, z[:, 1]])
        second = np.einsum("wx,bw->bx", TARGET, q[b, :, z[:, 0]])
        logits = np.log(np.stack([first, second], axis=1))
        if not self.exact:
            logits = 0.6 * logits + 0.3 * np.arange(VOCAB) * z[:, :1, None].numpy()
        return torch.from_numpy(np.concatenate([logits, np.full_like(logits[..., :1], 0.7)], -1))


def predictions(model: Others, s: float) -> Array:
    """[states, N, V]."""
    states = torch.tensor(STATES)
    logits = model(states, torch.full((len(states),), 1 - s, dtype=torch.float32))
    return np.asarray(logits[..., :VOCAB].softmax(-1).numpy())


def sampled(model: Others, steps: int) -> Array:
    """The distribution of samples: Bayes' rule for every token in every state, all multiplied."""
    law = np.array([float(state == (MASK, MASK)) for state in STATES])
    for s, r in pairwise(np.linspace(1, 0, steps + 1).tolist()):
        p, joint = predictions(model, s), np.linalg.inv(kernel(r)) @ kernel(s)  # q(z at s | y at r)
        rows = []
        for k, state in enumerate(STATES):
            token = [(p[k, i] @ kernel(r)[:VOCAB]) * joint[:, z] for i, z in enumerate(state)]
            rows.append(np.outer(*(w / max(w.sum(), 1e-300) for w in token)).ravel())
        law = law @ np.stack(rows)
    data = np.array([max(state) < VOCAB for state in STATES])
    assert law[data].sum() == pytest.approx(1)
    return np.asarray(law[data])


def test_formulas_agree_with_the_authors_code() -> None:
    """With a network's logits: the distribution of a step, and the integrand of the bound."""
    path = Path(__file__).parents[1] / "model" / "published" / "gidd.safetensors"
    recorded = load_file(path)
    method = GIDD(7, 0.2)
    for b, s in enumerate(recorded["time"].double().tolist()):
        p, z = recorded["logits"][b, :, :7].double().softmax(-1), recorded["x"][b]
        law = method.step_law(p, z, s, 0.6 * s)
        law = law / law.sum(1, keepdim=True)
        torch.testing.assert_close(law.float(), recorded["law"][b], rtol=1e-4, atol=1e-5)
        s_K = torch.full(z.shape, s, dtype=torch.float64)
        found = method.divergence(p, z, recorded["x_1"][b], s_K)
        torch.testing.assert_close(found.float(), recorded["elbo"][b], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_samples_follow_the_exact_chain(steps: int, exact: bool) -> None:
    model, request = Others(exact), SampleRequest((20_000, 2), steps, seed=1)
    found = histogram(METHOD.sample(model, None, request).tokens, VOCAB)  # type: ignore[arg-type]
    assert_follows(found, sampled(model, steps))
    if not exact:
        assert_differs(found, TARGET.ravel())


def test_many_steps_converge_to_the_target() -> None:
    """At least like 1 / sqrt(steps), the uniform noise before the last step."""
    distances = [np.abs(sampled(Others(), n) - TARGET.ravel()).sum() for n in (16, 32, 64)]
    assert distances[2] < 0.06
    for before, after in pairwise(distances):
        assert before / after > 1.4


def test_a_single_free_token_is_sampled_exactly() -> None:
    """The posterior of one token is exact, with any number of steps."""
    prompt = torch.tensor([1, MASK])
    request = SampleRequest((20_000, 2), 3, prompt=prompt)
    network = lambda x, t: torch.from_numpy(  # noqa: E731
        np.log(np.append(TARGET[1], 1.0))
    ).expand(*x.shape, VOCAB + 1)
    x = METHOD.sample(network, Analytic(), request).tokens  # type: ignore[arg-type]
    assert bool((x[:, 0] == 1).all())
    assert_follows(histogram(x[:, 1:], VOCAB), TARGET[1] / TARGET[1].sum())


def test_draw_options_apply_to_the_prediction() -> None:
    request = SampleRequest((256, 2), 1, seed=2)
    top = int(torch.from_numpy(TARGET.sum(1)).argmax()), int(TARGET.sum(0).argmax())
    for rule in (Analytic(temperature=1e-4), Analytic(top_p=1e-6)):
        x = METHOD.sample(Others(), rule, request).tokens  # type: ignore[arg-type]
        assert bool((x == torch.tensor(top)).all())


def integrand(model: Others, x_1: tuple[int, int], s: float) -> float:
    """E sum_i of the divergence between rates, from generators by finite differences."""
    h = 1e-6 * s * (1 - s)
    rate = np.linalg.inv(kernel(s - h)) @ (kernel(s + h) - kernel(s - h)) / (2 * h)  # [y, z]
    p, q, total = predictions(model, s), kernel(s), 0.0
    for k, state in enumerate(STATES):
        chance = math.prod(q[x, z] for x, z in zip(x_1, state, strict=True))
        for i, z in enumerate(state):
            true, ours = q[x_1[i]] / q[x_1[i], z], p[k, i] @ q[:VOCAB]
            ours = ours / ours[z]
            terms = ours - special.xlogy(true, ours) + special.xlogy(true, true) - true
            total += chance * float(np.delete(rate[:, z] * terms, z).sum())
    return total


@pytest.mark.parametrize("exact", [False, slow(True)])
def test_bound_is_the_integral_over_the_chain(exact: bool) -> None:
    """Six standard errors of the estimate: a false alarm in 5e8 runs, for fixed seeds never."""
    model, x_1 = Others(exact), (2, 0)
    area, _ = integrate.quad(
        lambda v: 2 * v * integrand(model, x_1, v * v),
        math.sqrt(S_END),
        1 - 1e-6,
        epsabs=1e-4,
        limit=60,
    )
    q, p, end = kernel(S_END), predictions(model, S_END), 0.0
    for k, state in enumerate(STATES):
        chance = math.prod(q[x, z] for x, z in zip(x_1, state, strict=True))
        for i, z in enumerate(state):
            law = p[k, i] * q[:VOCAB, z]
            end -= chance * math.log(law[x_1[i]] / law.sum())
    many = torch.tensor([x_1]).expand(4000, 2)
    bound = METHOD.likelihood(model, many, draws=64, batch_size=4000)  # type: ignore[arg-type]
    error = 6 * bound.standard_error + 1e-4
    assert abs(bound.nats_per_token - (area + end) / 2) < error
    truth = -math.log(TARGET[x_1]) / 2
    assert error < 0.04
    if exact:  # tight, except for the last step, which draws the tokens independently
        assert abs(bound.nats_per_token - truth) < error + 2e-3
    else:
        assert bound.nats_per_token > truth + 0.1


def test_other_solvers_and_fields_are_rejected() -> None:
    request = SampleRequest((2, 2), 2)
    for solver in (cwdfm.Euler(), ScoreEuler()):
        with pytest.raises(cwdfm.InputError, match=r"GIDD.*analytic"):
            METHOD.sample(Others(), solver, request)  # type: ignore[arg-type]
    for p_uniform in (0.0, 1.0, float("nan")):
        with pytest.raises(cwdfm.InputError, match="p_uniform"):
            GIDD(VOCAB, p_uniform)
