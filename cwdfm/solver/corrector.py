"""The corrector: return some tokens to the source, and increase the forward rates to compensate."""

import math
from dataclasses import dataclass

from cwdfm.errors import InputError
from cwdfm.schedule import Schedule


@dataclass(frozen=True)
class Corrector:
    """Multiply the forward rates by a_t and the backward rates by a_t - 1 (Gat et al. 2024), where

        a_t = 1 + scale t^a (1 - t)^b.

    The backward velocity is kappa'_t / kappa_t [p_0 - delta(x_t)]; with a mask source it re-masks
    tokens. Without a context weight the marginals p_t do not depend on the scale, but errors get
    more chances to be corrected. A weight multiplies the forward rates only (see docs/method.md).
    """

    scale: float = 1.0
    a: float = 0.5
    b: float = 0.5

    def __post_init__(self) -> None:
        values = (self.scale, self.a, self.b)
        if not all(isinstance(v, int | float) and 0 <= v < math.inf for v in values):
            raise InputError(
                f"corrector must have a finite scale, a and b >= 0, got {self}; a negative scale "
                f"would make rates negative",
                fields=("corrector",),
            )

    def strength(self, t: float) -> float:
        """a_t - 1."""
        return self.scale * math.pow(t, self.a) * math.pow(1 - t, self.b)

    def backward_hazard(self, schedule: Schedule, t: float, t_next: float, exact: bool) -> float:
        """(a_t - 1) kappa'_t / kappa_t, multiplied by the step size, or integrated if `exact`.

        At kappa_t = 0 the state is pure noise, which re-noising does not change: the hazard is 0.
        """
        kappa = float(schedule.kappa(t))
        if kappa == 0:
            return 0.0
        if exact:
            rate = float(schedule.kappa(t_next).log() - schedule.kappa(t).log())
        else:
            rate = (t_next - t) * float(schedule.kappa_dot(t)) / kappa
        return self.strength(t) * rate
