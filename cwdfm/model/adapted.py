"""Networks from elsewhere, such as masked language models of Hugging Face."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_integer
from cwdfm.model.predict import check_not_probabilities
from cwdfm.source import MaskSource


class Adapted(nn.Module):
    """A network of tokens alone, whose mask may be any of its ids, as a model here.

    - `network(tokens [B, N])` gives logits [B, N, num_tokens], or an object that has `.logits`.
      It is not told the time.
    - `mask_id`: its mask. Here the mask is the last id, so the two ids change places: `swap`.
    - `never`: ids, by its own numbers, that are not to be drawn, such as padding.
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
                f"load it first, such as by AutoModelForMaskedLM.from_pretrained"
            )
        check_integer("num_tokens", num_tokens, 3)
        for name, token in (("mask_id", mask_id), *(("never", token) for token in never)):
            check_integer(name, token, 0)
            if token >= num_tokens:
                raise InputError(
                    f"{name} holds {token}, and the network's ids are 0..{num_tokens - 1}; "
                    f"num_tokens is the width of its logits"
                )
        self.network, self.mask_id, self.never = network, mask_id, list(never)
        self.source = MaskSource(num_tokens - 1)

    def swap(self, tokens: Tensor) -> Tensor:
        """The network's ids as those of `source`, or the other way round."""
        mine, last = tokens == self.mask_id, tokens == self.source.mask_id
        return tokens.masked_fill(mine, self.source.mask_id).masked_fill(last, self.mask_id)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        answer = self.network(self.swap(x_t))
        logits: Tensor = getattr(answer, "logits", answer)
        right = isinstance(logits, Tensor) and logits.is_floating_point()
        if not right or logits.shape[-1:] != (self.source.num_tokens,):
            return logits  # whoever asked tells what is wrong with it
        check_not_probabilities(logits)  # which they do not look like any more without some tokens
        logits = logits.clone()
        logits[..., self.never] = -torch.inf
        logits[..., self.mask_id] = logits[..., self.source.mask_id]  # the mask's own is not read
        return logits
