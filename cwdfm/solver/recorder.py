"""Recorders: collect the predictions and changes of every step while sequences are sampled.

Shapes: R recorded sequences, N sequence length, K predictions, A alternatives, V tokens.
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
    """Collects the steps of R sequences.

    For each step, `see` receives the model's predictions and `add` the resulting tokens.
    """

    def __init__(self, source: Source, tokens_RN: Tensor, fixed_RN: Tensor) -> None:
        self.source, self.tokens, self.fixed = source, tokens_RN.clone(), fixed_RN
        self._start = _int32(tokens_RN)
        self._times: list[float] = []
        self._moves: list[dict[str, NDArray[Any]]] = []
        self._entropy: list[NDArray[np.uint8]] = []
        self._alpha: list[NDArray[np.uint8]] = []
        self._clear()

    def _clear(self) -> None:
        shape, device = self.tokens.shape, self.tokens.device
        A = min(ALTERNATIVES, self.source.vocab_size)
        self._entropy_RN = torch.zeros(shape, device=device)
        self._top_RNA = torch.zeros(*shape, A, dtype=torch.int64, device=device)
        self._probability_RNA = torch.zeros(*shape, A, device=device)

    def see(self, flat_K: Tensor, logits_KV: Tensor) -> None:
        """Store the entropies and top tokens of the predictions at flat positions in 0..R*N-1."""
        log_p_KV = logits_KV.float().log_softmax(-1)
        p_KV = log_p_KV.exp()
        entropy_K = -torch.where(p_KV > 0, p_KV * log_p_KV, 0.0).sum(-1)
        probability_KA, top_KA = p_KV.topk(self._top_RNA.shape[-1], dim=-1)
        self._entropy_RN.view(-1)[flat_K] = entropy_K
        self._top_RNA.flatten(0, 1)[flat_K] = top_KA
        self._probability_RNA.flatten(0, 1)[flat_K] = probability_KA

    def add(self, tokens_RN: Tensor, t: float, t_next: float, alpha_RN: Tensor | None) -> None:
        """Add the step that leads to these tokens."""
        self._times += [t_next] if self._times else [t, t_next]
        self._entropy.append(
            _bytes(255 * self._entropy_RN / math.log(max(2, self.source.vocab_size)))
        )
        alpha_RN = torch.zeros_like(self._entropy_RN) if alpha_RN is None else alpha_RN
        level_RN = (ALPHA_ONE + ALPHA_SCALE * alpha_RN.log2()).clamp(1, 255)
        self._alpha.append(_bytes(torch.where(alpha_RN > 0, level_RN, 0.0)))
        moved_RN = tokens_RN != self.tokens
        sequence_M, position_M = moved_RN.nonzero(as_tuple=True)
        self._moves.append(
            {
                "move_step": np.full(len(sequence_M), len(self._times) - 2, np.int32),
                "move_sequence": _int32(sequence_M),
                "move_position": _int32(position_M),
                "move_token": _int32(tokens_RN[moved_RN]),
                "move_alternatives": _int32(self._top_RNA[moved_RN]),
                "move_probabilities": self._probability_RNA[moved_RN].half().cpu().numpy(),
            }
        )
        self.tokens = tokens_RN.clone()
        self._clear()

    def finish(self, **labels: Any) -> Recording:
        """The recording of all steps so far."""
        arrays: dict[str, Any] = {
            name: np.concatenate([moves[name] for moves in self._moves]) for name in self._moves[0]
        }
        return Recording(
            start=self._start,
            fixed=self.fixed.cpu().numpy(),
            times=np.array(self._times),
            **arrays,
            entropy=np.stack(self._entropy),
            alpha=np.stack(self._alpha),
            vocab_size=self.source.vocab_size,
            mask_id=self.source.vocab_size if self.source.marks_noise else -1,
            labels=labels,
        )


class FlowRecorder(Recorder):
    """A callback of `sample` that records the first `limit` sequences of a batch.

    It evaluates the model once more per step, on these sequences only, to obtain entropies and
    alternatives. The samples do not change.
    """

    def __init__(self, model: Model, source: Source, state: State, limit: int) -> None:
        super().__init__(source, state.tokens[:limit], state.fixed[:limit])
        self._model, self._limit = model, limit

    @torch.no_grad()
    def __call__(self, state: State, info: Info) -> None:
        """Record the step from the previous state to this one."""
        x_RN, next_RN = self.tokens, state.tokens[: self._limit]
        rows = Positions.of(self.source.movable(x_RN, self.fixed) | (next_RN != x_RN))
        if len(rows):
            t_R = torch.full((len(x_RN),), info.t, dtype=torch.float32, device=x_RN.device)
            for k, logits_kV in predict_logits(self._model, self.source, x_RN, t_R, rows):
                self.see(rows.flat[k], logits_kV)
        alpha_RN = None if info.alpha is None else info.alpha[: self._limit]
        self.add(next_RN, info.t, info.t_next, alpha_RN)


def _int32(x: Tensor) -> NDArray[np.int32]:
    return x.to(torch.int32).cpu().numpy()


def _bytes(x: Tensor) -> NDArray[np.uint8]:
    return x.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
