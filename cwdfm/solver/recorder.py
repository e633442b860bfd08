"""`Recorder`: collects the predictions and changes of every step while sequences are sampled.

Shapes: R recorded sequences, N sequence length, A alternatives, V tokens.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.solver.base import Info, State
from cwdfm.solver.recording import ALPHA_ONE, ALPHA_SCALE, ALTERNATIVES, Recording
from cwdfm.source import Source


class Recorder:
    """A callback of `sample` that records the first `limit` sequences of a batch.

    It evaluates the model once more per step, on these sequences only, to obtain entropies and
    alternatives. The samples do not change.
    """

    def __init__(self, model: Model, source: Source, state: State, limit: int) -> None:
        self._model, self._source, self._limit = model, source, limit
        self._tokens, self._fixed = state.tokens[:limit].clone(), state.fixed[:limit]
        self._start = _int32(self._tokens)
        self._times: list[float] = []
        self._moves: list[dict[str, NDArray[Any]]] = []
        self._entropy: list[NDArray[np.uint8]] = []
        self._alpha: list[NDArray[np.uint8]] = []

    @torch.no_grad()
    def __call__(self, state: State, info: Info) -> None:
        """Record the step from the previous state to this one."""
        x_RN, next_RN = self._tokens, state.tokens[: self._limit].clone()
        moved_RN = next_RN != x_RN
        rows = Positions.of(self._source.movable(x_RN, self._fixed) | moved_RN)
        entropy_RN, top_RNA, probability_RNA = self._predict(rows, info.t)
        self._times += [info.t_next] if self._times else [info.t, info.t_next]
        largest = math.log(max(2, self._source.vocab_size))
        self._entropy.append(_bytes(255 * entropy_RN / largest))
        alpha_RN = torch.zeros_like(entropy_RN) if info.alpha is None else info.alpha[: self._limit]
        level_RN = (ALPHA_ONE + ALPHA_SCALE * alpha_RN.log2()).clamp(1, 255)
        self._alpha.append(_bytes(torch.where(alpha_RN > 0, level_RN, 0.0)))
        sequence_M, position_M = moved_RN.nonzero(as_tuple=True)
        self._moves.append(
            {
                "move_step": np.full(len(sequence_M), len(self._times) - 2, np.int32),
                "move_sequence": _int32(sequence_M),
                "move_position": _int32(position_M),
                "move_token": _int32(next_RN[moved_RN]),
                "move_alternatives": _int32(top_RNA[moved_RN]),
                "move_probabilities": probability_RNA[moved_RN].half().cpu().numpy(),
            }
        )
        self._tokens = next_RN

    def _predict(self, rows: Positions, t: float) -> tuple[Tensor, Tensor, Tensor]:
        """The entropy [R, N], and the top tokens and their probabilities [R, N, A], at `rows`."""
        x_RN, A = self._tokens, min(ALTERNATIVES, self._source.vocab_size)
        entropy_RN = torch.zeros(x_RN.shape, device=x_RN.device)
        top_RNA = torch.zeros(*x_RN.shape, A, dtype=torch.int64, device=x_RN.device)
        probability_RNA = torch.zeros(*x_RN.shape, A, device=x_RN.device)
        t_R = torch.full((len(x_RN),), t, dtype=torch.float32, device=x_RN.device)
        for k, logits_kV in predict_logits(self._model, self._source, x_RN, t_R, rows):
            log_p_kV = logits_kV.float().log_softmax(-1)
            p_kV, flat_k = log_p_kV.exp(), rows.flat[k]
            entropy_RN.view(-1)[flat_k] = -torch.where(p_kV > 0, p_kV * log_p_kV, 0.0).sum(-1)
            probability_kA, top_kA = p_kV.topk(A, dim=-1)
            top_RNA.flatten(0, 1)[flat_k] = top_kA
            probability_RNA.flatten(0, 1)[flat_k] = probability_kA
        return entropy_RN, top_RNA, probability_RNA

    def finish(self) -> Recording:
        """The recording of all steps so far."""
        arrays: dict[str, Any] = {
            name: np.concatenate([moves[name] for moves in self._moves]) for name in self._moves[0]
        }
        return Recording(
            start=self._start,
            fixed=self._fixed.cpu().numpy(),
            times=np.array(self._times),
            **arrays,
            entropy=np.stack(self._entropy),
            alpha=np.stack(self._alpha),
            vocab_size=self._source.vocab_size,
            mask_id=self._source.vocab_size if self._source.marks_noise else -1,
        )


def _int32(x: Tensor) -> NDArray[np.int32]:
    return x.to(torch.int32).cpu().numpy()


def _bytes(x: Tensor) -> NDArray[np.uint8]:
    return x.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
