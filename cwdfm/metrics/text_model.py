"""Pretrained text models for the metrics: loading, features, and fingerprints."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cwdfm.data.readers import summarize_error
from cwdfm.device import find_device
from cwdfm.errors import InputError, load_extra
from cwdfm.hub import hub_options

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES = get_args(Dtype)
AutoClass = Literal["AutoModelForCausalLM", "AutoModel"]

# Tokens per forward pass. On a CPU, larger batches are not faster. On a GPU, the limit is a share
# of the available memory, but at most MAX_TOKENS, which is enough to keep the device busy.
CPU_TOKENS, MAX_TOKENS = 2**11, 2**15
MEMORY_SHARE = 0.25
_HASH_BLOCK = 1 << 16


@dataclass(frozen=True)
class TextModel:
    """A model in eval mode and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any
    device: torch.device

    @property
    def max_positions(self) -> int | None:
        """The maximum input length; None if the configuration does not state one."""
        config = self.model.config
        sizes = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
        return next((n for n in sizes if isinstance(n, int) and n > 0), None)

    def conventions(self) -> dict[str, Any]:
        """The settings to report with a result; `revision` is the commit on the hub, or None."""
        return {
            "model": self.name,
            "revision": getattr(self.model.config, "_commit_hash", None),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.device),
        }

    @torch.inference_mode()
    def features(
        self, sequences: Sequence[Sequence[int]], budget: int, pool: Callable[..., Tensor]
    ) -> NDArray[np.float32]:
        """Features [S, D]: pool(last hidden states [B, T, D], attention mask [B, T])."""
        if empty := [k for k, ids in enumerate(sequences) if not ids]:
            raise InputError(
                f"{len(empty)} of {len(sequences)} texts are empty, first at index {empty[0]}; "
                f"empty texts have no features: remove them, and report how many were removed"
            )
        parts: dict[int, Tensor] = {}
        for batch in length_batches([len(ids) for ids in sequences], budget):
            ids_BT, mask_BT = pad_right([sequences[k] for k in batch], self.device)
            hidden_BTD = self.model.base_model(input_ids=ids_BT, attention_mask=mask_BT)[0]
            real_BT = torch.ones_like(ids_BT) if mask_BT is None else mask_BT
            parts |= dict(zip(batch, pool(hidden_BTD, real_BT).float().cpu(), strict=True))
        features: NDArray[np.float32] = torch.stack([parts[k] for k in sorted(parts)]).numpy()
        return features


