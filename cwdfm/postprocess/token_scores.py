"""Reading finished sequences: what a network makes of every token in the light of the others.

Its chance of the token that stands at i, with a share of all tokens noise (kappa_t = 1 - share), is

    uniform source:  p_{1|t}(x^i | x),  since it is trained to tell data from noise by itself;
    mask source:     p_{1|t}(x^i | x without the tokens of i's group),  the groups making up x:

one evaluation, or one for each of 1 / share random groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.random import Purpose, derive_seed, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.source import Source


@dataclass(frozen=True)
class Read:
    """What a network makes of sequences."""

    chance: Tensor  # [A, N] float64: of the tokens that stand there; 1 where they are given
    drawn: Tensor  # [A, N] int64: others in their place
    evaluations: Tensor  # [A] int64: what that took
    rows: int


class Reader:
    """Shows sequences of N tokens to a network."""

    def __init__(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        length: int,
        *,
        share: float,
        seed: int,
        temperature: float | None = None,
        top_p: float | None = None,
    ) -> None:
        self.model, self.source, self.seed = model, source, derive_seed(seed, 0)
        # Where noise looks like data, a network can judge the tokens that it is shown.
        self.groups = min(length, max(1, round(1 / share))) if source.marks_noise else None
        kappa = 1 - (share if self.groups is None else 1 / self.groups)
        self.t = float(schedule.inverse(torch.tensor(kappa, dtype=torch.float64)))
        self.temperature = 1.0 if temperature is None else temperature
        self.top_p = 1.0 if top_p is None else top_p

    def read(
        self,
        x_AN: Tensor,
        free_AN: Tensor,
        index_A: Tensor,
        number: int,
        *,
        unit: int = 1,
        draw: bool = True,
    ) -> Read:
        """In round `number`, sequences numbered index_A, in a batch of a multiple of `unit`.

        Without `draw` the tokens stand for those that would be drawn in their place.
        """
        size, more = len(x_AN), -len(x_AN) % unit
        x_AN, free_AN, index_A = (_longer(each, more) for each in (x_AN, free_AN, index_A))
        u_AN = self.uniform(Purpose.PROPOSAL, x_AN, index_A, number)
        t_A = torch.full((len(x_AN),), self.t, dtype=torch.float64, device=x_AN.device)
        found = Read(torch.ones_like(u_AN), x_AN, torch.zeros_like(index_A), 0)
        for asked_AN, seen_AN in self._views(x_AN, free_AN, index_A, number):
            rows = Positions.of(asked_AN, dense=True)
            x_K, u_K = rows.take(x_AN), rows.take(u_AN)
            chances, drawn = [u_K[:0]], [x_K[:0]]
            for k, logits_kV in predict_logits(self.model, self.source, seen_AN, t_A, rows):
                own_k = logits_kV.gather(1, x_K[k, None])[:, 0].double()
                chances.append((own_k - logits_kV.double().logsumexp(1)).exp())
                drawn.append(self._draw(logits_kV, u_K[k]) if draw else x_K[k])
            found = Read(
                chance=rows.replace(found.chance, torch.cat(chances)),
                drawn=rows.replace(found.drawn, torch.cat(drawn)),
                evaluations=found.evaluations + asked_AN.any(1).long(),
                rows=found.rows + int(asked_AN[:size].sum()),
            )
        parts = (found.chance[:size], found.drawn[:size], found.evaluations[:size])
        return Read(*parts, found.rows)

    def _draw(self, logits_kV: Tensor, u_k: Tensor) -> Tensor:
        return sample_categorical(logits_kV, u_k, temperature=self.temperature, top_p=self.top_p)

    def _views(
        self, x_AN: Tensor, free_AN: Tensor, index_A: Tensor, number: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Which tokens are asked for, and what the network sees meanwhile, both [A, N]."""
        if self.groups is None:
            yield free_AN, x_AN
            return
        rank_AN = self.uniform(Purpose.TIE, x_AN, index_A, number).argsort(1).argsort(1)
        noise_AN = self.source.noise(index_A, x_AN.shape[1], seed=self.seed, step=number)
        for group in range(self.groups):
            hidden_AN = free_AN & (rank_AN % self.groups == group)
            yield hidden_AN, torch.where(hidden_AN, noise_AN, x_AN)

    def uniform(self, purpose: Purpose, x_AN: Tensor, index_A: Tensor, number: int) -> Tensor:
        return uniform_BN(self.seed, purpose, index_A, number, x_AN.shape[1])


def _longer(x_A: Tensor, more: int) -> Tensor:
    """x_A with its last row a few times more."""
    return torch.cat([x_A, x_A[-1:].expand(more, *x_A.shape[1:])]) if more else x_A
