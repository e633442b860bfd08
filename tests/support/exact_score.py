"""Reference for SEDD: scores, chains and bounds of small targets, by matrices and enumeration.

Nothing here uses the library's closed forms: transition probabilities are matrix exponentials of Q,
and sums over y are explicit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import integrate, special
from scipy.linalg import expm
from torch import Tensor

Array = NDArray[np.float64]
State = tuple[int, ...]
Model = Callable[[Tensor, Tensor], Tensor]
FLOOR = 1e-3  # of the uniform graph's staggered score, as a fraction of the score


def rate_matrix(vocab: int, absorb: bool) -> Array:
    """Q [T, T]: every token to the mask at rate 1, or to each token at rate 1 / V."""
    if not absorb:
        return np.full((vocab, vocab), 1 / vocab) - np.eye(vocab)
    q = np.zeros((vocab + 1, vocab + 1))
    for v in range(vocab):
        q[v, v], q[v, vocab] = -1, 1
    return q


class ExactScore:
    """The exact network: log-scores of a target [V, ..., V], in the form of SEDD's logits."""

    def __init__(self, target: Array, absorb: bool) -> None:
        self.target, self.absorb, self.vocab = torch.from_numpy(target), absorb, len(target)
        self.q = torch.from_numpy(rate_matrix(self.vocab, absorb))

    def law(self, sigma_B: Tensor) -> Tensor:
        """p_sigma [B, T, ..., T]."""
        kernel_BVT = torch.matrix_exp(sigma_B[:, None, None] * self.q)[:, : self.vocab]
        p = self.target.expand(len(sigma_B), *self.target.shape)
        for _ in range(self.target.dim()):  # moves the first axis to the end
            p = torch.einsum("bv...,bvt->b...t", p, kernel_BVT)
        return p

    def score(self, x_BN: Tensor, sigma_B: Tensor) -> Tensor:
        """p_sigma(y) / p_sigma(x) [B, N, T] of all y that differ from x in one token."""
        distinct, which_B = torch.unique(sigma_B.double(), return_inverse=True)
        p = self.law(distinct)
        present_B = p[(which_B, *x_BN.T)]
        columns = []
        for i in range(x_BN.shape[1]):
            others = [x_BN[:, j] for j in range(x_BN.shape[1]) if j != i]
            columns.append(p.movedim(i + 1, -1)[(which_B, *others)] / present_B[:, None])
        return torch.stack(columns, dim=1)

    def __call__(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        log_score = self.score(x_t, sigma).log()
        if self.absorb:
            log_score = log_score + (self.vocab * sigma.double().expm1()).log()[:, None, None]
            log_score[..., -1] = 0.3  # never read
        return log_score


def flawed(model: Model, absorb: bool) -> Model:
    """An inexact network, whose scores also sum to the wrong total."""

    def logits(x_t: Tensor, sigma: Tensor) -> Tensor:
        z = 0.7 * model(x_t, sigma)
        z[..., 0] += 0.4
        return z + 0.3 * x_t[:, :1, None] - (0.5 if absorb else 0.2)

    return logits


@dataclass(frozen=True)
class Process:
    """The generative process of any network, for `length` tokens."""

    model: Model
    vocab: int
    length: int
    absorb: bool

    @cached_property
    def q(self) -> Array:
        return rate_matrix(self.vocab, self.absorb)

    @cached_property
    def states(self) -> list[State]:
        return list(product(range(self.vocab + self.absorb), repeat=self.length))

    def scores(self, sigma: float) -> Array:
        """s [states, N, T] from the network's logits; 1 at the current token."""
        x = torch.tensor(self.states)
        sigma_B = torch.full((len(x),), sigma, dtype=torch.float32)  # as in the library
        s = self.model(x, sigma_B).double().exp().numpy()
        if self.absorb:
            s = s / (self.vocab * math.expm1(sigma))
        np.put_along_axis(s, x[..., None].numpy(), 1.0, axis=-1)
        return np.asarray(s)

    def token_law(self, s: Array, x: int, sigma: float, change: float) -> Array:
        """Tweedie's rule for one token, with negative parts clipped."""
        if self.absorb and x < self.vocab:
            return np.asarray(np.eye(len(s))[x])
        staggered = s @ expm(-change * self.q)
        staggered = np.maximum(staggered, 0 if self.absorb else FLOOR * s)
        law = staggered * expm(change * self.q)[:, x]
        if self.absorb and change == sigma:
            law[-1] = 0.0
        return np.asarray(law / law.sum())

    def euler_law(self, s: Array, x: int, step: float) -> Array:
        """The first-order step over `step` = (s - s') d sigma/ds."""
        law = step * self.q[:, x] * s
        law[x] = 0.0
        law[x] = max(0.0, 1 - law.sum())
        return np.asarray(law / law.sum())

    def matrix(self, s: Array, token_law: Callable[[Array, int], Array]) -> Array:
        """The step matrix [states, states] of independent tokens, by token_law(s[T], token)."""
        rows = []
        for s_NT, x in zip(s, self.states, strict=True):
            row = np.ones(1)
            for s_T, token in zip(s_NT, x, strict=True):
                row = np.outer(row, token_law(s_T, token)).ravel()
            rows.append(row)
        return np.stack(rows)

    def step(
        self, sigma: float, change: float, step: float | None, *, begins: bool
    ) -> Callable[[Array, int], Array]:
        """The law of a token after one step, of Euler's with `step`; the first one begins."""

        def law(s: Array, x: int) -> Array:
            if step is None:
                found = self.token_law(s, x, sigma, change)
            else:
                found = self.euler_law(s, x, step)
            return self.first(s, found, sigma) if begins else found

        return law

    def sampled(self, sigmas: list[float], steps: list[float] | None = None) -> Array:
        """The distribution of samples along `sigmas`; with `steps`, by Euler steps."""
        law = self.noise()
        for n, sigma in enumerate(sigmas):
            last = n == len(sigmas) - 1
            change = sigma if last else sigma - sigmas[n + 1]
            step = None if steps is None or last else steps[n]
            token_law = self.step(sigma, change, step, begins=n == 0 and not last)
            law = law @ self.matrix(self.scores(sigma), token_law)
        return self.data(law)

    def noise(self) -> Array:
        law = np.array([float(not self.absorb or min(x) == self.vocab) for x in self.states])
        return np.asarray(law / law.sum())

    def first(self, s: Array, law: Array, sigma: float) -> Array:
        """The distribution of a token after the first step, which starts from infinite noise."""
        if not self.absorb:
            return law
        drawn = np.append(s[:-1] / s[:-1].sum(), 0.0)
        return np.asarray(math.exp(-sigma) * drawn + (1 - math.exp(-sigma)) * law)

    def begun(self, sigma: float) -> Array:
        """The law over states when the chain begins at sigma instead of infinite noise."""
        s = self.scores(sigma)
        stay = np.eye(s.shape[-1])
        return np.asarray(self.noise() @ self.matrix(s, lambda s, x: self.first(s, stay[x], sigma)))

    def generator(self, sigma: float) -> Array:
        """The reverse chain's rates per unit of sigma, [states, states]."""
        place = {x: k for k, x in enumerate(self.states)}
        rates = np.zeros((len(place), len(place)))
        s = self.scores(sigma)
        for x, k in place.items():
            for i, y in product(range(self.length), range(s.shape[-1])):
                if y != x[i]:
                    to = place[(*x[:i], y, *x[i + 1 :])]
                    rates[k, to] += self.q[y, x[i]] * s[k, i, y]
        return np.asarray(rates - np.diag(rates.sum(1)))

    def limit(self, high: float, low: float, pieces: int) -> Array:
        """The distribution of samples with infinitely many steps to `low`, then the last step."""
        law = self.begun(high)
        # uniform in sqrt(sigma), since the rates grow as sigma -> 0
        edges = np.linspace(math.sqrt(high), math.sqrt(low), pieces + 1) ** 2
        for a, b in pairwise(edges):
            law = law @ expm((a - b) * self.generator((a + b) / 2))
        last = self.step(low, low, None, begins=False)
        return self.data(law @ self.matrix(self.scores(low), last))

    def data(self, law: Array) -> Array:
        inside = np.array([max(x) < self.vocab for x in self.states])
        assert abs(law[inside].sum() - 1) < 1e-6, "mask ids left over"
        return np.asarray(law[inside])

    def noised(self, x_1: State, sigma: float) -> Array:
        """p(x | x_1) of all states."""
        kernel = expm(sigma * self.q)
        return np.array(
            [math.prod(kernel[a, b] for a, b in zip(x_1, x, strict=True)) for x in self.states]
        )

    def entropy(self, x_1: State, sigma: float) -> float:
        """E sum_i sum_{y != x} Q(y, x) [s - r log s + r (log r - 1)] at one sigma."""
        kernel, s, x = expm(sigma * self.q), self.scores(sigma), np.array(self.states)
        chance = self.noised(x_1, sigma)
        s, x, chance = s[chance > 0], x[chance > 0], chance[chance > 0]
        to = kernel[list(x_1)]  # [N, T]
        r = to / to[np.arange(self.length), x][..., None]  # [states, N, T]
        rate = self.q.T[x]
        np.put_along_axis(rate, x[..., None], 0.0, axis=-1)
        some = rate > 0
        s, r, weight = s[some], r[some], (chance[:, None, None] * rate)[some]
        return float(weight @ (s - special.xlogy(r, s) + special.xlogy(r, r) - r))

    def bound(self, x_1: State, high: float, low: float) -> float:
        """The bound on -log p(x_1), with the integral over sigma by quadrature."""
        start = 0.0
        for p, q in zip(self.noised(x_1, high), self.begun(high), strict=True):
            start += p * math.log(p / q) if p > 0 else 0.0
        area, _ = integrate.quad(
            lambda v: 2 * v * self.entropy(x_1, v**2),
            math.sqrt(low),
            math.sqrt(high),
            epsabs=1e-5,
            epsrel=1e-5,
            limit=200,
        )
        s, end = self.scores(low), 0.0
        for k, chance in enumerate(self.noised(x_1, low)):
            for i, x in enumerate(self.states[k] if chance > 0 else ()):
                end -= chance * math.log(self.token_law(s[k, i], x, low, low)[x_1[i]])
        return float(start + area + end)


# Noise settings of SEDD, including short ones, where the start is a large part of the bound.
SETTINGS: dict[str, dict[str, Any]] = {
    "loglinear": {"noise": "loglinear"},
    "geometric": {"noise": "geometric"},
    "loglinear-short": {"noise": "loglinear", "epsilon": 0.3},
    "geometric-short": {"noise": "geometric", "sigma_max": 1.0},
}
