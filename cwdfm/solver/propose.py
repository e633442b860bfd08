"""What every solver asks of the model in a step: proposals xhat_1 ~ p_{1|t}, and scores of them."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cwdfm.categorical import sample_categorical
from cwdfm.errors import InputError
from cwdfm.kernel.head_draw import head_draw
from cwdfm.model.predict import fusible_rows, predict_rows
from cwdfm.model.protocol import Model
from cwdfm.random import Purpose, uniform
from cwdfm.solver.base import State
from cwdfm.source import Source
from cwdfm.weight import Weight


class Drawing(Protocol):
    """How tokens are drawn: fields that every solver has."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def dtype(self) -> torch.dtype: ...


def check_step(t: float, t_next: float) -> None:
    """Refuse a step that does not lead forward within [0, 1]."""
    if not 0 <= t < t_next <= 1:
        raise InputError(f"a step needs 0 <= t < t_next <= 1, got t={t}, t_next={t_next}")


def propose(
    model: Model,
    source: Source,
    state: State,
    t_B: Tensor,
    rows_BN: Tensor,
    drawing: Drawing,
    scores: Sequence[Weight] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Proposals xhat_1 ~ p_{1|t} at rows_BN and, for each of `scores`, its prediction score there.

    Each is [B, N]; elsewhere the proposal is the present token and a score 0. `t_B` [B] are the
    times that the model is told. Scores are of the model's own logits, whatever the temperature.
    """
    b_K, i_K = rows_BN.nonzero(as_tuple=True)
    u_K = uniform(state.seed, Purpose.PROPOSAL, state.index[b_K], state.step, i_K)
    proposal_BN = state.tokens.clone()
    zeros_BN = torch.zeros(rows_BN.shape, dtype=torch.float64, device=rows_BN.device)
    scores_BN = [zeros_BN.clone() for _ in scores]
    asked = (model, source, state.tokens, t_B, rows_BN)
    if _fusible(drawing, scores) and (found := fusible_rows(*asked)) is not None:
        drawn = head_draw(
            *found, u_K, source.vocab_size, temperature=drawing.temperature, scores=bool(scores)
        )
        proposal_BN[b_K, i_K] = drawn.tokens
        for score, score_BN in zip(scores, scores_BN, strict=True):
            assert drawn.entropy is not None
            assert drawn.confidence is not None
            score_BN[b_K, i_K] = score.summary_score(drawn.entropy, drawn.confidence)
        return proposal_BN, scores_BN
    first = 0
    for logits_kV in predict_rows(*asked):
        k = slice(first, first + len(logits_kV))
        proposal_BN[b_K[k], i_K[k]] = sample_categorical(
            logits_kV,
            u_K[k],
            temperature=drawing.temperature,
            top_p=drawing.top_p,
            dtype=drawing.dtype,
        )
        for score, score_BN in zip(scores, scores_BN, strict=True):
            score_BN[b_K[k], i_K[k]] = score.prediction_score(logits_kV).double()
        first = k.stop
    return proposal_BN, scores_BN


def _fusible(drawing: Drawing, scores: Sequence[Weight]) -> bool:
    """Whether draws and scores can do without logits: see `head_draw`."""
    summed = all(score.needs_summary_alone for score in scores)
    return summed and drawing.top_p == 1 and drawing.dtype == torch.float64
