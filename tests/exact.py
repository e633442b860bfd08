"""The referee: exact laws of small chains, by enumeration, in plain numpy.

Nothing here uses the library's arithmetic: posteriors by Bayes' rule over all sequences, weights by
their definition, transition matrices by summing over all proposals, generators for `expm`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = tuple[int, ...]
# (revealed, predictions [N, V]) -> unnormalised log-weight [N]
LogWeight = Callable[[tuple[bool, ...], Array], Array]


def correlated_target(vocab: int, length: int, seed: int, power: float = 3.0) -> Array:
    """A random joint law [V, ..., V] far from independent."""
    target = np.random.default_rng(seed).random((vocab,) * length) ** power + 1e-3
    return np.asarray(target / target.sum())


def neighbor(radius: int, scale: float) -> LogWeight:
    def log_weight(revealed: tuple[bool, ...], _: Array) -> Array:
        n = len(revealed)
        window = range(-radius, radius + 1)
        return scale * np.array([sum(revealed[(i + o) % n] for o in window) for i in range(n)])

    return log_weight


def entropy(beta: float) -> LogWeight:
    def log_weight(_: tuple[bool, ...], p_NV: Array) -> Array:
        return np.array([beta * sum(q * math.log(q) for q in row if q > 0) for row in p_NV])

    return log_weight


def alphas(log_weight: LogWeight | None, revealed: tuple[bool, ...], p_NV: Array) -> Array:
    """alpha: mean 1 over the masked set, 0 elsewhere."""
    masked = ~np.array(revealed)
    if log_weight is None or not masked.any():
        return masked.astype(float)
    raw = np.exp(log_weight(revealed, p_NV)) * masked
    return np.asarray(raw / raw.sum() * masked.sum())


@dataclass(frozen=True)
class Chain:
    """The chain that samples `target` from a mask or uniform source."""

    target: Array  # [V, ..., V]
    mask: bool
    log_weight: LogWeight | None = None
    top_p: float = 1.0
    temperature: float = 1.0
    fixed: tuple[bool, ...] | None = None  # which positions never move

    @property
    def vocab(self) -> int:
        return int(self.target.shape[0])

    @property
    def length(self) -> int:
        return self.target.ndim

    @property
    def states(self) -> list[State]:
        return list(product(range(self.vocab + self.mask), repeat=self.length))

    def is_fixed(self, i: int) -> bool:
        return self.fixed is not None and self.fixed[i]

    def start(self, prompt: State | None = None) -> Array:
        """The law of the initial state; at fixed positions the prompt."""
        law = np.zeros(len(self.states))
        for s, x in enumerate(self.states):
            ok = all(
                x[i] == prompt[i]
                if prompt is not None and self.is_fixed(i)
                else (x[i] == self.vocab if self.mask else True)
                for i in range(self.length)
            )
            law[s] = float(ok)
        return np.asarray(law / law.sum())

    def posterior(self, x: State, kappa: float) -> Array:
        """p_{1|t}^i(v | x), [N, V], by Bayes' rule over all sequences."""
        p_NV = np.zeros((self.length, self.vocab))
        for y in product(range(self.vocab), repeat=self.length):
            likelihood = float(self.target[y])
            for a, b in zip(x, y, strict=True):
                if not self.mask:
                    likelihood *= kappa * (a == b) + (1 - kappa) / self.vocab
                elif a != self.vocab:
                    likelihood *= a == b
            for i, v in enumerate(y):
                p_NV[i, v] += likelihood
        return np.asarray(p_NV / p_NV.sum(1, keepdims=True))

    def drawn_from(self, p_NV: Array) -> Array:
        """The posterior after temperature and nucleus."""
        p_NV = p_NV ** (1 / self.temperature)
        p_NV /= p_NV.sum(1, keepdims=True)
        cut_NV = np.zeros_like(p_NV)
        for i, row in enumerate(p_NV):
            mass = 0.0
            for v in sorted(range(self.vocab), key=lambda v: -row[v]):
                if mass < self.top_p:
                    cut_NV[i, v] = row[v]
                mass += row[v]
        return np.asarray(cut_NV / cut_NV.sum(1, keepdims=True))

    def step_matrix(self, kappa: float, forward: float, backward: float = 0.0) -> Array:
        """The exact law of one solver step, [states, states]; forward = inf for the last one."""
        states = self.states
        place = {x: s for s, x in enumerate(states)}
        matrix = np.zeros((len(states), len(states)))
        for s, x in enumerate(states):
            p_NV = self.posterior(x, kappa)
            q_NV = self.drawn_from(p_NV)
            for v in product(range(self.vocab), repeat=self.length):
                chance = math.prod(q_NV[i, v[i]] for i in range(self.length))
                if chance == 0:
                    continue
                outcomes = self._outcomes(x, v, p_NV, forward, backward)
                for combination in product(*(o.items() for o in outcomes)):
                    y = tuple(token for token, _ in combination)
                    matrix[s, place[y]] += chance * math.prod(p for _, p in combination)
        return matrix

    def _outcomes(
        self, x: State, v: State, p_NV: Array, forward: float, backward: float
    ) -> list[dict[int, float]]:
        """Where each coordinate goes in one step, given the proposals v."""
        masked_token = self.vocab
        revealed = tuple(
            self.is_fixed(i) or (x[i] != masked_token if self.mask else x[i] == v[i])
            for i in range(self.length)
        )
        alpha = alphas(self.log_weight, revealed, p_NV)
        outcomes = []
        for i in range(self.length):
            if self.is_fixed(i):
                outcomes.append({x[i]: 1.0})
                continue
            if math.isinf(forward):
                outcomes.append({x[i] if revealed[i] else v[i]: 1.0})
                continue
            go = 0.0 if revealed[i] else alpha[i] * forward
            # p_0 puts 1/V on the present token of a uniform source, all on the mask otherwise
            others = [masked_token] if self.mask else list(range(self.vocab))
            backs = {y: backward / len(others) for y in others if y != x[i]}
            total = go + sum(backs.values())
            jump = 1 - math.exp(-total)
            law = {x[i]: 1 - jump}
            if total > 0:
                for y, rate in backs.items():
                    law[y] = law.get(y, 0.0) + jump * rate / total
                law[v[i]] = law.get(v[i], 0.0) + jump * go / total
            outcomes.append({y: p for y, p in law.items() if p > 0})
        return outcomes

    def generator(self, kappa: float) -> Array:
        """The chain's rate matrix per unit of integrated hazard, [states, states]."""
        step = 1e-7
        return (self.step_matrix(kappa, step) - np.eye(len(self.states))) / step

    def data_law(self, law: Array) -> Array:
        """The part of a law over states that falls on data sequences, in row-major order."""
        inside = [max(x) < self.vocab for x in self.states]
        assert abs(law[np.array(inside)].sum() - 1) < 1e-6, "mask ids left over"
        return np.asarray(law[np.array(inside)])
