"""What the published DiT checkpoints share: parameter names, sizes and tokenizers.

MDLM, SEDD, Duo, UDLM, BD3LM and GIDD have the transformer of this library under other names. Their
code requires flash-attn even to be imported; their weights do not.
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
    """The network of a config.json with the field names of MDLM; KeyError names a missing field."""
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
    """The authors' weights under the parameter names of `DiT`."""
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
    """A checkpoint with the weights of a folder. `mask`: whether the last id is the mask token."""
    found = _find_tokenizer(folder, tokenizer, shape, mask)
    card = {"origin": f"a checkpoint of {origin}"}
    fields = {"method": method, "tokenizer": found, "length": length, "card": card}
    weights = dit_weights(read_weights(folder))
    if shape.leave_one_out and "readout.bias" in weights:
        # Uniform noise includes a last id without text, but data, and so the prediction, does not.
        weights["readout.bias"][found.vocab_size :] = -torch.inf
    return Checkpoint(fields, shape, weights)


def _find_tokenizer(folder: Path, default: str, shape: DiTConfig, mask: bool) -> TextTokenizer:
    """The tokenizer in a folder, or else the authors' own, if it fits the network.

    Its vocabulary may end before the last id, if that is the mask or never occurs in data.
    """
    num_tokens = shape.num_tokens
    least = num_tokens - (mask or shape.leave_one_out)
    own = (folder / "tokenizer.json").is_file()
    tokenizer = find_tokenizer(folder if own else default)
    if not least <= tokenizer.vocab_size <= num_tokens:
        raise InputError(
            f"{folder} has {num_tokens} token ids{', mask included,' if mask else ''} and "
            f"{'its' if own else f'the {default}'} tokenizer has {tokenizer.vocab_size}; put the "
            f"model's tokenizer.json into the folder"
        )
    name = configured_token(folder, "mask_token") if mask and own else None
    if name is not None and isinstance(tokenizer, FastTokenizer):
        found = tokenizer.token_id(name)
        if found != num_tokens - 1:
            raise InputError(
                f"the mask token {name!r} in {folder} has the id {found}, but the mask must be the "
                f"last of the network's ids, {num_tokens - 1}; check tokenizer_config.json, or "
                f"wrap the network in cwdfm.Adapted(network, mask_id=...)"
            )
    return tokenizer
