"""A model that never puts out some of its tokens."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Without(nn.Module):
    """A split model with probability zero for some tokens: a hole is filled, not closed."""

    def __init__(self, model: nn.Module, tokens: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.tokens = model, list(tokens)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """The model's own."""
        hidden: Tensor = self.model.trunk(x_t, t)  # type: ignore[operator]
        return hidden

    @property
    def select(self) -> Callable[[Tensor], "Without"] | None:
        """The model's own, if it carries something for each sequence."""
        own = getattr(self.model, "select", None)
        return None if own is None else lambda active_B: Without(own(active_B), tuple(self.tokens))

    @property
    def two_parts(self) -> bool:
        """The model's own."""
        return bool(getattr(self.model, "two_parts", False))

    def begin(self, x_t: Tensor, t: Tensor) -> Any:
        """The model's own."""
        return self.model.begin(x_t, t)  # type: ignore[operator]

    def end(self, begun: Any, place_K: Tensor) -> Tensor:
        """The model's own."""
        hidden: Tensor = self.model.end(begun, place_K)  # type: ignore[operator]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """The model's own, with -inf for the tokens left out."""
        logits: Tensor = self.model.head(hidden).clone()  # type: ignore[operator]
        logits[..., self.tokens] = -torch.inf
        return logits
