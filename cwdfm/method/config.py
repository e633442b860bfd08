"""Method configs: which method to train, with only the settings of that method.

A method is added with a subclass of `MethodConfig` in the method's own package, and a line in
`cwdfm.baselines.METHODS`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from cwdfm.method.base import Method, Objective
from cwdfm.model.transformer import DiTConfig


@dataclass(frozen=True)
class Task:
    """The objects that a config describes, for one vocabulary."""

    method: Method
    objective: Objective
    model: DiTConfig


@dataclass(frozen=True)
class MethodConfig(ABC):
    """What to train: a method, its objective, and what it requires of the network."""

    method_class: ClassVar[type[Method]]  # the class that saved models name

    method: str  # the training method: flow, mdlm, sedd, bd3lm or ar; each has its own options

    @abstractmethod
    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        """The objects for `vocab_size` data tokens, a network size and a sequence length."""

    @classmethod
    @abstractmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        """The fields that a trained model fixes when training continues from it.

        None if the model was not trained by this method.
        """
