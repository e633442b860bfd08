"""Checkpoints that MDLM's authors published, for the transformer here, which is the same.

Their code requires flash-attn even to be imported; their weights do not. The names are those of
their checkpoints on the Hugging Face hub (`kuleshov-group/mdlm-owt` and others).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from cwdfm.data.text.fast_tokenizer import find_tokenizer
from cwdfm.errors import InputError
from cwdfm.files import read_tensors
from cwdfm.method import Flow
from cwdfm.model.transformer import DiTConfig
from cwdfm.schedule import Linear
from cwdfm.source import MaskSource

# Patterns in MDLM's parameter names, and their replacements.
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
_COMPUTED = "rotary_emb.inv_freq"  # a function of the head width; DiT does not store it


def read_mdlm(
    folder: Path, config: dict[str, Any]
) -> tuple[dict[str, Any], DiTConfig, dict[str, Tensor]]:
    """The fields of a `Pretrained`, the network's shape and its weights.

    The tokenizer is GPT-2's, unless the folder has its own. KeyError names a missing entry.
    """
    if config["time_conditioning"]:
        raise InputError(
            "this MDLM is conditioned on the noise level sigma, and models here on the time t; use "
            "one without time_conditioning"
        )
    shape = DiTConfig(
        num_tokens=config["vocab_size"],  # the mask included, as the last id
        width=config["hidden_dim"],
        depth=config["n_blocks"],
        heads=config["n_heads"],
        conditioning=config["cond_dim"],
        dropout=config["dropout"],
        time="zero",
    )
    own = (folder / "tokenizer.json").is_file()
    tokenizer = find_tokenizer(folder if own else "gpt2")
    if tokenizer.vocab_size not in (shape.num_tokens - 1, shape.num_tokens):
        raise InputError(
            f"{folder} has {shape.num_tokens} token ids, mask included, and "
            f"{'its' if own else 'the GPT-2'} tokenizer has {tokenizer.vocab_size}; put the "
            f"model's tokenizer.json into the folder"
        )
    fields = {
        "method": Flow(MaskSource(shape.num_tokens - 1), Linear()),
        "tokenizer": tokenizer,
        "length": config["model_length"],
        "card": {"origin": "a checkpoint of MDLM"},
    }
    return fields, shape, mdlm_weights(read_tensors(folder / "model.safetensors"))


def mdlm_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """MDLM's weights under the parameter names of `DiT`."""
    return {_rename(name): x for name, x in weights.items() if not name.endswith(_COMPUTED)}


def _rename(name: str) -> str:
    for pattern, replacement in _NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name
