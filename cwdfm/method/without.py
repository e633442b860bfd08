"""A model that never puts out some of its tokens."""

from typing import Any

import torch
from torch import Tensor, nn


class Without(nn.Module):
    """A split model with probability zero for some tokens: a hole is filled, not closed."""

    def __init__(self, model: nn.Module, tokens: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.tokens = model, list(tokens)
        self.training = model.training  # so that what switches it off puts it back as it was

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """The model's own."""
        hidden: Tensor = self.model.trunk(x_t, t)  # type: ignore[operator]
        return hidden

    @property
    def begin(self) -> Any:
        """The model's own, if it has one."""
        return getattr(self.model, "begin", None)

    @property
    def end(self) -> Any:
        """The model's own, if it has one."""
        return getattr(self.model, "end", None)

    def head(self, hidden: Tensor) -> Tensor:
        """The model's own, with -inf for the tokens left out."""
        logits: Tensor = self.model.head(hidden).clone()  # type: ignore[operator]
        logits[..., self.tokens] = -torch.inf
        return logits
