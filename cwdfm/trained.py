"""The `Trained` interface used by sampling and scoring, with prompts and batch sizes."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cwdfm.data.fragments import expand_holes
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError, check_integer, check_strings, describe
from cwdfm.method.base import Method
from cwdfm.model.predict import model_device

# Peak activation memory of the trunk per token, in units of 4 * width bytes: the MLP (4 * width),
# q, k, v and the residual stream, with a margin.
_ACTIVATIONS = 24
_WIDTH = 1024  # assumed for networks without a `config.width`
_CPU_BUDGET = 2**30
_MAX_BATCH = {"cpu": 256, "cuda": 4096}  # larger batches are not faster and report progress rarely


@runtime_checkable
class Trained(Protocol):
    """A trained model, such as `Pretrained`."""

    @property
    def model(self) -> Any:
        """The network."""

    @property
    def method(self) -> Method:
        """The training method, which defines how the network is sampled and scored."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Converts between text and data tokens."""

    @property
    def length(self) -> int:
        """The number of tokens per training sequence."""

    @property
    def fix_first(self) -> bool:
        """Whether training always fixed the first token."""


def prompt_tokens(
    trained: Trained,
    *,
    length: int | None = None,
    prompt: str | Sequence[str] | None = None,
    template: str | Sequence[str] | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Encode a prompt or template: the tokens [N] and a mask [N] of the fixed ones.

    Both are [B, N] for a list of prompts or templates, and None if no token is fixed.

    A prompt fixes the beginning of the sequence. A template fixes the entire sequence, including
    its end, except for its holes (`Tokenizer.holes`), which sampling fills with text tokens. A text
    template may be shorter than the model's sequences. If `length` is given, it must equal the
    length of the template; this allows templates longer than the model's sequences.
    """
    if prompt is not None and template is not None:
        raise InputError(
            "prompt and template are mutually exclusive; a template can begin with the prompt"
        )
    if prompt is not None and not isinstance(prompt, str):
        return _encode_list(trained, "prompt", prompt, length)
    if template is not None and not isinstance(template, str):
        return _encode_list(trained, "template", template, length)
    requested, tokenizer = length, trained.tokenizer
    length = trained.length if requested is None else requested
    check_integer("length", length)
    if template is not None:
        if isinstance(tokenizer, SmilesTokenizer):
            template = expand_holes(template)
        row = tokenizer.frame(tokenizer.encode_template(template), length, whole=True)
        if requested is not None and requested != len(row):
            raise InputError(
                f"the template has {len(row)} tokens, including its holes, but length is "
                f"{requested}; omit length or set it to {len(row)}",
                fields=("length",),
            )
    elif prompt is not None:
        row = tokenizer.frame(tokenizer.encode(prompt), length, whole=False)
    elif trained.fix_first:
        row = [tokenizer.bos_id] + [None] * (length - 1)
    else:
        return None, None
    free = torch.tensor([token is None for token in row])
    return torch.tensor([token or 0 for token in row]), ~free


def _encode_list(
    trained: Trained, name: str, texts: Sequence[str], length: int | None
) -> tuple[Tensor, Tensor]:
    """Encode prompts, or templates of equal length: tokens and masks, both [B, N]."""
    if not isinstance(texts, Sequence):
        raise InputError(f"{name} must be a string or a list, got {describe(texts)}")
    check_strings(name, texts, f"{name}s")
    options: list[dict[str, Any]] = [{name: text} for text in texts]
    encoded = [prompt_tokens(trained, length=length, **option) for option in options]
    tokens, fixed = zip(*encoded, strict=True)
    if len(lengths := sorted({len(row) for row in tokens})) > 1:
        raise InputError(
            f"the templates have {lengths[0]} to {lengths[-1]} tokens, including their holes; all "
            f"must have the same number"
        )
    return torch.stack(tokens), torch.stack(fixed)


def auto_batch_size(trained: Trained, length: int | None = None) -> int:
    """The number of sequences that fit into available memory, up to a device-dependent maximum.

    The default `length` is the model's sequence length.
    """
    device = model_device(trained.model) or torch.device("cpu")
    width = getattr(getattr(trained.model, "config", None), "width", _WIDTH)
    sequence_bytes = (length or trained.length) * width * 4 * _ACTIVATIONS
    budget = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else _CPU_BUDGET
    return max(1, min(budget // sequence_bytes, _MAX_BATCH.get(device.type, 256)))
