"""Mending finished sequences: tokens that the network doubts are drawn again, few at a time.

With a uniform source a network is trained to tell data from noise: p_{1|t}(x^i | x) is how likely
it finds the token that stands there to be the data's, if a share 1 - kappa_t of all tokens is
noise. In a finished sequence of its own it still finds tokens that do not fit. In each round, of
every sequence in which some token's chance is below `trust`,

    doubt^i = 1 - p_{1|t}(x^i | x) where that chance is below trust, else 0;
    i ~ doubt / sum doubt;     x^i ~ p_{1|t}(. | x) at i, by some temperature.

A sequence that the network trusts all over is done, and asks for nothing more. Other correctors
choose where to work by confidence too, within a step: Zhao et al. 2024 (informed correctors), Peng
et al. 2025 (path planning). Whatever the network finds unlikely becomes rarer, the rare and right
included: it is a way to better samples, not to those of the data's law.
"""

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.categorical import sample_categorical
from cwdfm.errors import (
    InputError,
    check_instance,
    check_integer,
    check_positive,
    check_tokens,
)
from cwdfm.model.predict import check_flow_network, evaluating, model_device, predict_rows
from cwdfm.model.protocol import Model
from cwdfm.model.rows import Rows
from cwdfm.random import Purpose, check_seed, mix, sample_index, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Solver, given
from cwdfm.solver.rework import Rework, Where, check_share
from cwdfm.solver.sample import Samples, Tick
from cwdfm.source import MaskSource, Source
from cwdfm.times import Spacing


@dataclass(frozen=True)
class Mend(Rework):
    """How to mend samples."""

    rounds: int = 40  # at most
    share: float = 0.5  # of the tokens that the network is told to take for noise
    trust: float = 0.8  # the least chance of a token that is left alone
    temperature: float = 1.0  # of the draws
    at_once: int = 1  # tokens of a sequence that are drawn anew in a round, at most

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("at_once", self.at_once)
        check_share(self.share, "the part of the tokens that is taken for noise", 0.5)
        if not isinstance(self.trust, int | float) or not 0 < self.trust <= 1:
            raise InputError(
                f"trust must lie in (0, 1], the least chance of a token that is left alone, got "
                f"{self.trust!r}; try 0.8"
            )
        check_positive("temperature", self.temperature)

    @property
    def ticks(self) -> int:
        return self.rounds

    def check(self, source: Source, solver: Solver | None = None) -> None:
        if isinstance(source, MaskSource):
            raise InputError(
                "mending asks the network which tokens it doubts, and with a mask source it is not "
                "trained to say so of tokens that it sees; use Refine (--refine) instead, or a "
                "model with a uniform source"
            )

    def work(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        solver: Solver,
        grid: Spacing,
        tokens: Tensor,
        **where: Unpack[Where],
    ) -> Samples:
        return mend(model, source, schedule, tokens, self, **where)


@torch.no_grad()
def mend(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    how: Mend | None = None,
    *,
    seed: int = 0,
    fixed: Tensor | None = None,
    index: Tensor | None = None,
    batch_size: int | None = None,
    progress: Tick | None = None,
) -> Samples:
    """Mended versions of `tokens` [B, N], data tokens; those `fixed` [B, N] or [N] stay.

    Sequence i of a seed becomes the same whatever else is mended; see `sample` for the rest.
    """
    how = Mend() if how is None else how
    check_instance("how", how, Mend, "Mend(rounds=40, trust=0.8)")
    check_flow_network(model)
    check_instance("source", source, Source, "UniformSource(vocab_size=30)")
    check_instance("schedule", schedule, Schedule, "Polynomial(2.0)")
    how.check(source)
    check_seed(seed)
    check_tokens("tokens", tokens, source.vocab_size)
    tokens = tokens.to(model_device(model) or tokens.device)
    index_B = sample_index(index, len(tokens), tokens.device)
    nowhere = torch.zeros_like(tokens, dtype=torch.bool)
    shape = (len(tokens), tokens.shape[1])
    fixed_BN = given(source, shape, tokens, nowhere if fixed is None else fixed, tokens.device)[1]
    check_integer("batch_size", len(tokens) if batch_size is None else batch_size)
    t = float(schedule.inverse(torch.tensor(1 - how.share, dtype=torch.float64)))
    parts = []
    with evaluating(model):
        for some in torch.arange(len(tokens), device=tokens.device).split(
            batch_size or len(tokens)
        ):
            work = _Work(tokens[some], fixed_BN[some], index_B[some], mix(seed, 0))
            for number in range(how.rounds):
                if len(work.open):
                    work.round(model, source, t, how, number)
                if progress is not None:
                    progress(len(some))
            parts.append(work)
    return Samples(
        tokens=torch.cat([part.tokens for part in parts]),
        updates=torch.cat([part.updates for part in parts]),
        loops=torch.cat([part.loops for part in parts]),
        evaluations=torch.cat([part.evaluations for part in parts]),
        rows=sum(part.rows for part in parts),
    )


