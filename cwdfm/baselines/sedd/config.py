"""Training config of SEDD."""

from dataclasses import dataclass
from typing import Any, Literal

from cwdfm.baselines.sedd.method import SEDD
from cwdfm.baselines.sedd.objective import ScoreEntropyObjective
from cwdfm.errors import check_choice
from cwdfm.method.base import Method
from cwdfm.method.config import MethodConfig, Task
from cwdfm.model.transformer import DiTConfig


@dataclass(frozen=True)
class SEDDConfig(MethodConfig):
    """Score entropy discrete diffusion: absorbing with a mask source, otherwise uniform."""

    method_class = SEDD

    method: str = "sedd"  # the training method: flow, mdlm, sedd, bd3lm or ar
    source: Literal["mask", "uniform"] = "uniform"  # the noise distribution
    noise: Literal["loglinear", "geometric"] = "loglinear"  # the noise schedule

    def __post_init__(self) -> None:
        check_choice("source", self.source, ("mask", "uniform"))
        check_choice("noise", self.noise, ("loglinear", "geometric"))

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        method = SEDD(vocab_size, "absorb" if self.source == "mask" else "uniform", self.noise)
        return Task(method, ScoreEntropyObjective(method), method.network(size))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        if not isinstance(method, SEDD):
            return None
        source = "mask" if method.graph == "absorb" else "uniform"
        return {"method": "sedd", "source": source, "noise": method.noise}
