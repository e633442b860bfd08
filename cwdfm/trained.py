"""Trained models as sampling and scoring see them: the interface, prompts, batch sizes."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cwdfm.data.fragments import expand_holes
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError, check_instance, check_integer, check_strings, describe
from cwdfm.method.base import Method
from cwdfm.model.predict import model_device

# Peak activation memory of the trunk per token, in units of 4 * width bytes: the MLP of four times
# the width, q, k, v and the residual stream.
_ACTIVATIONS = 24
_WIDTH = 1024  # assumed for networks that do not say
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
        """How the network is sampled and scored."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Between text and data tokens."""

    @property
    def length(self) -> int:
        """Tokens per sequence in training."""

    @property
    def fix_first(self) -> bool:
        """Whether the first token was always given in training."""


def prompt_tokens(
    trained: Trained,
    *,
    length: int | None = None,
    prompt: str | None = None,
    template: str | Sequence[str] | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Encode a prompt or template: tokens [N] and the mask [N] of those to keep.

    For a list of templates, both are [B, N].

    Both are None if no token is fixed. A prompt fixes the beginning of the sequence. A template
    fixes the whole sequence, including its end, except for its holes (`Tokenizer.holes`), which are
    filled with text tokens. A text template may be shorter than the model's sequences. `length`, if
    given, must equal the length of the template; this permits templates longer than the model's
    sequences.
    """
    if prompt is not None and template is not None:
        raise InputError(
            "prompt and template are mutually exclusive; a template can begin with the prompt"
        )
    if template is not None and not isinstance(template, str):
        return _template_rows(trained, template, length)
    for name, text in (("prompt", prompt), ("template", template)):
        if text is not None:
            check_instance(name, text, str, "'CC'")
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


def _template_rows(
    trained: Trained, templates: Sequence[str], length: int | None
) -> tuple[Tensor, Tensor]:
    """The tokens and masks [B, N] of a list of templates, which must have equal lengths."""
    if not isinstance(templates, Sequence):
        raise InputError(f"template must be a string or a list, got {describe(templates)}")
    check_strings("template", templates, "templates")
    rows = [prompt_tokens(trained, length=length, template=each) for each in templates]
    tokens, fixed = zip(*rows, strict=True)
    if len(sizes := sorted({len(row) for row in tokens})) > 1:
        raise InputError(
            f"the templates have {sizes[0]} to {sizes[-1]} tokens, including their holes; all "
            f"must have the same number"
        )
    return torch.stack(tokens), torch.stack(fixed)


def auto_batch_size(trained: Trained, length: int | None = None) -> int:
    """The number of sequences of a length that fit into the free memory, up to a useful maximum.

    The default length is the model's.
    """
    device = model_device(trained.model) or torch.device("cpu")
    width = getattr(getattr(trained.model, "config", None), "width", _WIDTH)
    bytes_each = (length or trained.length) * width * 4 * _ACTIVATIONS
    budget = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else _CPU_BUDGET
    return max(1, min(budget // bytes_each, _MAX_BATCH.get(device.type, 256)))
