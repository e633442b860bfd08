"""Language models of other projects, wrapped for this library.

A model family is a `Network` with a few properties: the mask id, whether logits are shifted,
whether attention is causal between blocks. `cwdfm/pretrained` reads the published families.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from cwdfm.device import find_device
from cwdfm.errors import InputError, check_integer, check_option_names
from cwdfm.model.attention import KVCache
from cwdfm.schedule import Linear, Schedule
from cwdfm.source import MaskSource, Source, UniformSource


class Network(nn.Module, ABC):
    """A network that evaluates columns of a canvas of tokens."""

    caches: bool = True  # whether `hidden` supports a cache
    graphs: bool = False  # whether `hidden` can be captured as a CUDA graph
    pads: bool = True  # whether `hidden` supports masks, and therefore batches with padding

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """The number of token ids, which is the width of the logits."""

    @abstractmethod
    def hidden(
        self,
        ids_BM: Tensor,
        position_BM: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
        keep_L: Tensor | None = None,
    ) -> Tensor:
        """Hidden vectors [B, M, D] of tokens at these positions of the text.

        `mask` [B, 1, M or 1, K] is True where a token attends to a key. None means everywhere. With
        `keep_L`, the result contains only the tokens with these indices, [B, L, D].
        """

    @abstractmethod
    def logits(self, hidden_KD: Tensor) -> Tensor:
        """Logits [K, num_tokens] of hidden vectors."""


@dataclass(frozen=True)
class LanguageModel:
    """A pretrained language model with the properties of its family.

    The tokenizer and the network use the same token ids. The solvers of this library expect the
    mask as the last id, so `swap` exchanges the two.
    """

    network: Any  # a `Network`, or a network with its own `session`
    tokenizer: Any  # a tokenizer of transformers
    family: str
    mask_id: int | None = None  # None for a uniform source
    shift: bool = False  # whether the logits at a position predict the next token
    block: int | None = None  # tokens per block, if attention is causal between blocks
    block_length: int | None = None  # default block length for generation
    block_steps: int | None = None  # default number of steps per block; None for one per token
    whole_blocks: bool = False  # whether the last block is as long as the others
    stop_ids: tuple[int, ...] = ()  # tokens that end a text
    length: int = 2048  # maximum number of tokens, including the prompt
    letters: bool = False  # whether tokens are letters, such as amino acids, without spaces between
    frames: bool = False  # whether texts are enclosed in special tokens such as [CLS] and [SEP]
    schedule: Schedule = field(default_factory=Linear)

    def __post_init__(self) -> None:
        check_integer("the length of the context", self.length)
        for name in ("block", "block_length", "block_steps"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), most=self.length)
        count, known = self.network.num_tokens, len(self.tokenizer)
        if known > count:
            raise InputError(
                f"the tokenizer has {known} ids, but the network has only {count}; use the "
                f"tokenizer that belongs to the model"
            )
        if self.mask_id is not None and not 0 <= self.mask_id < count:
            raise InputError(f"the mask id {self.mask_id} is not one of the {count} ids")

    @property
    def source(self) -> Source:
        """The source distribution that generation starts from."""
        count = self.network.num_tokens
        return UniformSource(count) if self.mask_id is None else MaskSource(count - 1)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        device: torch.device = next(self.network.parameters()).device
        return device

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device; returns this model."""
        self.network.to(find_device(device))
        return self

    def decode(self, ids: list[int]) -> str:
        """The text of the tokenizer's ids, without special tokens."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text.replace(" ", "") if self.letters else text

    def swap(self, ids: Tensor) -> Tensor:
        """Convert the tokenizer's ids to those of `source`, or vice versa."""
        last = self.network.num_tokens - 1
        if self.mask_id is None or self.mask_id == last:
            return ids
        mask, other = ids == self.mask_id, ids == last
        return ids.masked_fill(mask, last).masked_fill(other, self.mask_id)

    def logits(self, hidden_KD: Tensor) -> Tensor:
        """Logits [K, num_tokens]; ids beyond the tokenizer's have probability zero."""
        logits_KV: Tensor = self.network.logits(hidden_KD)
        logits_KV[:, len(self.tokenizer) :] = -torch.inf
        return logits_KV

    def to_source(self, logits_KV: Tensor) -> Tensor:
        """Reorder logits to the ids of `source`, whose last one, the mask, is never predicted."""
        if self.mask_id is not None:
            logits_KV[:, self.mask_id] = logits_KV[:, -1]
        return logits_KV

    def flow_model(self) -> "FlowModel":
        """The network as a model of this library, for `cwdfm.sample` and `cwdfm.elbo`."""
        if self.block is not None or not isinstance(self.network, Network):
            raise InputError(
                f"{self.family} predicts block by block, so it is not a flow over whole sequences; "
                f"use cwdfm.generate"
            )
        return FlowModel(self)

    def generate(self, solver: Any = None, **options: Any) -> Any:
        """Generate text: see `cwdfm.generate`."""
        from cwdfm.language.generate import generate_text

        check_option_names(generate_text, options)
        return generate_text(self, solver=solver, **options)


def shift_right(hidden_BMD: Tensor, first_BM: Tensor | None = None) -> Tensor:
    """Shift the predictions of next tokens to the positions of these tokens.

    The first token keeps its own hidden vector. `first_BM` marks the first token of a sequence, by
    default column 0.
    """
    moved_BMD = torch.cat([hidden_BMD[:, :1], hidden_BMD[:, :-1]], dim=1)
    if first_BM is None:
        return moved_BMD
    return torch.where(first_BM[..., None], hidden_BMD, moved_BMD)


def kept(hidden_BMD: Tensor, keep_L: Tensor | None) -> Tensor:
    """The hidden vectors of the tokens with indices keep_L, [B, L, D]; all of them for None."""
    return hidden_BMD if keep_L is None else hidden_BMD.index_select(1, keep_L)


class FlowModel(nn.Module):
    """A bidirectional language model as a split model over sequences without padding."""

    def __init__(self, language: LanguageModel) -> None:
        super().__init__()
        self.language, self.network = language, language.network

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        logits_KV = self.head(self.trunk(x_t, t).flatten(0, 1))
        return logits_KV.view(*x_t.shape, -1)

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Hidden vectors [B, N, D]."""
        position_BN = torch.arange(x_t.shape[1], device=x_t.device).expand_as(x_t)
        ids_BN = self.language.swap(x_t)
        hidden_BND: Tensor = self.network.hidden(ids_BN, position_BN, None, None)
        return shift_right(hidden_BND) if self.language.shift else hidden_BND

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the data tokens and the mask."""
        return self.language.to_source(self.language.logits(hidden))
