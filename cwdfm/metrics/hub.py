"""Load pretrained text models by hub name, from a local folder or from a GGUF file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from cwdfm.device import find_device
from cwdfm.errors import InputError, check_choice, load_extra

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES = ("float32", "bfloat16", "float16")
Kind = Literal["AutoModelForCausalLM", "AutoModel"]


@dataclass(frozen=True)
class TextModel:
    """A model in evaluation mode with its tokenizer."""

    model: Any
    tokenizer: Any
    device: torch.device

    @property
    def positions(self) -> int | None:
        """The longest input that the model knows positions for; None where it does not say."""
        config = self.model.config
        found = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
        return next((n for n in found if isinstance(n, int) and n > 0), None)


def load_text_model(
    kind: Kind, name: str, *, dtype: Dtype, device: str | None, revision: str | None
) -> TextModel:
    """The model and its tokenizer; InputError says what is missing and where to put it."""
    check_choice("dtype", dtype, DTYPES)
    if not isinstance(name, str | Path) or not str(name):
        raise InputError(f"model must be a hub name, a folder or a GGUF file, got {name!r}")
    place = find_device("auto" if device is None else device)
    where = whereabouts(str(name), revision)
    if "gguf_file" in where:
        for module in ("gguf", "accelerate"):  # transformers needs both to read the format
            load_extra(module, "text")
    transformers = load_extra("transformers", "text")
    try:
        with bars(shown=sys.stderr.isatty()):
            tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
            model, report = getattr(transformers, kind).from_pretrained(
                **where, dtype=getattr(torch, dtype), output_loading_info=True
            )
    except Exception as error:  # of many kinds: cut files, other models, no network, no such name
        raise InputError(_advice(kind, str(name), error)) from error
    missing = sorted(report["missing_keys"])
    # A folder of another kind of model loads too, with random weights where it has none.
    if missing and kind == "AutoModelForCausalLM":
        raise InputError(
            f"{name} lacks {len(missing)} weights of a causal language model, such as "
            f"{missing[0]}; give a model that was trained to predict the next token"
        )
    known = model.get_input_embeddings().num_embeddings
    if (largest := max(tokenizer.get_vocab().values())) >= known:
        raise InputError(
            f"{name}: its tokenizer has ids up to {largest}, its model knows 0..{known - 1}; "
            f"put tokenizer and weights of one model into the folder"
        )
    return TextModel(model.to(place).eval(), tokenizer, place)


@contextmanager
def bars(*, shown: bool) -> Iterator[None]:
    """Keep progress bars of transformers off for a while, unless they are to be shown.

    Those that are off stay off.
    """
    logging = load_extra("transformers.utils.logging", "text")
    if shown or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def whereabouts(name: str, revision: str | None = None) -> dict[str, Any]:
    """What from_pretrained takes for a GGUF file, a folder or a hub name; the hub is not asked."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"there is no GGUF file {name}; give the path of an existing one")
        folder = str(path.parent)
        return {"pretrained_model_name_or_path": folder, "gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"the folder {name} has no config.json; it needs what save_pretrained writes: "
                f"config.json, model.safetensors, tokenizer.json, tokenizer_config.json"
            )
        return {"pretrained_model_name_or_path": str(path)}
    if path.is_file() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(
            f"there is no folder {name}; give a hub name such as gpt2-large, an existing folder "
            f"with config.json, weights and tokenizer, or a file that ends in .gguf"
        )
    return {"pretrained_model_name_or_path": name, "revision": revision or "main"}


def _advice(kind: Kind, name: str, error: BaseException) -> str:
    reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    path = Path(name).expanduser()
    if path.is_file():
        return (
            f"{name} cannot be loaded ({reason}); it is no whole GGUF file, or of an architecture "
            f"that transformers does not know: copy it again, or give a folder or hub name"
        )
    if path.exists():
        what = "a causal language model" if kind == "AutoModelForCausalLM" else "one model"
        return (
            f"{name} cannot be loaded ({reason}); a folder needs config.json, model.safetensors, "
            f"tokenizer.json and tokenizer_config.json of {what}, as save_pretrained writes them"
        )
    return (
        f"{name!r} is no folder here and could not be had from the Hugging Face hub ({reason}); "
        f"check name and connection, or download it elsewhere (hf download {name} --local-dir "
        f"FOLDER), copy the folder here and give its path"
    )
