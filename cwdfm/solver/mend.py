"""Mending finished sequences: tokens that the network doubts are drawn again, few at a time.

In a finished sequence the network still finds tokens that do not fit. Its chance of the token that
stands at i, with a share of all tokens noise, is

    uniform source:  p_{1|t}(x^i | x),  since it is trained to tell data from noise by itself;
    mask source:     p_{1|t}(x^i | x without the tokens of i's group),  the groups making up x:

one evaluation, or one for each of 1 / share random groups. In each round, of every sequence in
which some chance is below `trust`,

    doubt^i = 1 - chance^i where the chance is below trust, else 0;
    i ~ doubt / sum doubt;     x^i ~ that p_{1|t}(. | .) at i, by some temperature.

A sequence that is trusted all over is done, and asks for nothing more. Other correctors choose by
confidence where to work too, within the run: Zhao et al. 2024 (informed correctors), Peng et al.
2025 (path planning). Whatever the network finds unlikely becomes rarer, the rare and right
included: this is a way to better samples, not to those of the data's law.
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
    temperature: float = 1.0  # of the draws
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
        check_positive("temperature", self.temperature)

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
    check_seed(seed)
    check_tokens("tokens", tokens, source.vocab_size)
    tokens = tokens.to(model_device(model) or tokens.device)
    index_B = sample_index(index, len(tokens), tokens.device)
    nowhere = torch.zeros_like(tokens, dtype=torch.bool)
    shape = (len(tokens), tokens.shape[1])
    fixed_BN = given(source, shape, tokens, nowhere if fixed is None else fixed, tokens.device)[1]
    check_integer("batch_size", len(tokens) if batch_size is None else batch_size)
    everything = torch.arange(len(tokens), device=tokens.device)
    parts = []
    with evaluating(model):
        for some in everything.split(batch_size or len(tokens)):
            work = _Work(model, source, schedule, how, mix(seed, 0))
            work.begin(tokens[some], fixed_BN[some], index_B[some])
            for number in range(how.rounds):
                if len(work.open):
                    work.round(number)
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

    def __init__(
        self, model: Model, source: Source, schedule: Schedule, how: Mend, seed: int
    ) -> None:
        self.model, self.source, self.how, self.seed = model, source, how, seed
        nothing = torch.zeros(1, 1, dtype=torch.int64)
        self.sees = source.revealed(nothing) is None
        share, trust = USUAL[self.sees]
        share = how.share or share
        self.trust = how.trust or trust
        self.groups = 1 if self.sees else max(1, round(1 / share))
        kappa = 1 - (share if self.sees else 1 / self.groups)
        self.t = float(schedule.inverse(torch.tensor(kappa, dtype=torch.float64)))

    def begin(self, tokens_BN: Tensor, fixed_BN: Tensor, index_B: Tensor) -> None:
        self.tokens, self.free, self.index = tokens_BN, ~fixed_BN, index_B
        self.open = torch.arange(len(tokens_BN), device=tokens_BN.device)  # sequences in doubt
        self.before = torch.full_like(tokens_BN, -1)  # the token before the last change
        self.updates = torch.zeros_like(tokens_BN, dtype=torch.int32)
        self.loops = torch.zeros_like(self.updates)
        self.evaluations = torch.zeros_like(index_B)
        self.rows = 0

    def round(self, number: int) -> None:
        """Draw the most doubted tokens of every open sequence again, and close what has none."""
        x_AN = self.tokens[self.open]
        chance_AN, drawn_AN = self._ask(x_AN, number)
        doubted_AN = chance_AN < self.trust
        # A race of clocks with rates doubt: the first of them is chosen by doubt / sum doubt.
        u_AN = self._uniform(Purpose.ORDER, number)
        clock_AN = torch.where(doubted_AN, -torch.log1p(-u_AN) / (1 - chance_AN), torch.inf)
        at_once = min(self.how.at_once, clock_AN.shape[1])
        first_AK, place_AK = clock_AN.topk(at_once, largest=False)
        chosen_AN = torch.zeros_like(doubted_AN).scatter(1, place_AK, first_AK.isfinite())
        new_AN = torch.where(chosen_AN, drawn_AN, x_AN)
        changed_AN, before_AN = new_AN != x_AN, self.before[self.open]
        self.loops[self.open] += (changed_AN & (new_AN == before_AN)).int()
        self.before[self.open] = torch.where(changed_AN, x_AN, before_AN)
        self.updates[self.open] += changed_AN.int()
        self.tokens = self.tokens.index_copy(0, self.open, new_AN)
        self.open = self.open[doubted_AN.any(1)]

    def _ask(self, x_AN: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The chance of every token, 1 where it is given, and one drawn in its place [A, N]."""
        free_AN, index_A = self.free[self.open], self.index[self.open]
        t_A = torch.full((len(x_AN),), self.t, dtype=torch.float64, device=x_AN.device)
        u_AN = self._uniform(Purpose.PROPOSAL, number)
        chance_AN, drawn_AN = torch.ones_like(u_AN), x_AN
        group_AN = torch.zeros_like(x_AN)
        noise_AN = x_AN
        if not self.sees:
            group_AN = self._uniform(Purpose.TIE, number).argsort(1).argsort(1) % self.groups
            length = x_AN.shape[1]
            noise_AN = self.source.noise(index_A, length, seed=self.seed, step=number)
        for group in range(self.groups):
            asked_AN = free_AN & (group_AN == group)
            seen_AN = torch.where(asked_AN, noise_AN, x_AN)
            rows = Rows.of(asked_AN, crowded=True)
            x_K, u_K = rows.take(x_AN), rows.take(u_AN)
            chances, drawn, begin = [u_K[:0]], [x_K[:0]], 0
            for logits_kV in predict_rows(self.model, self.source, seen_AN, t_A, rows):
                part = slice(begin, begin + len(logits_kV))
                own_k = logits_kV.gather(1, x_K[part, None])[:, 0].double()
                chances.append((own_k - logits_kV.double().logsumexp(1)).exp())
                temperature = self.how.temperature
                drawn.append(sample_categorical(logits_kV, u_K[part], temperature=temperature))
                begin = part.stop
            chance_AN = rows.replace(chance_AN, torch.cat(chances))
            drawn_AN = rows.replace(drawn_AN, torch.cat(drawn))
            self.evaluations[self.open] += asked_AN.any(1).long()
            self.rows += len(rows)
        return chance_AN, drawn_AN

    def _uniform(self, purpose: Purpose, number: int) -> Tensor:
        length = self.tokens.shape[1]
        return uniform_BN(self.seed, purpose, self.index[self.open], number, length)
