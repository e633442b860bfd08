"""What every solver asks of the model in a step: proposals xhat_1 ~ p_{1|t}, and scores of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.model.positions import Positions
from cwdfm.model.predict import fusible_hidden, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import sample_categorical
from cwdfm.ops.head_draw import DrawnTokens, head_draw
from cwdfm.ops.random import Purpose, uniform
from cwdfm.solver.base import Drawing, State
from cwdfm.source import Source
from cwdfm.weight import Weight


def check_step(t: float, t_next: float) -> None:
    """Refuse a step that does not lead forward within [0, 1]."""
    if not 0 <= t < t_next <= 1:
        raise InputError(f"a step needs 0 <= t < t_next <= 1, got t={t}, t_next={t_next}")


def propose(
    model: Model,
    source: Source,
    state: State,
    t_B: Tensor,
    rows: Positions,
    drawing: Drawing,
    scores: Sequence[Weight] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Proposals xhat_1 ~ p_{1|t} at `rows` and, for each of `scores`, its prediction score there.

    Each is [B, N]; elsewhere the proposal is the present token and a score 0. `t_B` [B] are the
    times that the model is told. Scores are of the model's own logits, whatever the temperature.
    """
    asked = (model, source, state.tokens, t_B, rows)
    # The model first: counting the rows may mean to wait, and it can work meanwhile.
    found = fusible_hidden(*asked) if _fusible(drawing, scores) else None
    step_K = state.step if isinstance(state.step, int) else state.step[rows.sequence]
    index_K = state.index[rows.sequence]
    u_K = uniform(state.seed, Purpose.PROPOSAL, index_K, step_K, rows.position)
    if found is not None:
        drawn = head_draw(
            *found, u_K, source.vocab_size, temperature=drawing.temperature, scores=bool(scores)
        )
        found_K = [_summary_score(score, drawn) for score in scores]
        return rows.replace(state.tokens, drawn.tokens), [rows.scatter(x_K) for x_K in found_K]
    if not len(rows):
        return state.tokens, [rows.scatter(u_K) for _ in scores]
    token_K = torch.empty_like(rows.flat)
    score_SK = torch.empty(len(scores), len(rows), dtype=torch.float64, device=u_K.device)
    for k, logits_kV in predict_logits(*asked):
        token_K[k] = sample_categorical(
            logits_kV,
            u_K[k],
            temperature=drawing.temperature,
            top_p=drawing.top_p,
            dtype=drawing.dtype,
        )
        for score, score_K in zip(scores, score_SK, strict=True):
            score_K[k] = score.prediction_score(logits_kV).double()
    return rows.replace(state.tokens, token_K), [rows.scatter(score_K) for score_K in score_SK]


def _summary_score(score: Weight, drawn: DrawnTokens) -> Tensor:
    assert drawn.entropy is not None
    assert drawn.confidence is not None
    return score.summary_score(drawn.entropy, drawn.confidence).double()


def _fusible(drawing: Drawing, scores: Sequence[Weight]) -> bool:
    """Whether draws and scores can do without logits: see `head_draw`."""
    summed = all(score.needs_only_summary for score in scores)
    return summed and drawing.top_p == 1 and drawing.dtype == torch.float64