def load_text_model(
    auto_class: AutoClass,
    name: str,
    *,
    dtype: Dtype,
    device: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> TextModel:
    """Load a model and its tokenizer; raises InputError if files are missing or do not match.

    Python code from the model's repository runs only with `trust_remote_code`; see `cwdfm.hub`.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise InputError(f"model must be a hub name, a folder or a GGUF file, got {name!r}")
    target = find_device(device)
    location = locate_model(str(name))
    if "gguf_file" in location:
        for module in ("gguf", "accelerate"):  # transformers needs both to read GGUF files
            load_extra(module, "text")
    transformers = load_extra("transformers", "text")
    try:
        location |= hub_options(str(name), revision, trust_remote_code)
        with hub_progress_bars(shown=sys.stderr.isatty()):
            tokenizer = transformers.AutoTokenizer.from_pretrained(**location)
            model, report = getattr(transformers, auto_class).from_pretrained(
                **location, dtype=getattr(torch, dtype), output_loading_info=True
            )
    except InputError:
        raise
    except Exception as error:  # damaged files, other architectures, no network, unknown names
        raise InputError(_load_error(auto_class, str(name), error)) from error
    missing = sorted(report["missing_keys"])
    # transformers initializes missing weights at random, for example in a model without an LM head.
    if missing and auto_class == "AutoModelForCausalLM":
        raise InputError(
            f"{name} is missing {len(missing)} weights of a causal language model, such as "
            f"{missing[0]}; choose a model that was trained to predict the next token"
        )
    size = model.get_input_embeddings().num_embeddings
    if (largest := max(tokenizer.get_vocab().values())) >= size:
        raise InputError(
            f"{name}: the tokenizer has ids up to {largest}, but the model accepts 0..{size - 1}; "
            f"use the tokenizer and the weights of the same model"
        )
    model.config.use_cache = False  # not needed for scoring
    return TextModel(str(name), model.to(target).eval(), tokenizer, target)


@contextmanager
def hub_progress_bars(*, shown: bool) -> Iterator[None]:
    """Disable the progress bars of transformers inside the block, unless `shown`."""
    logging = load_extra("transformers.utils.logging", "text")
    hidden = not shown and logging.is_progress_bar_enabled()
    if hidden:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hidden:
            logging.enable_progress_bar()


def locate_model(name: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a GGUF file, a folder or a hub name (without network)."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"there is no GGUF file {name}; pass the path of an existing file")
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"the folder {name} has no config.json; it needs the files that save_pretrained "
                f"writes: config.json, model.safetensors, tokenizer.json, tokenizer_config.json"
            )
        return {"pretrained_model_name_or_path": str(path)}
    if path.is_file() or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(
            f"there is no folder {name}; pass a hub name such as gpt2-large, an existing folder "
            f"with config.json, weights and tokenizer, or a file that ends in .gguf"
        )
    return {"pretrained_model_name_or_path": name}


def _load_error(auto_class: AutoClass, name: str, error: Exception) -> str:
    reason, local = summarize_error(error), Path(name).expanduser().exists()
    if "trust_remote_code" in str(error):
        consent = "trust_remote_code=True" + ("" if local else " and revision=COMMIT")
        return (
            f"{name} requires Python code from its repository, which is not run by default; choose "
            f"a model that transformers supports natively, or read the code and pass {consent}"
        )
    if local:
        kind = "a causal language model" if auto_class == "AutoModelForCausalLM" else "one model"
        return (
            f"{name} cannot be loaded ({reason}); a folder needs config.json, model.safetensors, "
            f"tokenizer.json and tokenizer_config.json of {kind}, as save_pretrained writes them, "
            f"and a GGUF file must be complete and of an architecture that transformers supports"
        )
    return (
        f"{name!r} is not a local folder and could not be loaded from the Hugging Face hub "
        f"({reason}); check the name and the connection, or download the model on another machine "
        f"(hf download {name} --local-dir FOLDER), copy the folder and pass its path"
    )


def token_budget(device: torch.device, bytes_per_token: int) -> int:
    """The number of tokens per forward pass that fit into memory, padding included."""
    if device.type != "cuda":
        return CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MAX_TOKENS, int(free * MEMORY_SHARE) // bytes_per_token))


def length_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group sequence indices into batches of at most `budget` tokens, padding included.

    The longest sequences come first, so that out-of-memory errors occur early. A sequence longer
    than the budget is its own batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    first = 0
    while first < len(order):
        size = max(1, budget // max(1, lengths[order[first]]))
        yield order[first : first + size]
        first += size


def pad_right(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Ids [B, T] padded with 0, and the attention mask [B, T] (None without padding)."""
    ids_BT = pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True)
    length_B = torch.tensor([len(ids) for ids in sequences])
    mask_BT = (torch.arange(ids_BT.shape[1]) < length_B[:, None]).long()
    return ids_BT.to(device), None if mask_BT.all() else mask_BT.to(device)


def model_fingerprint(name: str) -> dict[str, Any]:
    """The name of a model and a digest of its files, to distinguish models with the same name.

    The digest covers the size and the first and last 64 KiB of each file, which suffices because
    different weights differ everywhere. It is None for a hub name. File names are included only for
    a folder.
    """
    path = Path(name).expanduser()
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            size = file.stat().st_size
            digest.update(f"{file.name if path.is_dir() else ''} {size} ".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(_HASH_BLOCK))
                stream.seek(max(0, size - _HASH_BLOCK))
                digest.update(stream.read())
    return {"model": name, "files": digest.hexdigest() if files else None}
