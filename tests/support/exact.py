"""The referee: exact laws of small chains, by enumeration, in plain numpy.

Nothing here uses the library's arithmetic: posteriors by Bayes' rule over all sequences, weights by
their definition, transition matrices by summing over all proposals, generators for `expm`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = tuple[int, ...]
# (revealed [..., N], predictions [..., N, V]) -> unnormalised log-weight [..., N]
LogWeight = Callable[[NDArray[np.bool_], Array], Array]


def correlated_target(vocab: int, length: int, seed: int, power: float = 3.0) -> Array:
    """A random joint law [V, ..., V] far from independent."""
    target = np.random.default_rng(seed).random((vocab,) * length) ** power + 1e-3
    return np.asarray(target / target.sum())


def neighbor(radius: int, scale: float, *, cut: bool = False) -> LogWeight:
    def log_weight(revealed: NDArray[np.bool_], _: Array) -> Array:
        place, window = np.arange(revealed.shape[-1]), range(-radius, radius + 1)
        seen = [
            revealed[..., (place + o) % len(place)]
            & ((place + o >= 0) & (place + o < len(place)) | (not cut))
            for o in window
        ]
        return np.asarray(scale * np.sum(seen, axis=0))

    return log_weight


def entropy(beta: float) -> LogWeight:
    def log_weight(_: NDArray[np.bool_], p: Array) -> Array:
        return np.asarray(beta * (p * np.log(np.where(p > 0, p, 1.0))).sum(-1))

    return log_weight


def alphas(log_weight: LogWeight | None, revealed: NDArray[np.bool_], p: Array) -> Array:
    """alpha: mean 1 over the masked set, 0 elsewhere."""
    masked = ~revealed
    if log_weight is None:
        return masked.astype(float)
    raw = np.exp(log_weight(revealed, p)) * masked
    mean = raw.sum(-1, keepdims=True) / np.maximum(masked.sum(-1, keepdims=True), 1)
    return np.asarray(raw / np.where(mean > 0, mean, 1.0))


def ordered_draws(weights: Array, count: int) -> dict[tuple[int, ...], float]:
    """Draws without replacement in proportion to the weights, as long as one is positive."""
    if count == 0 or not weights.any():
        return {(): 1.0}
    found = {}
    for i in np.flatnonzero(weights):
        rest = np.where(np.arange(len(weights)) == i, 0.0, weights)
        for order, chance in ordered_draws(rest, count - 1).items():
            found[int(i), *order] = chance * weights[i] / weights.sum()
    return found


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

    @cached_property
    def states(self) -> list[State]:
        return list(product(range(self.vocab + self.mask), repeat=self.length))

    @cached_property
    def data_YN(self) -> NDArray[np.int64]:
        """All V^N sequences of data; also all that can be proposed."""
        return np.array(list(product(range(self.vocab), repeat=self.length)))

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
        same_YN = self.data_YN == x
        if self.mask:
            seen_YN = same_YN | (np.array(x) == self.vocab)
        else:
            seen_YN = kappa * same_YN + (1 - kappa) / self.vocab
        likelihood_Y = self.target.ravel() * seen_YN.prod(1)
        p_NV = np.stack([np.bincount(y, likelihood_Y, self.vocab) for y in self.data_YN.T])
        return np.asarray(p_NV / p_NV.sum(1, keepdims=True))

    def drawn_from(self, p: Array) -> Array:
        """The posterior [..., V] after temperature and nucleus."""
        p = p ** (1 / self.temperature)
        p /= p.sum(-1, keepdims=True)
        order = np.argsort(-p, axis=-1, kind="stable")
        likely = np.take_along_axis(p, order, -1)
        before = np.insert(np.cumsum(likely, -1)[..., :-1], 0, 0.0, axis=-1)
        cut = np.empty_like(p)
        np.put_along_axis(cut, order, np.where(before < self.top_p, likely, 0.0), -1)
        return np.asarray(cut / cut.sum(-1, keepdims=True))

    def step_matrix(
        self, kappa: float, forward: float | Array, backward: float | Array = 0.0
    ) -> Array:
        """The exact law of one solver step, [states, states]; forward = inf for the last one.

        By summing over all proposals, given which the tokens move on their own. The hazards may
        differ between states and coordinates: [S, N].
        """
        p_SNV = np.stack([self.posterior(x, kappa) for x in self.states])
        chance_SYN = self.drawn_from(p_SNV)[:, np.arange(self.length), self.data_YN]
        law_SYNT = self._outcomes(p_SNV, forward, backward)
        matrix = chance_SYN.prod(-1)[..., None]
        for i in range(self.length):
            matrix = matrix[..., None] * law_SYNT[:, :, i, None]
            matrix = matrix.reshape(*matrix.shape[:2], -1)
        return np.asarray(matrix.sum(1))

    def _outcomes(self, p_SNV: Array, forward: float | Array, backward: float | Array) -> Array:
        """Where each token goes in one step from all states, given the proposals, [S, Y, N, T]."""
        token = np.eye(self.vocab + self.mask)
        x_S1N, v_YN = np.array(self.states)[:, None], self.data_YN
        fixed_N = np.array([self.is_fixed(i) for i in range(self.length)])
        revealed_SYN = fixed_N | (x_S1N != self.vocab if self.mask else x_S1N == v_YN)
        revealed_SYN = np.broadcast_to(revealed_SYN, (len(x_S1N), *v_YN.shape))
        if np.ndim(forward) == 0 and math.isinf(forward):
            return np.where(revealed_SYN[..., None], token[x_S1N], token[v_YN])
        alpha_SYN = alphas(self.log_weight, revealed_SYN, p_SNV[:, None])
        forward, backward = (np.broadcast_to(h, x_S1N[:, 0].shape) for h in (forward, backward))
        go_SYN = np.where(revealed_SYN, 0.0, alpha_SYN * forward[:, None])
        # p_0 puts 1/V on the present token of a uniform source, all on the mask otherwise
        noise_T = token[self.vocab] if self.mask else np.full(self.vocab, 1 / self.vocab)
        backs_S1NT = backward[:, None, :, None] * noise_T * (1 - token[x_S1N]) * ~fixed_N[:, None]
        rates_SYNT = go_SYN[..., None] * token[v_YN] + backs_S1NT
        total_SYN1 = rates_SYNT.sum(-1, keepdims=True)
        jump_SYNT = -np.expm1(-total_SYN1) * rates_SYNT / np.where(total_SYN1 > 0, total_SYN1, 1.0)
        return np.asarray(np.exp(-total_SYN1) * token[x_S1N] + jump_SYNT)

    def generator(self, kappa: float) -> Array:
        """The chain's rate matrix per unit of integrated hazard, [states, states]."""
        step = 1e-7
        return (self.step_matrix(kappa, step) - np.eye(len(self.states))) / step

    def marginal(self, kappa: float) -> Array:
        """p_t(x) of all states, by summing over all data."""
        return np.array([self._joint(x, kappa).sum() for x in self.states])

    def conditional(self, x: State, i: int, kappa: float) -> Array:
        """p(x_1^i = v | x^-i), [V]: the posterior that does not see coordinate i."""
        joint_Y = self._joint(x, kappa, without=i)
        law = np.bincount(self.data_YN[:, i], joint_Y, self.vocab)
        return np.asarray(law / law.sum())

    def _joint(self, x: State, kappa: float, without: int | None = None) -> Array:
        """p(x_1) p_t(x | x_1) for all data [Y], over all coordinates but one."""
        same_YN = self.data_YN == np.array(x)
        noise_N = np.array(x) == self.vocab if self.mask else np.full(self.length, 1 / self.vocab)
        chance_YN = kappa * same_YN + (1 - kappa) * noise_N
        if without is not None:
            chance_YN[:, without] = 1.0
        return np.asarray(self.target.ravel() * chance_YN.prod(1))

    def data_law(self, law: Array) -> Array:
        """The part of a law over states that falls on data sequences, in row-major order."""
        inside = [max(x) < self.vocab for x in self.states]
        assert abs(law[np.array(inside)].sum() - 1) < 1e-6, "mask ids left over"
        return np.asarray(law[np.array(inside)])
