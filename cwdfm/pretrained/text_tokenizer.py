"""Tokenizers of language models, with the ids that generation needs, and options of loading."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cwdfm.errors import InputError, load_extra, require
from cwdfm.files import read_json

# Tokens that end an answer, besides the end-of-text token, where a tokenizer has them.
_ENDS = ("<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|role_end|>", "<end_of_turn>", "<turn|>")


@dataclass(frozen=True)
class LoadOptions:
    """The options of `cwdfm.load` for language models."""

    device: torch.device
    dtype: torch.dtype | None = None  # None: as stored
    block: int | None = None  # tokens per block, for models that exist with several
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        floating = isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point
        valid = self.dtype is None or floating
        require(valid, "dtype", "be a floating dtype such as torch.bfloat16", self.dtype)


def read_tokenizer(folder: Path, options: LoadOptions, kind: str = "AutoTokenizer") -> Any:
    """The tokenizer in a folder.

    If it has code of its own, which may not run, tokenizer.json describes it completely. Without
    that file it is one of the class `kind` of transformers.
    """
    transformers = load_extra("transformers", "text")
    extra: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    path = folder / "tokenizer_config.json"
    if not options.trust_remote_code and path.is_file() and "auto_map" in read_json(path):
        kind, extra = (
            "PreTrainedTokenizerFast" if (folder / "tokenizer.json").is_file() else kind,
            {},
        )
    else:
        kind = "AutoTokenizer"
    try:
        with _quiet():
            return getattr(transformers, kind).from_pretrained(str(folder), **extra)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder} has no tokenizer that can be read ({reason}); copy tokenizer.json and "
            f"tokenizer_config.json of the model into the folder"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' remarks on a config.json that is not of one of its own models."""
    logger = logging.getLogger("transformers.configuration_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`rope_scaling` is deprecated", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def find_mask(config: Mapping[str, Any], tokenizer: Any, default: int | None = None) -> int:
    """The mask id, in which config.json and the tokenizer must agree.

    `default` is the family's, where neither has one.
    """
    named = config.get("mask_token_id")
    own = getattr(tokenizer, "mask_token_id", None)
    if named is None and own is None:
        named = default
    if named is None and own is None:
        raise InputError(
            "the model has no mask id: neither config.json (mask_token_id) nor the tokenizer "
            "(mask_token) names one; add it to config.json"
        )
    if named is not None and own is not None and named != own:
        raise InputError(
            f"the mask id is {named} in config.json and {own} in the tokenizer; correct the wrong "
            f"one (mask_token_id or mask_token)"
        )
    found: Any = own if named is None else named
    return int(found)


def find_stop(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text: those of the tokenizer, config.json and generation_config.json."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    found: list[int] = []
    for value in (
        tokenizer.eos_token_id,
        config.get("eos_token_id"),
        generation.get("eos_token_id"),
    ):
        found += [] if value is None else value if isinstance(value, list) else [value]
    vocabulary = tokenizer.get_vocab()
    found += [vocabulary[name] for name in _ENDS if name in vocabulary]
    return tuple(dict.fromkeys(i for i in found if i < len(tokenizer)))
