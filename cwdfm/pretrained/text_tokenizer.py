"""Load options and tokenizers of language models, and the token ids that generation needs."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cwdfm.errors import InputError, load_extra
from cwdfm.files import read_json

# Tokens that end an answer, in addition to the end-of-text token, if a tokenizer has them.
_ENDS = ("<|eot_id|>", "<|im_end|>", "<|endoftext|>", "<|role_end|>", "<end_of_turn>", "<turn|>")


@dataclass(frozen=True)
class LoadOptions:
    """The options of `cwdfm.load` for language models."""

    device: torch.device
    dtype: torch.dtype | None = None  # None: the dtype of the files
    block: int | None = None  # tokens per block, for models published with several block sizes
    trust_remote_code: bool = False


def find_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A floating dtype, by object or name. "auto" and None are the dtype of the files."""
    if dtype is None or dtype == "auto":
        return None
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        rule = "be a floating dtype such as torch.bfloat16 or 'bfloat16', or 'auto'"
        raise InputError(f"dtype must {rule}, got {dtype!r}", fields=("dtype",))
    return found


def read_tokenizer(folder: Path, options: LoadOptions, kind: str = "AutoTokenizer") -> Any:
    """Read the tokenizer in a folder.

    A tokenizer with its own code, which must not run, is read from tokenizer.json, which describes
    it completely, or else as the class `kind` of transformers.
    """
    transformers = load_extra("transformers", "text")
    extra: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
    path = folder / "tokenizer_config.json"
    if not options.trust_remote_code and path.is_file() and "auto_map" in read_json(path):
        extra = {}
        if (folder / "tokenizer.json").is_file():
            kind = "PreTrainedTokenizerFast"
    else:
        kind = "AutoTokenizer"
    try:
        with _quiet():
            return getattr(transformers, kind).from_pretrained(str(folder), **extra)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the tokenizer in {folder} cannot be read ({reason}); copy tokenizer.json and "
            f"tokenizer_config.json of the model into the folder"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' warnings about the config.json of models that it does not know."""
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
    """The mask id, from config.json and the tokenizer, which must agree.

    `default` is the mask id of the model family, used if neither has one.
    """
    configured, own = config.get("mask_token_id"), getattr(tokenizer, "mask_token_id", None)
    if configured is not None and own is not None and configured != own:
        raise InputError(
            f"the mask id is {configured} in config.json but {own} in the tokenizer; correct one "
            f"of them (mask_token_id or mask_token)"
        )
    for mask_id in (configured, own, default):
        if mask_id is not None:
            return int(mask_id)
    raise InputError(
        "the model has no mask id: neither config.json (mask_token_id) nor the tokenizer "
        "(mask_token) names one; add it to config.json"
    )


def find_stop(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a text, from tokenizer, config.json and generation_config.json."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    ids: list[int] = []
    for value in (
        tokenizer.eos_token_id,
        config.get("eos_token_id"),
        generation.get("eos_token_id"),
    ):
        ids += [] if value is None else value if isinstance(value, list) else [value]
    vocabulary = tokenizer.get_vocab()
    ids += [vocabulary[name] for name in _ENDS if name in vocabulary]
    return tuple(dict.fromkeys(i for i in ids if i < len(tokenizer)))
