"""Mending finished sequences: tokens that the network doubts are drawn again, few at a time.

In a finished sequence the network still finds tokens that do not fit: see `reading.py` for its
chance of each. In each round, of every sequence in which some chance is below `trust`,

    doubt^i = 1 - chance^i where the chance is below trust, else 0;
    i ~ doubt / sum doubt;     x^i ~ p_{1|t}(. | .) as read at i, by temperature and nucleus.

A sequence that is trusted all over is done, and asks for nothing more. Other correctors choose by
confidence where to work too, within the run: Zhao et al. 2024 (informed correctors), Peng et al.
2025 (path planning). Whatever the network finds unlikely becomes rarer, the rare and right
included: this is a way to better samples, not to those of the data's law.
"""

from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.model.predict import check_flow_network, check_split, evaluating
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw
from cwdfm.ops.random import Purpose
from cwdfm.postprocess.base import Rework, Where, check_share, finished
from cwdfm.postprocess.token_scores import Reader
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.base import Solver
from cwdfm.solver.precomputed import batch_unit
from cwdfm.solver.sample import Samples, Tick, batches
from cwdfm.source import Source

# (share, trust), by whether the source marks noise.
USUAL = {False: (0.5, 0.8), True: (0.125, 0.05)}


@dataclass(frozen=True)
class Mend(Rework):
    """How to mend samples.

    - `rounds`: at most so many.
    - `share`: of the tokens that is noise to the network; None is 0.5 with a uniform source, 0.125
      with a mask source.
    - `trust`: the least chance of a token that is left alone; None is 0.8 and 0.05.
    - `temperature`, `top_p`: of the draws; None is the solver's own, or 1 where there is none.
    - `at_once`: tokens of a sequence that are drawn anew in a round, at most.
    """

    rounds: int = 40
    share: float | None = None
    trust: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    at_once: int = 1

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

    Sequence i of a seed becomes the same whatever else is mended. What is all fixed comes back as
    it is, and costs nothing, as with `refine`. See `sample` for the rest.
    """
    how = Mend() if how is None else how
    check_instance("how", how, Mend, "Mend(rounds=40, trust=0.8)")
    check_flow_network(model)
    tokens, fixed_BN, index_B = finished(model, source, schedule, tokens, fixed, index, seed)
    places = batches(len(tokens), batch_size, tokens.device)
    share, trust = USUAL[source.marks_noise]
    trust = how.trust or trust
    reader = Reader(
        model,
        source,
        schedule,
        tokens.shape[1],
        share=how.share or share,
        seed=seed,
        temperature=how.temperature,
        top_p=how.top_p,
    )
    parts = []
    with evaluating(model):
        check_split(model, tokens[:1], reader.t)
        for some in places:
            work = _Work(tokens[some], fixed_BN[some], index_B[some])
            for number in range(how.rounds):
                if len(work.open):
                    work.round(reader, number, trust, how.at_once)
                if progress is not None:
                    progress(len(some))
            parts.append(work.samples())
    return Samples.joined(parts)


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
        self.unit = batch_unit(len(tokens_BN), tokens_BN.device)

    def samples(self) -> Samples:
        """What has come of it."""
        return Samples(self.tokens, self.updates, self.loops, self.evaluations, self.rows)

    def round(self, reader: Reader, number: int, trust: float, at_once: int) -> None:
        """Draw some doubted tokens of every open sequence again, and close what has none."""
        x_AN, index_A = self.tokens[self.open], self.index[self.open]
        read = reader.read(x_AN, self.free[self.open], index_A, number, unit=self.unit)
        doubted_AN = read.chance < trust
        # A race of clocks with rates doubt: the first of them is chosen by doubt / sum doubt.
        u_AN = reader.uniform(Purpose.ORDER, x_AN, index_A, number)
        clock_AN = torch.where(doubted_AN, -torch.log1p(-u_AN) / (1 - read.chance), torch.inf)
        first_AK, place_AK = clock_AN.topk(min(at_once, x_AN.shape[1]), largest=False)
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
