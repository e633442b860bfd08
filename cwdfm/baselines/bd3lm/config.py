"""Training config of BD3LM."""

from dataclasses import dataclass
from typing import Any

from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.baselines.bd3lm.objective import BlockObjective
from cwdfm.errors import MAX_LENGTH, InputError, check_bool, check_integer
from cwdfm.method.base import Method
from cwdfm.method.config import MethodConfig, Task
from cwdfm.model.transformer import DiTConfig
from cwdfm.schedule import Linear
from cwdfm.source import MaskSource


@dataclass(frozen=True)
class BD3LMConfig(MethodConfig):
    """Block diffusion: MDLM within blocks of `block` tokens, autoregressive between them."""

    method_class = BlockDiffusion

    method: str = "bd3lm"  # the training method: flow, mdlm, sedd, bd3lm or ar
    block: int = 16  # tokens per block
    clip_low: float = 0.0  # smallest mask probability in training
    clip_high: float = 1.0  # largest mask probability in training
    clip_search: bool = True  # search for the clip range of lowest variance at each validation

    def __post_init__(self) -> None:
        check_integer("block", self.block, most=MAX_LENGTH)
        check_bool("clip_search", self.clip_search)

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        if length % self.block:
            raise InputError(
                f"length {length} must be a multiple of block {self.block}; change length or block",
                fields=("length", "block"),
            )
        method = BlockDiffusion(MaskSource(vocab_size), Linear(), self.block)
        objective = BlockObjective(
            method.source,
            method.schedule,
            self.block,
            low=self.clip_low,
            high=self.clip_high,
            search=self.clip_search,
        )
        return Task(method, objective, method.network(size))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        if not isinstance(method, BlockDiffusion):
            return None
        return {"method": "bd3lm", "block": method.block}
