"""Log-probabilities of tokens for losses, from logits or from hidden vectors and the head."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError, describe
from cwdfm.model.positions import Positions
from cwdfm.ops.head_loss import head_cross_entropy, head_log_prob
from cwdfm.ops.precision import product_dtype, sum_dtype
from cwdfm.path.base import PathSample


class Prediction(ABC):
    """Logits and log-probabilities of tokens, at all or some coordinates."""

    known_BN: Tensor | None  # the coordinates where logits are known; None for all

    @property
    @abstractmethod
    def logits(self) -> Tensor:
        """The logits [B, N, V] or [K, V] of the data tokens, in at least float32."""

    @abstractmethod
    def log_probs(self, *tokens_BN: Tensor) -> list[Tensor]:
        """log p^i(tokens^i) [B, N] for each argument; 0 at unknown coordinates, -inf for masks."""

    def scatter(self, values: Tensor) -> Tensor:
        """Scatter values at the known coordinates into a tensor [B, N] that is 0 elsewhere."""
        if self.known_BN is None:
            return values
        zeros_BN = values.new_zeros(self.known_BN.shape)
        return zeros_BN.masked_scatter(self.known_BN, values)


class LogitsPrediction(Prediction):
    """A prediction from logits."""

    def __init__(self, logits: Tensor, needed_BN: Tensor, batch: PathSample) -> None:
        shape = tuple(batch.x_1.shape)
        width = batch.source.num_tokens
        if not isinstance(logits, Tensor):
            raise InputError(f"logits must be a tensor, got {describe(logits)}")
        shapes = [(*shape, width)]
        if logits.shape not in shapes or not logits.is_floating_point():
            shapes.append((int(needed_BN.sum()), width))
        if logits.shape not in shapes or not logits.is_floating_point():
            raise InputError(
                f"logits must be floating point with shape {shapes[0]}, or {shapes[1]} "
                f"for the coordinates that the loss needs, got {describe(logits)}; {width} is "
                f"source.num_tokens"
            )
        full = logits.to(sum_dtype(logits))
        self._logits = batch.source.data_logits(full)
        self.known_BN = None if logits.dim() == 3 else needed_BN
        self._log_z = self._logits.logsumexp(dim=-1)

    @property
    def logits(self) -> Tensor:
        return self._logits

    def log_probs(self, *tokens_BN: Tensor) -> list[Tensor]:
        known = [x if self.known_BN is None else x[self.known_BN] for x in tokens_BN]
        return [self.scatter(token_log_prob(self._logits, self._log_z, x)) for x in known]


class HeadPrediction(Prediction):
    """A prediction from hidden vectors [B, N, D] and a linear head; see `head_log_prob`."""

    def __init__(
        self, hidden_BND: Tensor, readout: nn.Linear, rows: Positions, batch: PathSample
    ) -> None:
        self.known_BN: Tensor = rows.mask
        self._rows = rows
        covers_all = len(rows) == rows.mask.numel()
        hidden_KD = hidden_BND.flatten(0, 1) if covers_all else rows.take(hidden_BND)
        self._hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
        self._readout, self._source = readout, batch.source

    @property
    def logits(self) -> Tensor:
        # Stores the logits, for weights that need them.
        head = (self._readout.weight, self._readout.bias)
        dtype = self._hidden_KD.dtype
        logits_KV = F.linear(self._hidden_KD, *(None if x is None else x.to(dtype) for x in head))
        return self._source.data_logits(logits_KV.to(sum_dtype(logits_KV)))

    def log_probs(self, *tokens_BN: Tensor) -> list[Tensor]:
        tokens_KJ = torch.stack([self._rows.take(x) for x in tokens_BN], dim=-1)
        vocab = self._source.vocab_size
        log_p_KJ = head_log_prob(self._hidden_KD, self._readout, tokens_KJ, vocab)
        return [self.scatter(log_p_K) for log_p_K in log_p_KJ.unbind(-1)]

    def cross_entropy(self, tokens_BN: Tensor, weights_BN: Tensor) -> Tensor:
        """sum_i w^i (-log p^i(tokens^i)) over the known coordinates, a scalar."""
        tokens_K, weights_K = self._rows.take(tokens_BN), self._rows.take(weights_BN)
        vocab = self._source.vocab_size
        return head_cross_entropy(self._hidden_KD, self._readout, tokens_K, weights_K, vocab)


def token_log_prob(logits: Tensor, log_z: Tensor, tokens: Tensor) -> Tensor:
    """log p(tokens) [...] under data logits [..., V] normalized by log_z; -inf for the mask."""
    inside = tokens < logits.shape[-1]
    token = torch.where(inside, tokens, 0)[..., None]
    return torch.where(inside, logits.gather(-1, token)[..., 0] - log_z, -torch.inf)
