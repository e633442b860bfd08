"""Classifier-free guidance, for networks trained with conditions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, require
from cwdfm.guidance.base import Guidance, GuidedModel, check_strength
from cwdfm.model.conditions import encode_condition, with_condition
from cwdfm.model.positions import Positions
from cwdfm.model.predict import predict_logits
from cwdfm.model.protocol import Model
from cwdfm.model.transformer import DiT, TrunkState
from cwdfm.schedule import Schedule
from cwdfm.source import Source


@dataclass(frozen=True)
class ClassifierFreeGuidance(Guidance):
    """Predict with conditions y, and extrapolate away from the prediction without them:

        p(x_1^i | x_t) ~ p_{1|t}^i(x_1^i | x_t, y)^w p_{1|t}^i(x_1^i | x_t)^(1 - w)

    (Ho and Salimans 2022; for discrete flows Nisonoff et al. 2025 and Schiff et al. 2025). With a
    uniform source the likelihood of x_t^i is the same in both factors, so the formula also holds
    for the predictions from the other coordinates.

    - `condition`: values by name, such as {"logp": 2.5}. The network must have been trained with
      these conditions (`cwdfm train --condition`). Other conditions are left unspecified.
    - `strength`: w. 1 is the network's prediction with the conditions, at no extra cost. Any other
      value evaluates the network twice; 0 is the prediction without conditions.
    """

    condition: Mapping[str, object]
    strength: float = 1.0

    def __post_init__(self) -> None:
        valid = isinstance(self.condition, Mapping)
        require(valid, "condition", "be a dictionary such as {'logp': 2.5}", self.condition)
        check_strength(self.strength)

    def guide(self, model: Model, source: Source, schedule: Schedule) -> Model:
        conditions = getattr(getattr(model, "config", None), "conditions", ())
        encoded = encode_condition(conditions, self.condition)
        if not isinstance(model, DiT):
            raise InputError(
                "classifier-free guidance requires the network itself; put it before other guidance"
            )
        conditioned = Conditioned(model, encoded)
        if self.strength == 1:
            return conditioned
        return ClassifierFreeModel(conditioned, model, source, self.strength)


class Conditioned(nn.Module):
    """A split model that evaluates a network with the same conditions for all sequences."""

    def __init__(self, model: DiT, numbers: list[float]) -> None:
        super().__init__()
        self.model = model
        self.numbers: Tensor
        self.register_buffer("numbers", torch.tensor(numbers))
        # The conditions enter through the time, so the rest is that of the network.
        self.two_stage, self.second_stage = model.two_stage, model.second_stage
        self.head, self.linear_head, self.readout = model.head, model.linear_head, model.readout

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        logits: Tensor = self.model(x_t, with_condition(t, self.numbers))
        return logits

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Hidden vectors [B, N, D]."""
        return self.model.trunk(x_t, with_condition(t, self.numbers))

    def first_stage(self, x_t: Tensor, t: Tensor) -> TrunkState:
        """The trunk up to its last attention."""
        return self.model.first_stage(x_t, with_condition(t, self.numbers))


class ClassifierFreeModel(GuidedModel):
    """The guided model of `ClassifierFreeGuidance` with a strength other than 1."""

    network_calls = 2

    def __init__(self, conditioned: Model, model: Model, source: Source, strength: float) -> None:
        super().__init__(model, source)
        self.conditioned, self.strength = conditioned, strength

    def logits_at(self, x_BN: Tensor, t_B: Tensor, rows: Positions) -> Iterator[Tensor]:
        arguments = (self.source, x_BN, t_B, rows)
        pairs = zip(
            predict_logits(self.conditioned, *arguments),
            predict_logits(self.model, *arguments),
            strict=True,
        )
        for (_, conditional_kV), (_, plain_kV) in pairs:
            yield combine(conditional_kV, plain_kV, self.strength)


def combine(conditional_kV: Tensor, plain_kV: Tensor, strength: float) -> Tensor:
    """Unnormalized logits of p(. | y)^w p^(1 - w).

    Where either probability is zero, the logits of p(. | y) are used.
    """
    conditional_kV = conditional_kV.double().log_softmax(-1)
    plain_kV = plain_kV.double().log_softmax(-1)
    guided_kV = strength * conditional_kV + (1 - strength) * plain_kV
    finite_kV = conditional_kV.isfinite() & plain_kV.isfinite()
    return torch.where(finite_kV, guided_kV, conditional_kV)
