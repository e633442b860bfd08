"""Guidance by a predictor h(x_t, t) = p(y | x_t) of a property, without retraining the network.

If the chain is Markov also conditionally on y, its guided rates are (Nisonoff et al. 2025)

    R_t(x, x' | y) = R_t(x, x') h(x', t) / h(x, t).

For a mask source R_t(x, x') is the hazard times p_{1|t}^i(v | x), where x' is x with token v at
coordinate i, so

    p_{1|t}^i(v | x, y) ~ p_{1|t}^i(v | x) h(x', t).

With a uniform source, a jump of the flow to x' reveals that x_1^i = v, which h(x', t) does not
take into account. The predictor instead determines the distribution of x_t^i given the other
coordinates and y,

    p_t^i(v | x^-i, y) ~ p_t^i(v | x^-i) h(x', t),   p_t^i(v | x^-i) = kappa q^i(v) + (1 - kappa)/V,

where q^i = p(x_1^i = . | x_t^-i). Solving for q^i(. | y) and multiplying by the likelihood of x^i
gives the posterior p_{1|t}^i(. | x, y). If h is exact, both posteriors are exact.

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

# With a uniform source, the smallest kappa that the predictor is evaluated at. At smaller ones x_t
# carries so little information that p_{1|t} hardly depends on t, while the ratios of h tend to 1,
# so that errors would dominate.
MIN_KAPPA = 0.01
MAX_TOKENS = 2**20  # largest number of tokens in one call of the predictor


@dataclass(frozen=True)
class PredictorGuidance(Guidance):
    """Multiply the rate of a jump from x to x' by (h(x', t) / h(x, t))^strength.

    - `predictor`: returns log h(x_t, t) [M] for tokens x_t [M, N], int64, and times t [M]. Its
      input is noised as on the path at time t, with mask ids or uniform tokens. log h may be the
      logarithm of any positive function of a sequence; an additive constant has no effect.
    - `strength`: 0 is no guidance; with 1 and an exact predictor samples follow p(x | y).
    - `form`: "exact" calls the predictor on V variants of a sequence for each coordinate that may
      jump. "taylor" calls it once and estimates log h(x', t) - log h(x, t) from its gradient; x_t
      is then passed as one-hot vectors [M, N, num_tokens], float32.

    Rates are normalized, so that the number of jumps stays that of the path. With a mask source and
    an exact predictor this changes nothing. If the predictor excludes every token of a coordinate,
    that coordinate is not guided. With a uniform source, errors of the predictor are multiplied by
    (1 - kappa) / (V kappa), so a predictor that ignores t guides poorly at small t.
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
    """The guided model of `PredictorGuidance`."""

    def __init__(
        self, model: Model, source: Source, schedule: Schedule, guidance: PredictorGuidance
    ) -> None:
        super().__init__(model, source)
        self.predictor = guidance.predictor  # registers a module, for `eval` mode
        self.schedule, self.guidance = schedule, guidance

    def logits_at(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Iterator[Tensor]:
        if not len(rows):
            return
        model_t_B = t_B
        if not self.source.marks_noise:
            t_B = t_B.clamp(min=float(self.schedule.inverse(MIN_KAPPA)))
        current_K, t_K = rows.take(x_BN), t_B[rows.sequence]
        kappa_K = self.schedule.kappa(t_K.double())
        difference_KV = self._taylor(x_BN, t_B, rows) if self.guidance.form == "taylor" else None
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
            possible_k1 = (guided_kV > -torch.inf).any(-1, keepdim=True)
            yield torch.where(possible_k1, guided_kV, logits_kV.double())

    def _variants(self, tokens_kN: Tensor, position_k: Tensor, t_k: Tensor) -> Tensor:
        """log h [k, V] of the sequences with every data token substituted at the position."""
        vocab, length = self.source.vocab_size, tokens_kN.shape[1]
        parts = []
        for part in torch.arange(len(t_k), device=t_k.device).split(
            max(1, MAX_TOKENS // (vocab * length))
        ):
            variants_kVN = tokens_kN[part][:, None].repeat(1, vocab, 1)
            position_kV1 = position_k[part][:, None, None].expand(-1, vocab, 1)
            token_kV1 = torch.arange(vocab, device=t_k.device)[None, :, None].expand_as(
                position_kV1
            )
            variants_MN = variants_kVN.scatter(2, position_kV1, token_kV1).flatten(0, 1)
            log_h_M = self.predictor(variants_MN, t_k[part].repeat_interleave(vocab))
            parts.append(check_log_h(log_h_M, len(variants_MN)).view(-1, vocab))
        return torch.cat(parts)

    def _taylor(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Tensor:
        """The first-order estimate [K, V] of log h(x') - log h(x)."""
        with torch.enable_grad():
            one_hot = F.one_hot(x_BN, self.source.num_tokens).float().requires_grad_()
            log_h_B = check_log_h(self.predictor(one_hot, t_B), len(x_BN))
            if not log_h_B.requires_grad:
                raise InputError(
                    "form='taylor' needs a predictor that is differentiable in the one-hot "
                    "vectors, and the output of this one requires no gradient; use form='exact'",
                    fields=("form",),
                )
            (gradient_BNS,) = torch.autograd.grad(log_h_B.sum(), one_hot)
        gradient_KS = rows.take(gradient_BNS)
        current_K1 = gradient_KS.gather(1, rows.take(x_BN)[:, None])
        return gradient_KS[:, : self.source.vocab_size] - current_K1


def check_log_h(log_h_M: object, count: int) -> Tensor:
    """Return a predictor's output if it is a floating tensor [M] without NaN and +inf."""
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
        raise InputError(
            "the predictor returned NaN or +inf; log p(y | x_t) must be finite or -inf"
        )
    return log_h_M


def tilt_uniform(logits_kV: Tensor, tilt_kV: Tensor, current_k: Tensor, kappa_k: Tensor) -> Tensor:
    """Logits of p_{1|t}(. | x, y) for a uniform source; see the module docstring."""
    vocab = logits_kV.shape[1]
    kappa_k1 = kappa_k.clamp(max=MAX_KAPPA)[:, None]
    noise_k1 = (1 - kappa_k1) / vocab
    evidence_k1 = torch.log1p(kappa_k1 / noise_k1)
    current_k1 = current_k[:, None]
    q_kV = logits_kV.double().scatter_add(1, current_k1, -evidence_k1).softmax(-1)
    p_t_kV = ((kappa_k1 * q_kV + noise_k1).log() + tilt_kV).softmax(-1)  # of x_t^i, given y
    guided_kV = (p_t_kV - noise_k1).clamp(min=0)
    guided_kV = torch.where(guided_kV.sum(-1, keepdim=True) > 0, guided_kV, q_kV)
    return guided_kV.log().scatter_add(1, current_k1, evidence_k1)
