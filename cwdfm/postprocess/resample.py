"""Resampling: redraw low-confidence tokens of finished samples, a few per round.

Token scores p^i (see `token_scores.py`) are low for tokens that are incompatible with the others.
Each round redraws some tokens of every sequence that has scores below a threshold:

    r^i = 1 - p^i if p^i < threshold, else 0;
    i ~ r / sum r;     x^i ~ p_{1|t}, the prediction at i, with temperature and top_p.

A sequence without scores below the threshold is finished. Related methods also choose positions by
confidence, but during sampling: informed correctors (Zhao et al. 2024) and path planning (Peng et
al. 2025). Resampling improves samples but does not preserve the data distribution: it makes
everything that the model finds unlikely rarer, including correct but rare data.
"""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_integer
from cwdfm.model.predict import check_flow_network, check_split, evaluating
from cwdfm.model.protocol import Model
from cwdfm.ops.random import Purpose
from cwdfm.postprocess.base import (
    Postprocess,
    SampleOptions,
    check_noise_fraction,
    check_samples,
    describe_like,
)
from cwdfm.postprocess.token_scores import TokenScorer
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.base import DrawOptions, Solver, State, advance
from cwdfm.solver.precomputed import batch_unit
from cwdfm.solver.sample import Progress, Samples, batches
from cwdfm.source import Source

# Default (noise_fraction, threshold), by `source.marks_noise`.
DEFAULTS = {False: (0.5, 0.8), True: (0.125, 0.05)}


@dataclass(frozen=True)
class Resample(Postprocess):
    """Redraw low-confidence tokens.

    - `rounds`: maximum number of rounds.
    - `noise_fraction`: fraction of noise that the model is conditioned on (see `token_scores.py`).
      The default is 0.5 with a uniform source, 0.125 with a mask source.
    - `threshold`: tokens with a lower probability are redrawn. The default is 0.8 with a uniform
      source, 0.05 with a mask source.
    - `temperature`, `top_p`: options of the draws. The default is the solver's, or 1 in `resample`.
    - `tokens_per_round`: maximum number of tokens per sequence and round.
    """

    rounds: int = 40
    noise_fraction: float | None = None
    threshold: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    tokens_per_round: int = 1

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds)
        check_integer("tokens_per_round", self.tokens_per_round)
        if self.noise_fraction is not None:
            check_noise_fraction(self.noise_fraction, 0.5)
        if self.threshold is not None and not (
            isinstance(self.threshold, int | float) and 0 < self.threshold <= 1
        ):
            raise InputError(
                f"threshold must be a probability in (0, 1], got {self.threshold!r}; try 0.8 with "
                f"a uniform source, 0.05 with a mask source",
                fields=("threshold",),
            )
        _ = self.draw  # checks temperature and top_p

    @property
    def draw(self) -> DrawOptions:
        """The options of the draws."""
        top_p = 1.0 if self.top_p is None else self.top_p
        temperature = 1.0 if self.temperature is None else self.temperature
        return DrawOptions(temperature=temperature, top_p=top_p)

    @property
    def progress_steps(self) -> int:
        return self.rounds

    def apply(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        solver: Solver,
        grid: Spacing,
        tokens: Tensor,
        **options: Unpack[SampleOptions],
    ) -> Samples:
        defaults: dict[str, Any] = {
            name: getattr(solver, name, None)
            for name in ("temperature", "top_p")
            if getattr(self, name) is None
        }
        return resample(model, source, schedule, tokens, replace(self, **defaults), **options)


@torch.no_grad()
def resample(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor | Samples,
    config: Resample | None = None,
    **options: Unpack[SampleOptions],
) -> Samples:
    """Resample low-confidence tokens of `tokens` [B, N], except those marked by `fixed`.

    `fixed` defaults to the prompt tokens if `tokens` are `Samples`. The seed determines the result
    of sequence i regardless of the other sequences. Completely fixed sequences are returned
    unchanged. See `cwdfm.sample` for the options.
    """
    config = Resample() if config is None else config
    check_instance("config", config, Resample, "Resample(rounds=40, threshold=0.8)")
    check_flow_network(model)
    original = tokens
    tokens, fixed_BN, index_B = check_samples(model, source, schedule, tokens, options)
    noise_fraction, threshold = DEFAULTS[source.marks_noise]
    threshold = config.threshold or threshold
    network = (model, source, schedule, tokens.shape[1])
    noise_fraction = config.noise_fraction or noise_fraction
    scorer = TokenScorer(*network, noise_fraction, options.get("seed", 0), config.draw)
    parts = []
    batch_indices = batches(len(tokens), options.get("batch_size"), tokens.device)
    with evaluating(model):
        check_split(model, tokens[:1], scorer.t)
        for batch in batch_indices:
            state = State.start(tokens[batch], fixed_BN[batch], index_B[batch], scorer.seed)
            parts.append(_resample_batch(scorer, state, config, threshold, options.get("progress")))
    return describe_like(Samples.cat(parts), original)


def _resample_batch(
    scorer: TokenScorer,
    state: State,
    config: Resample,
    threshold: float,
    progress: Progress | None,
) -> Samples:
    """Resample one batch. A is the number of unfinished sequences."""
    batch, device = len(state.index), state.tokens.device
    evaluations_B, logit_evaluations = torch.zeros_like(state.index), 0
    active_A, unit = torch.arange(batch, device=device), batch_unit(batch, device)
    for number in range(config.rounds):
        if len(active_A):
            x_AN, index_A = state.tokens[active_A], state.index[active_A]
            scores = scorer.score(x_AN, ~state.fixed[active_A], index_A, number, unit=unit)
            low_AN = scores.probability < threshold
            # Exponential race with rates 1 - p: position i is first with probability r^i / sum r.
            clock_AN = -torch.log1p(-scorer.uniform(Purpose.ORDER, x_AN, index_A, number))
            clock_AN = torch.where(low_AN, clock_AN / (1 - scores.probability), torch.inf)
            count = min(config.tokens_per_round, x_AN.shape[1])
            first_AK, position_AK = clock_AN.topk(count, largest=False)
            chosen_AN = torch.zeros_like(low_AN).scatter(1, position_AK, first_AK.isfinite())
            new_AN = torch.where(chosen_AN, scores.proposal, x_AN)
            state = advance(scorer.source, state, state.tokens.index_copy(0, active_A, new_AN))
            evaluations_B[active_A] += scores.evaluations
            logit_evaluations += scores.logit_evaluations
            active_A = active_A[low_AN.any(1)]
        if progress is not None:
            progress(batch)
    return Samples(state.tokens, state.updates, state.loops, evaluations_B, logit_evaluations)
