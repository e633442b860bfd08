"""A common interface to trained models and language models, for evaluation harnesses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cwdfm.language.model import LanguageModel
from cwdfm.likelihood.dataset import without_padding
from cwdfm.method import Flow, Method
from cwdfm.pretrained import Pretrained


@dataclass(frozen=True)
class ModelView:
    """A trained model or a language model as a method over token ids."""

    method: Method
    network: Callable[[], Any]
    encode: Callable[[str], list[int]]  # adds no special tokens
    decode: Callable[[list[int]], str]
    length: int
    start: int  # the token before a text
    end: int
    begins: bool  # whether every sequence starts with `start`
    closing: tuple[int, ...] = ()  # tokens after every text
    swap: Callable[[Tensor], Tensor] = lambda x: x  # converts between ids of tokenizer and network

    def after(self, length: int) -> list[int]:
        """The tokens that follow a text: its closing tokens, or padding of its last block."""
        return [*self.closing] or [self.end] * (-length % (self.method.causal_block or 1))

    def terms(self, ids: list[int], given: int) -> list[tuple[list[int], Tensor]]:
        """Split the log-likelihood of a sequence into terms to add.

        Each term is a prefix of the sequence and the mask of its context tokens.
        """
        after = self.after(len(ids))
        fixed_N = torch.arange(len(ids) + len(after)) < given
        masks = without_padding(self.method, fixed_N, len(after))
        return [([*ids, *after][: len(fixed_n)], fixed_n) for fixed_n in masks]


def view_model(model: Pretrained | LanguageModel) -> ModelView:
    """The view of a model returned by `cwdfm.load`."""
    return _view_language(model) if isinstance(model, LanguageModel) else _view_trained(model)


def _view_trained(model: Pretrained) -> ModelView:
    tokenizer = model.tokenizer

    def decode(ids: list[int]) -> str:
        ends = [i for i, token in enumerate(ids) if token in (tokenizer.eos_id, tokenizer.pad_id)]
        return tokenizer.decode(ids[: ends[0]] if ends else ids)

    return ModelView(
        model.method,
        lambda: model.model,
        tokenizer.encode,
        decode,
        model.length,
        tokenizer.bos_id,
        tokenizer.eos_id,
        model.fix_first,
    )


def _view_language(model: LanguageModel) -> ModelView:
    tokenizer = model.tokenizer
    special = tokenizer("")["input_ids"]
    closing = tuple(special[1:]) if model.frames else ()
    start = special[0] if special else tokenizer.bos_token_id
    return ModelView(
        Flow(model.source, model.schedule),
        model.flow_model,
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        tokenizer.decode,
        model.length - len(closing),
        tokenizer.eos_token_id if start is None else start,
        tokenizer.eos_token_id,
        bool(special),
        closing,
        model.swap,
    )
