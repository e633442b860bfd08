"""Mending finished sequences: tokens that the network doubts are drawn again, few at a time.

In a finished sequence the network still finds tokens that do not fit. Its chance of the token that
stands at i, with a share of all tokens noise, is

    uniform source:  p_{1|t}(x^i | x),  since it is trained to tell data from noise by itself;
    mask source:     p_{1|t}(x^i | x without the tokens of i's group),  the groups making up x:

one evaluation, or one for each of 1 / share random groups. In each round, of every sequence in
which some chance is below `trust`,

    doubt^i = 1 - chance^i where the chance is below trust, else 0;
    i ~ doubt / sum doubt;     x^i ~ that p_{1|t}(. | .) at i, by temperature and nucleus.

A sequence that is trusted all over is done, and asks for nothing more. Other correctors choose by
confidence where to work too, within the run: Zhao et al. 2024 (informed correctors), Peng et al.
2025 (path planning). Whatever the network finds unlikely becomes rarer, the rare and right
included: this is a way to better samples, not to those of the data's law.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.categorical import check_draw, sample_categorical
from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.model.predict import check_flow_network, check_split, evaluating, predict_rows
from cwdfm.model.protocol import Model
from cwdfm.model.rows import Rows
from cwdfm.random import Purpose, mix, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.solver.base import Solver
from cwdfm.solver.rework import Rework, Where, check_share, finished
from cwdfm.solver.sample import Samples, Tick
from cwdfm.solver.visit import QUARTERS
from cwdfm.source import Source
from cwdfm.times import Spacing

# (share, trust), by whether the network is asked for what it sees.
USUAL = {True: (0.5, 0.8), False: (0.125, 0.05)}


@dataclass(frozen=True)
class Mend(Rework):
    """How to mend samples. None stands for what suits the source: see USUAL."""

    rounds: int = 40  # at most
    share: float | None = None  # of the tokens that is noise to the network
    trust: float | None = None  # the least chance of a token that is left alone
    temperature: float | None = None  # of the draws; None: the solver's own, 1 where there is none
    top_p: float | None = None  # their nucleus; None: the solver's own
    at_once: int = 1  # tokens of a sequence that are drawn anew in a round, at most

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("at_once", self.at_once)
        if self.share is not None:
            check_share(self.share, "the part of the tokens that is noise to the network", 0.5)
        if self.trust is not None and not (
            isinstance(self.trust, int | float) and 0 < self.trust <= 1
        ):
            raise InputError(
                f"trust must lie in (0, 1], the least chance of a token that is left alone, got "
                f"{self.trust!r}; try 0.8 with a uniform source, 0.05 with a mask source"
            )
        check_draw(
            1.0 if self.temperature is None else self.temperature,
            1.0 if self.top_p is None else self.top_p,
            torch.float64,
        )

    @property
    def ticks(self) -> int:
        return self.rounds

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
        how = self
        if how.temperature is None:
            how = replace(how, temperature=getattr(solver, "temperature", None))
        if how.top_p is None:
            how = replace(how, top_p=getattr(solver, "top_p", None))
        return mend(model, source, schedule, tokens, how, **where)


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
    tokens, fixed_BN, index_B = finished(model, source, schedule, tokens, fixed, index, seed)
    check_integer("batch_size", len(tokens) if batch_size is None else batch_size)
    reader = _Reader(model, source, schedule, how, mix(seed, 0), tokens.shape[1])
    everything = torch.arange(len(tokens), device=tokens.device)
    parts = []
    with evaluating(model):
        check_split(model, tokens[:1], reader.t)
        for some in everything.split(batch_size or len(tokens)):
            work = _Work(tokens[some], fixed_BN[some], index_B[some])
            for number in range(how.rounds):
                if len(work.open):
                    work.round(reader, number)
                if progress is not None:
                    progress(len(some))
            parts.append(work.samples())
    return Samples.joined(parts)


@dataclass(frozen=True)
class _Read:
    """What a network makes of sequences."""

    chance: Tensor  # [A, N] float64: of the tokens that stand there; 1 where they are given
    drawn: Tensor  # [A, N] int64: others in their place
    evaluations: Tensor  # [A] int64: what that took
    rows: int


class _Reader:
    """Shows sequences to a network."""

    def __init__(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        how: Mend,
        seed: int,
        length: int,
    ) -> None:
        self.model, self.source, self.how, self.seed = model, source, how, seed
        # Whether it judges what it sees: where noise looks like data.
        sees = source.revealed(torch.zeros(1, 1, dtype=torch.int64)) is None
        share, trust = USUAL[sees]
        share, self.trust = how.share or share, how.trust or trust
        self.groups = None if sees else min(length, max(1, round(1 / share)))
        kappa = 1 - (share if self.groups is None else 1 / self.groups)
        self.t = float(schedule.inverse(torch.tensor(kappa, dtype=torch.float64)))
        self.temperature = 1.0 if how.temperature is None else how.temperature
        self.top_p = 1.0 if how.top_p is None else how.top_p

    def read(self, x_AN: Tensor, free_AN: Tensor, index_A: Tensor, number: int, unit: int) -> _Read:
        """In round `number`, sequences numbered index_A, in a batch of a multiple of `unit`."""
        size, more = len(x_AN), -len(x_AN) % unit
        x_AN, free_AN, index_A = (_longer(each, more) for each in (x_AN, free_AN, index_A))
        u_AN = self.uniform(Purpose.PROPOSAL, x_AN, index_A, number)
        t_A = torch.full((len(x_AN),), self.t, dtype=torch.float64, device=x_AN.device)
        found = _Read(torch.ones_like(u_AN), x_AN, torch.zeros_like(index_A), 0)
        for asked_AN, seen_AN in self._views(x_AN, free_AN, index_A, number):
            rows = Rows.of(asked_AN, crowded=True)
            x_K, u_K = rows.take(x_AN), rows.take(u_AN)
            chances, drawn, begin = [u_K[:0]], [x_K[:0]], 0
            for logits_kV in predict_rows(self.model, self.source, seen_AN, t_A, rows):
                part = slice(begin, begin + len(logits_kV))
                own_k = logits_kV.gather(1, x_K[part, None])[:, 0].double()
                chances.append((own_k - logits_kV.double().logsumexp(1)).exp())
                drawn.append(
                    sample_categorical(
                        logits_kV, u_K[part], temperature=self.temperature, top_p=self.top_p
                    )
                )
                begin = part.stop
            found = _Read(
                chance=rows.replace(found.chance, torch.cat(chances)),
                drawn=rows.replace(found.drawn, torch.cat(drawn)),
                evaluations=found.evaluations + asked_AN.any(1).long(),
                rows=found.rows + int(asked_AN[:size].sum()),
            )
        parts = (found.chance[:size], found.drawn[:size], found.evaluations[:size])
        return _Read(*parts, found.rows)

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


class _Work:
    """A batch that is being mended."""

    def __init__(self, tokens_BN: Tensor, fixed_BN: Tensor, index_B: Tensor) -> None:
        self.tokens, self.free, self.index = tokens_BN, ~fixed_BN, index_B
        self.open = torch.arange(len(tokens_BN), device=tokens_BN.device)  # sequences in doubt
        self.before = torch.full_like(tokens_BN, -1)  # the token before the last change
        self.updates = torch.zeros_like(tokens_BN, dtype=torch.int32)
        self.loops = torch.zeros_like(self.updates)
        self.evaluations = torch.zeros_like(index_B)
        self.rows = 0
        # On a GPU sizes of batches are few, for what is prepared for a size: see `Plan.of`.
        self.unit = -(-len(tokens_BN) // QUARTERS) if tokens_BN.is_cuda else 1

    def samples(self) -> Samples:
        """What has come of it."""
        return Samples(self.tokens, self.updates, self.loops, self.evaluations, self.rows)

    def round(self, reader: _Reader, number: int) -> None:
        """Draw some doubted tokens of every open sequence again, and close what has none."""
        x_AN, index_A = self.tokens[self.open], self.index[self.open]
        read = reader.read(x_AN, self.free[self.open], index_A, number, self.unit)
        doubted_AN = read.chance < reader.trust
        # A race of clocks with rates doubt: the first of them is chosen by doubt / sum doubt.
        u_AN = reader.uniform(Purpose.ORDER, x_AN, index_A, number)
        clock_AN = torch.where(doubted_AN, -torch.log1p(-u_AN) / (1 - read.chance), torch.inf)
        first_AK, place_AK = clock_AN.topk(min(reader.how.at_once, x_AN.shape[1]), largest=False)
        chosen_AN = torch.zeros_like(doubted_AN).scatter(1, place_AK, first_AK.isfinite())
        new_AN = torch.where(chosen_AN, read.drawn, x_AN)
        changed_AN, before_AN = new_AN != x_AN, self.before[self.open]
        self.loops[self.open] += (changed_AN & (new_AN == before_AN)).int()
        self.before[self.open] = torch.where(changed_AN, x_AN, before_AN)
        self.updates[self.open] += changed_AN.int()
        self.evaluations[self.open] += read.evaluations
        self.rows += read.rows
        self.tokens = self.tokens.index_copy(0, self.open, new_AN)
        self.open = self.open[doubted_AN.any(1)]
