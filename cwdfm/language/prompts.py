"""Encode prompts, messages and templates, and lay them out on a canvas of tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cwdfm.data.text.tokenizer import encode_holes
from cwdfm.errors import InputError, check_strings, describe
from cwdfm.language.model import LanguageModel
from cwdfm.language.session import Canvas
from cwdfm.source import MaskSource


@dataclass(frozen=True)
class Prompt:
    """The tokens of one text, as ids of the tokenizer."""

    before: list[int | None]  # the prompt, or a template in which None is a token to generate
    new: int  # number of tokens to generate after `before`; 0 for a template
    after: list[int]  # tokens after the generated ones

    @property
    def length(self) -> int:
        """The number of tokens of the complete text."""
        return len(self.before) + self.new + len(self.after)

    @property
    def free(self) -> int:
        """The number of tokens to generate."""
        return self.new or self.before.count(None)

    @property
    def is_template(self) -> bool:
        """Whether the tokens to generate are holes."""
        return self.new == 0


def encode_prompts(
    model: LanguageModel,
    max_new_tokens: int,
    prompts: Sequence[str] | None = None,
    messages: Sequence[Sequence[Mapping[str, str]]] | None = None,
    templates: Sequence[str] | None = None,
) -> list[Prompt]:
    """Encode prompts, messages or templates, exactly one of which must be given."""
    given = [name for name, x in _named(prompts, messages, templates) if x is not None]
    if len(given) != 1:
        raise InputError(
            f"pass exactly one of prompts, messages and templates, "
            f"got {' and '.join(given) or 'none'}",
            fields=("prompts", "messages", "templates"),
        )
    if messages is not None:
        conversations = _check_messages(messages)
        _check_unicode([str(each) for each in conversations])
        rows = [_encode_chat(model, each) for each in conversations]
    elif prompts is not None:
        check_strings("prompts", prompts)
        _check_unicode(prompts)
        rows = [model.tokenizer(text)["input_ids"] for text in prompts]
    else:
        assert templates is not None
        check_strings("templates", templates)
        _check_unicode(templates)
        if model.mask_id is None:
            raise InputError(
                f"{model.family} has no mask token and generates only whole blocks after a prompt, "
                f"so it cannot fill the holes of templates; use prompts or messages",
                fields=("templates",),
            )
        encoded = [_encode_template(model, text) for text in templates]
        return _checked(model, encoded, templates)
    end = _closing(model) if model.frames else []
    rows = [ids[: -len(end)] if end and ids[-len(end) :] == end else ids for ids in rows]
    texts = prompts or [str(each) for each in messages or ()]
    return _checked(model, [Prompt(list(ids), max_new_tokens, end) for ids in rows], texts)


def _named(*values: object) -> Iterator[tuple[str, object]]:
    return zip(("prompts", "messages", "templates"), values, strict=True)


def _check_messages(messages: Any) -> Sequence[Sequence[Mapping[str, str]]]:
    if not isinstance(messages, list | tuple) or not messages or _is_message(messages[0]):
        raise InputError(
            f"messages must be a list of conversations, got {describe(messages)}; for a single "
            f"conversation pass [messages]"
        )
    for number, conversation in enumerate(messages):
        check_conversation(f"messages[{number}]", conversation)
    return messages


def check_conversation(name: str, messages: Any) -> None:
    """Require a list of messages that chat templates support."""
    valid = isinstance(messages, list | tuple) and len(messages) > 0
    if not valid or not all(map(_is_message, messages)):
        raise InputError(
            f"{name} must be a conversation, a list of messages such as "
            f"{{'role': 'user', 'content': 'Hello'}}, got {describe(messages)}"
        )


def _check_unicode(texts: Sequence[str]) -> None:
    """Reject text that cannot be encoded as UTF-8, which tokenizers require."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{text[:40]!r} contains an unpaired surrogate; decode the text with "
                f"errors='replace'"
            ) from error


def _is_message(message: Any) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    return isinstance(message.get("content"), str | list)  # a list of parts, such as images