class _Work:
    """A batch that is being mended."""

    def __init__(self, tokens_BN: Tensor, fixed_BN: Tensor, index_B: Tensor, seed: int) -> None:
        self.tokens, self.free, self.index, self.seed = tokens_BN, ~fixed_BN, index_B, seed
        self.open = torch.arange(len(tokens_BN), device=tokens_BN.device)  # sequences in doubt
        self.before = torch.full_like(tokens_BN, -1)  # the token before the last change
        self.updates = torch.zeros_like(tokens_BN, dtype=torch.int32)
        self.loops = torch.zeros_like(self.updates)
        self.evaluations = torch.zeros_like(index_B)
        self.rows = 0

    def round(self, model: Model, source: Source, t: float, how: Mend, number: int) -> None:
        """Draw the most doubted tokens of every open sequence again, and close what has none."""
        x_AN = self.tokens[self.open]
        chance_AN, drawn_AN = self._ask(model, source, x_AN, t, how, number)
        doubted_AN = (chance_AN < how.trust) & self.free[self.open]
        # A race of clocks with rates doubt: the first of them is chosen by doubt / sum doubt.
        u_AN = self._uniform(Purpose.ORDER, number)
        clock_AN = torch.where(doubted_AN, -torch.log1p(-u_AN) / (1 - chance_AN), torch.inf)
        first_AK, place_AK = clock_AN.topk(min(how.at_once, clock_AN.shape[1]), largest=False)
        chosen_AN = torch.zeros_like(doubted_AN).scatter(1, place_AK, first_AK.isfinite())
        new_AN = torch.where(chosen_AN, drawn_AN, x_AN)
        changed_AN, before_AN = new_AN != x_AN, self.before[self.open]
        self.loops[self.open] += (changed_AN & (new_AN == before_AN)).int()
        self.before[self.open] = torch.where(changed_AN, x_AN, before_AN)
        self.updates[self.open] += changed_AN.int()
        self.tokens = self.tokens.index_copy(0, self.open, new_AN)
        self.evaluations[self.open] += 1
        self.rows += x_AN.numel()
        self.open = self.open[doubted_AN.any(1)]

    def _ask(
        self, model: Model, source: Source, x_AN: Tensor, t: float, how: Mend, number: int
    ) -> tuple[Tensor, Tensor]:
        """The chance of every token, float64, and one drawn in its place, both [A, N]."""
        u_K = self._uniform(Purpose.PROPOSAL, number).flatten()
        x_K = x_AN.flatten()
        t_A = torch.full((len(x_AN),), t, dtype=torch.float64, device=x_AN.device)
        rows = Rows.of(torch.ones_like(x_AN, dtype=torch.bool), crowded=True)
        chances, drawn, begin = [], [], 0
        for logits_kV in predict_rows(model, source, x_AN, t_A, rows):
            part = slice(begin, begin + len(logits_kV))
            own_k = logits_kV.gather(1, x_K[part, None])[:, 0].double()
            chances.append((own_k - logits_kV.double().logsumexp(1)).exp())
            drawn.append(sample_categorical(logits_kV, u_K[part], temperature=how.temperature))
            begin = part.stop
        return torch.cat(chances).view_as(x_AN), torch.cat(drawn).view_as(x_AN)

    def _uniform(self, purpose: Purpose, number: int) -> Tensor:
        length = self.tokens.shape[1]
        return uniform_BN(self.seed, purpose, self.index[self.open], number, length)
