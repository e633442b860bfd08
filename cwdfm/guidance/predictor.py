"""Guidance by a predictor h(x_t, t) = p(y | x_t) of a property, without training the network again.

The guided rates of a chain that has the Markov property with y are (Nisonoff et al. 2025)

    R_t(x, x' | y) = R_t(x, x') h(x', t) / h(x, t).

For a mask source R_t(x, x') is the hazard times p_{1|t}^i(v | x), where x' is x with token v at
coordinate i, so

    p_{1|t}^i(v | x, y) ~ p_{1|t}^i(v | x) h(x', t).

With a uniform source, a jump of the flow to x' reveals that x_1^i = v, and h(x', t) does not know
that. What the predictor gives is the law of x_t^i given the other coordinates and y,

    p_t^i(v | x^-i, y) ~ p_t^i(v | x^-i) h(x', t),   p_t^i(v | x^-i) = kappa q^i(v) + (1 - kappa)/V,

where q^i = p(x_1^i = . | x_t^-i). It follows q^i(. | y), and with the evidence of x^i the posterior
p_{1|t}^i(. | x, y). If h is exact, both posteriors are exact.

Shapes: B batch, N length, M sequences, k rows, V data tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError, check_choice, describe
from cwdfm.guidance.base import Guidance, GuidedModel, check_strength
from cwdfm.model.leave_one_out import MAX_KAPPA
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.schedule import Schedule
from cwdfm.source import Source

# With a uniform source, the smallest kappa at which the predictor is asked. Before, x_t says so
# little that p_{1|t} hardly depends on t, but the ratios of h tend to 1, and errors would dominate.
MIN_KAPPA = 0.01
MAX_TOKENS = 2**20  # of the sequences that the predictor is called with at a time


@dataclass(frozen=True)
class PredictorGuidance(Guidance):
    """Multiply the rate of a jump from x to x' by (h(x', t) / h(x, t))^strength.

    - `predictor`: returns log h(x_t, t) [M] for tokens x_t [M, N], int64, and times t [M]. It sees
      noise: mask ids, or uniform tokens, as the path makes them at time t. A constant may be added
      to log h, which can be the logarithm of any positive function of a sequence.
    - `strength`: 0 is no guidance; with 1 and an exact predictor samples follow p(x | y).
    - `form`: "exact" calls the predictor with V variants of a sequence for each coordinate that may
      jump. "taylor" calls it once, and estimates log h(x', t) - log h(x, t) by its gradient. It
      then receives x_t as one-hot vectors [M, N, num_tokens], float32.

    Rates are normalized, so that the number of jumps stays that of the path. With a mask source and
    an exact predictor they need no normalization. Where the predictor rules out every token, the
    coordinate is not guided. With a uniform source, errors of a predictor are multiplied by
    (1 - kappa) / (V kappa), so a predictor that ignores t guides badly at small t.
    """

    predictor: Callable[[Tensor, Tensor], Tensor]
    strength: float = 1.0
    form: Literal["exact", "taylor"] = "exact"

    def __post_init__(self) -> None:
        if not callable(self.predictor):
            raise InputError(
                f"predictor must be a callable (x_t, t) -> log p(y | x_t), got "
                f"{describe(self.predictor)}"
            )
        check_strength(self.strength)
        check_choice("form", self.form, ("exact", "taylor"))

    def guide(self, model: Model, source: Source, schedule: Schedule) -> Model:
        return PredictorGuidedModel(model, source, schedule, self)


class PredictorGuidedModel(GuidedModel):
    """The model of `PredictorGuidance`."""

    def __init__(
        self, model: Model, source: Source, schedule: Schedule, guidance: PredictorGuidance
    ) -> None:
        super().__init__(model, source)
        self.predictor = guidance.predictor  # a module among them is put into evaluation mode
        self.schedule, self.guidance = schedule, guidance

    def logits_at(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Iterator[Tensor]:
        if not len(rows):
            return
        model_t_B = t_B
        if not self.source.marks_noise:
            t_B = t_B.clamp(min=float(self.schedule.inverse(MIN_KAPPA)))
        current_K, t_K = rows.take(x_BN), t_B[rows.sequence]
        kappa_K = self.schedule.kappa(t_K.double())
        difference_KV = self._slope(x_BN, t_B, rows) if self.guidance.form == "taylor" else None
        for k, logits_kV in predict_logits(self.model, self.source, x_BN, model_t_B, rows):
            if difference_KV is not None:
                log_h_kV = difference_KV[k]
            else:
                tokens_kN = x_BN[rows.sequence[k]]
                log_h_kV = self._variants(tokens_kN, rows.position[k], t_K[k])
            tilt_kV = self.guidance.strength * log_h_kV.double()
            if self.source.marks_noise:
                guided_kV = logits_kV.double() + tilt_kV
            else:
                guided_kV = tilt_uniform(logits_kV, tilt_kV, current_K[k], kappa_K[k])
            alive_k1 = (guided_kV > -torch.inf).any(-1, keepdim=True)
            yield torch.where(alive_k1, guided_kV, logits_kV.double())

    def _variants(self, tokens_kN: Tensor, position_k: Tensor, t_k: Tensor) -> Tensor:
        """log h [k, V] of the sequences with each data token at the position."""
        vocab, length = self.source.vocab_size, tokens_kN.shape[1]
        parts = []
        for part in torch.arange(len(t_k), device=t_k.device).split(
            max(1, MAX_TOKENS // (vocab * length))
        ):
            variants_kVN = tokens_kN[part][:, None].repeat(1, vocab, 1)
            here_kV1 = position_k[part][:, None, None].expand(-1, vocab, 1)
            every_kV1 = torch.arange(vocab, device=t_k.device)[None, :, None].expand_as(here_kV1)
            variants_MN = variants_kVN.scatter(2, here_kV1, every_kV1).flatten(0, 1)
            log_h_M = self.predictor(variants_MN, t_k[part].repeat_interleave(vocab))
            parts.append(check_log_h(log_h_M, len(variants_MN)).view(-1, vocab))
        return torch.cat(parts)

    def _slope(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Tensor:
        """The first-order estimate [K, V] of log h(x') - log h(x)."""
        with torch.enable_grad():
            one_hot = F.one_hot(x_BN, self.source.num_tokens).float().requires_grad_()
            log_h_B = check_log_h(self.predictor(one_hot, t_B), len(x_BN))
            if not log_h_B.requires_grad:
                raise InputError(
                    "form='taylor' needs a predictor with a gradient, and this one does not depend "
                    "on the one-hot vectors differentiably; use form='exact'",
                    fields=("form",),
                )
            (slope_BNS,) = torch.autograd.grad(log_h_B.sum(), one_hot)
        slope_KS = rows.take(slope_BNS)
        now_K1 = slope_KS.gather(1, rows.take(x_BN)[:, None])
        return slope_KS[:, : self.source.vocab_size] - now_K1


def check_log_h(log_h_M: object, count: int) -> Tensor:
    """The result of a predictor, if it is [M], floating and not NaN or +inf."""
    if (
        not isinstance(log_h_M, Tensor)
        or log_h_M.shape != (count,)
        or not log_h_M.is_floating_point()
    ):
        raise InputError(
            f"the predictor must return log p(y | x_t) of each sequence, a floating tensor of "
            f"shape ({count},), got {describe(log_h_M)}"
        )
    if bool((log_h_M.isnan() | log_h_M.isposinf()).any()):
        raise InputError("the predictor returned NaN or +inf; allowed are finite numbers and -inf")
    return log_h_M


def tilt_uniform(logits_kV: Tensor, tilt_kV: Tensor, current_k: Tensor, kappa_k: Tensor) -> Tensor:
    """Logits of p_{1|t}(. | x, y) for a uniform source; see the module."""
    vocab = logits_kV.shape[1]
    kappa_k1 = kappa_k.clamp(max=MAX_KAPPA)[:, None]
    noise_k1 = (1 - kappa_k1) / vocab
    evidence_k1 = torch.log1p(kappa_k1 / noise_k1)
    column_k1 = current_k[:, None]
    q_kV = logits_kV.double().scatter_add(1, column_k1, -evidence_k1).softmax(-1)
    law_kV = ((kappa_k1 * q_kV + noise_k1).log() + tilt_kV).softmax(-1)  # of x_t^i, given y
    guided_kV = (law_kV - noise_k1).clamp(min=0)
    guided_kV = torch.where(guided_kV.sum(-1, keepdim=True) > 0, guided_kV, q_kV)
    return guided_kV.log().scatter_add(1, column_k1, evidence_k1)
