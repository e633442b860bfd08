"""Read published DiT checkpoints: parameter names, sizes and tokenizers.

MDLM, SEDD, Duo, UDLM, BD3LM and GIDD use the transformer of this library with other parameter
names. Their code cannot even be imported without flash-attn, so only their weights are read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cwdfm.data.text.fast_tokenizer import FastTokenizer, configured_token, find_tokenizer
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError
from cwdfm.method import Method
from cwdfm.model.transformer import DiTConfig
from cwdfm.pretrained.own import OwnNetwork
from cwdfm.pretrained.weights import read_weights

# Patterns in the authors' parameter names, and their replacements.
_NAMES = {
    r"^backbone\.": "",
    r"^vocab_embed\.embedding$": "embedding",
    r"^sigma_map\.mlp\.0\.": "time.first.",
    r"^sigma_map\.mlp\.2\.": "time.second.",
    r"^output_layer\.norm_final\.": "norm.",
    r"^output_layer\.linear\.": "readout.",
    r"^output_layer\.": "",
    r"\battn_qkv\.": "qkv.",
    r"\battn_out\.": "out.",
    r"\bmlp\.0\.": "up.",
    r"\bmlp\.2\.": "down.",
    r"\badaLN_modulation\.": "modulation.",
}


class Checkpoint(NamedTuple):
    """A model of another project, as the fields of a `Pretrained`."""

    fields: dict[str, Any]  # of a `Pretrained`, without the network
    shape: DiTConfig | OwnNetwork
    weights: dict[str, Tensor]  # by the parameter names of `DiT`


def dit_config(config: Mapping[str, Any], **settings: Any) -> DiTConfig:
    """Read a config.json with the field names of MDLM; a KeyError names a missing field."""
    sizes = {
        "num_tokens": config["vocab_size"],  # includes the mask
        "width": config["hidden_dim"],
        "depth": config["n_blocks"],
        "heads": config["n_heads"],
        "conditioning": config["cond_dim"],
        "dropout": config["dropout"],
    }
    return DiTConfig(**sizes | settings)


def dit_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the authors' weights to the parameter names of `DiT`."""
    return {_rename(name): x for name, x in weights.items()}


def _rename(name: str) -> str:
    for pattern, replacement in _NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name


def dit_checkpoint(
    folder: Path,
    origin: str,
    shape: DiTConfig,
    method: Method,
    length: int,
    *,
    mask: bool,
    tokenizer: str = "gpt2",
) -> Checkpoint:
    """Read the checkpoint in a folder. `mask`: whether the last id is the mask token."""
    text_tokenizer = _find_tokenizer(folder, tokenizer, shape, mask)
    card = {"origin": f"a checkpoint of {origin}"}
    fields = {"method": method, "tokenizer": text_tokenizer, "length": length, "card": card}
    weights = dit_weights(read_weights(folder))
    if shape.leave_one_out and "readout.bias" in weights:
        # Uniform noise includes a last id without text. Data does not, so it must not be predicted.
        weights["readout.bias"][text_tokenizer.vocab_size :] = -torch.inf
    return Checkpoint(fields, shape, weights)


def _find_tokenizer(folder: Path, default: str, shape: DiTConfig, mask: bool) -> TextTokenizer:
    """The tokenizer in a folder, or else the authors' default; it must match the network.

    The last id may be missing from its vocabulary if it is the mask or never occurs in data.
    """
    num_tokens = shape.num_tokens
    minimum = num_tokens - (mask or shape.leave_one_out)
    has_own = (folder / "tokenizer.json").is_file()
    tokenizer = find_tokenizer(folder if has_own else default)
    if not minimum <= tokenizer.vocab_size <= num_tokens:
        raise InputError(
            f"{folder} has {num_tokens} token ids{', mask included,' if mask else ''} and "
            f"{'its' if has_own else f'the {default}'} tokenizer has {tokenizer.vocab_size}; put "
            f"the model's tokenizer.json into the folder"
        )
    name = configured_token(folder, "mask_token") if mask and has_own else None
    if name is not None and isinstance(tokenizer, FastTokenizer):
        token_id = tokenizer.token_id(name)
        if token_id != num_tokens - 1:
            raise InputError(
                f"the mask token {name!r} in {folder} has the id {token_id}, but the mask must be "
                f"the last id of the network, {num_tokens - 1}; check tokenizer_config.json, or "
                f"wrap the network in cwdfm.Adapted(network, mask_id=...)"
            )
    return tokenizer