def _encode_chat(model: LanguageModel, messages: Sequence[Mapping[str, str]]) -> list[int]:
    tokenizer = model.tokenizer
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            f"the tokenizer of this {model.family} model has no chat template, so it was probably "
            f"not trained on conversations; use prompts, or the tokenizer of an instruction model"
        )
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # a template may raise any error, for example for unknown roles
        raise InputError(f"the chat template rejects {messages!r:.200}: {error}") from error
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _encode_template(model: LanguageModel, text: str) -> Prompt:
    def encode(part: str) -> list[int]:
        ids: list[int] = model.tokenizer(part, add_special_tokens=False)["input_ids"]
        return ids

    words_include_space = encode(" the") != encode(" ") + encode("the")
    ids = encode_holes(text, encode, words_include_space)
    first: list[int] = model.tokenizer("")["input_ids"]
    end = _closing(model) if model.frames else []
    start = first[: len(first) - len(end)]
    return Prompt([*start, *ids], 0, end)


def _closing(model: LanguageModel) -> list[int]:
    """The special tokens at the end of a text, such as [SEP]."""
    first: list[int] = model.tokenizer("")["input_ids"]
    ends = {model.tokenizer.sep_token_id, model.tokenizer.eos_token_id} - {None}
    return first[-1:] if first and first[-1] in ends else []


def _checked(model: LanguageModel, prompts: list[Prompt], texts: Sequence[str]) -> list[Prompt]:
    for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True), start=1):
        name = f"prompt {number} of {len(prompts)} ({text[:40]!r})"
        if not prompt.before:
            raise InputError(f"{name} is empty; pass at least one token, or leave it out")
        if prompt.length > model.length:
            raise InputError(
                f"{name} has {len(prompt.before)} tokens, and with {prompt.new} new ones it "
                f"exceeds the model's context of {model.length} tokens; shorten it, or decrease "
                f"max_new_tokens",
                fields=("max_new_tokens",),
            )
        if model.mask_id is not None and model.mask_id in prompt.before:
            raise InputError(
                f"{name} contains the mask token; write templates with holes such as [3] to fill "
                f"in tokens"
            )
    return prompts


def first_block(model: LanguageModel, prompt: Prompt) -> int:
    """The number of tokens before the first block.

    The blocks of a model with causal blocks begin at multiples of their length, so the first one
    may contain the end of the prompt. A template is a single block.
    """
    if prompt.is_template:
        return 0
    size = len(prompt.before)
    return size if model.block is None else size - size % model.block


def make_canvas(
    model: LanguageModel, prompts: Sequence[tuple[int, Prompt]], index: Tensor, block_length: int
) -> Canvas:
    """Lay out numbered prompts with left padding, so that all first blocks begin in one column."""
    begin = max(first_block(model, prompt) for _, prompt in prompts)
    ends = [prompt.length - first_block(model, prompt) for _, prompt in prompts]
    unit = block_length if model.block is not None or model.whole_blocks else 1
    columns = begin + -(-max(ends) // unit) * unit
    shape = (len(prompts), columns)
    source = model.source
    blank = source.mask_id if isinstance(source, MaskSource) else 0
    tokens, fixed = torch.full(shape, -1), torch.zeros(shape, dtype=torch.bool)
    valid = torch.ones(shape, dtype=torch.bool)
    for row, (_, prompt) in enumerate(prompts):
        pad = begin - first_block(model, prompt)
        ids = [*prompt.before, *[None] * (columns - pad - len(prompt.before) - len(prompt.after))]
        given = [*ids, *prompt.after]
        valid[row, :pad] = False
        fixed[row] = torch.tensor([True] * pad + [token is not None for token in given])
        tokens[row] = torch.tensor([0] * pad + [-1 if token is None else token for token in given])
    free = tokens < 0
    tokens = model.swap(tokens.clamp(min=0)).masked_fill(free, blank)
    number = torch.tensor([number for number, _ in prompts])
    sizes = [0 if prompt.is_template else len(prompt.before) for _, prompt in prompts]
    new = (~valid).sum(1) + torch.tensor(sizes)
    to = model.device
    return Canvas(
        tokens.to(to), fixed.to(to), valid.to(to), number.to(to), index[number].to(to), new.to(to),
        begin,
    )  # fmt: skip
