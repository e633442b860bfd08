"""Model evaluation inside a step: proposals xhat_1 ~ p_{1|t} and scores of the predictions."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.predict import fusible_hidden, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.ops.decoder import row_summary
from cwdfm.ops.dispatch import fused_elementwise
from cwdfm.ops.head_draw import DrawnTokens, head_draw
from cwdfm.ops.random import Purpose, uniform
from cwdfm.solver.base import DrawOptions, State
from cwdfm.source import Source
from cwdfm.weight import Weight
from cwdfm.weight.base import checked_prediction_score

# Maps logits [k, V], current tokens [k] and drawn tokens [k] to scores [k].
RowScore = Callable[[Tensor, Tensor, Tensor], Tensor]


def propose(
    model: Model,
    source: Source,
    state: State,
    t_B: Tensor,
    rows: Positions,
    draw: DrawOptions,
    scores: Sequence[Weight | RowScore] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Draw proposals xhat_1 ~ p_{1|t} at `rows`, and evaluate each score there.

    Proposals and scores are [B, N]. At all other positions the proposal is the current token and
    the score is 0. The model is conditioned on the times `t_B` [B]. A score is a weight or a
    `RowScore`; it uses the unmodified logits, regardless of the temperature.
    """
    inputs = (model, source, state.tokens, t_B, rows)
    # Launch the model first: counting the rows may synchronize with the device.
    weights = [score for score in scores if isinstance(score, Weight)]
    summary = len(weights) == len(scores) and all(score.needs_only_summary for score in weights)
    fused = fusible_hidden(*inputs) if draw.fusible and summary else None
    chunks: Iterator[tuple[slice, Tensor]] = iter(())
    if fused is None:
        chunks = predict_logits(*inputs, defer=draw.top_p == 1)
    first = next(chunks, None)
    step_K = state.step if isinstance(state.step, int) else state.step[rows.sequence]
    index_K = state.index[rows.sequence]
    u_K = uniform(state.seed, Purpose.PROPOSAL, index_K, step_K, rows.position)
    if fused is not None:
        drawn = head_draw(
            *fused, u_K, source.vocab_size, temperature=draw.temperature, scores=bool(scores)
        )
        score_SK = [_summary_score(score, drawn) for score in weights]
        return rows.replace(state.tokens, drawn.tokens), [rows.scatter(x_K) for x_K in score_SK]
    if first is None:  # no rows
        return state.tokens, [rows.scatter(u_K) for _ in scores]
    token_K, current_K = torch.empty_like(rows.flat), rows.take(state.tokens)
    scored_SK = torch.empty(len(scores), len(rows), dtype=torch.float64, device=u_K.device)
    for k, logits_kV in chain([first], chunks):
        token_K[k] = draw.draw(logits_kV, u_K[k])
        statistics = None
        if any(score.needs_only_summary for score in weights) and fused_elementwise(logits_kV):
            statistics = row_summary(logits_kV)
        for score, score_K in zip(scores, scored_SK, strict=True):
            if not isinstance(score, Weight):
                score_K[k] = score(logits_kV, current_K[k], token_K[k]).double()
            elif statistics is not None and score.needs_only_summary:
                score_K[k] = score.summary_score(*statistics).double()
            else:
                score_K[k] = checked_prediction_score(score, logits_kV)
    return rows.replace(state.tokens, token_K), [rows.scatter(score_K) for score_K in scored_SK]


def _summary_score(score: Weight, drawn: DrawnTokens) -> Tensor:
    assert drawn.entropy is not None
    assert drawn.confidence is not None
    return score.summary_score(drawn.entropy, drawn.confidence).double()
