"""Wrappers: networks of other libraries as models, and models with banned tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_integer, require
from cwdfm.model.predict import check_not_probabilities
from cwdfm.source import MaskSource


class Adapted(nn.Module):
    """A network without a time input, such as a Hugging Face masked language model, as a `Model`.

    - `network(tokens [B, N])` returns logits [B, N, num_tokens], or an object with `.logits`.
    - `mask_id`: the network's mask token. In this library the mask is the last id, so `swap`
      exchanges the two ids.
    - `never`: ids of the network that must not be sampled, such as padding.
    """

    def __init__(
        self,
        network: Callable[[Tensor], Any],
        *,
        num_tokens: int,
        mask_id: int,
        never: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not callable(network):
            raise InputError(
                f"network must be a module or function from tokens to logits, got {network!r}; "
                f"load it first, for example with AutoModelForMaskedLM.from_pretrained"
            )
        check_integer("num_tokens", num_tokens, 3)
        require(isinstance(never, list | tuple), "never", "be a list of token ids", never)
        for name, token in (("mask_id", mask_id), *(("never", token) for token in never)):
            check_integer(name, token, 0)
            if token >= num_tokens:
                raise InputError(
                    f"{name} contains {token}, but the network's ids are 0..{num_tokens - 1}; "
                    f"num_tokens is the width of its logits"
                )
        self.network, self.mask_id, self.never = network, mask_id, list(never)
        self.source = MaskSource(num_tokens - 1)

    def swap(self, tokens: Tensor) -> Tensor:
        """Convert the network's ids to those of `source`, or vice versa."""
        mask, last = tokens == self.mask_id, tokens == self.source.mask_id
        return tokens.masked_fill(mask, self.source.mask_id).masked_fill(last, self.mask_id)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        output = self.network(self.swap(x_t))
        logits: Tensor = getattr(output, "logits", output)
        valid = isinstance(logits, Tensor) and logits.is_floating_point()
        if not valid or logits.shape[-1:] != (self.source.num_tokens,):
            return logits  # the caller reports the error
        check_not_probabilities(logits)  # before logits of -inf hide the problem
        logits = logits.clone()
        logits[..., self.never] = -torch.inf
        # The last id is moved to the network's mask id, whose own logit is unused.
        logits[..., self.mask_id] = logits[..., self.source.mask_id]
        return logits


class BannedTokens(nn.Module):
    """A model with some tokens set to probability zero, by its head if it is a split model."""

    def __init__(self, model: Any, tokens: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.tokens = model, list(tokens)
        for name in ("trunk", "two_stage", "first_stage", "second_stage"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        if hasattr(model, "logits_at"):
            self.logits_at = lambda *arguments: map(self._ban, model.logits_at(*arguments))
        if hasattr(model, "select"):
            self.select = lambda active_B: BannedTokens(model.select(active_B), tokens)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self._ban(self.model(x_t, t))

    def head(self, hidden: Tensor) -> Tensor:
        """The head of the wrapped model, with logit -inf for banned tokens."""
        return self._ban(self.model.head(hidden))

    def _ban(self, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., self.tokens] = -torch.inf
        return logits
