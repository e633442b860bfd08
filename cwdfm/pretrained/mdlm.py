"""Weights that MDLM's authors published, for the transformer here, which is the same.

Their code needs flash-attn even to be imported; the weights do not. Names are those of their
checkpoints on the Hugging Face hub (`kuleshov-group/mdlm-owt` and relatives).
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.model.transformer import DiTConfig

# A part of a name there, and here.
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
_COMPUTED = "rotary_emb.inv_freq"  # stored there, and a function of the head's width


def mdlm_shape(config: Mapping[str, Any]) -> DiTConfig:
    """The transformer that a config.json of MDLM describes; KeyError names what it lacks."""
    if config["time_conditioning"]:
        raise InputError(
            "this MDLM is told the noise level sigma, where models here are told t; load one "
            "without time_conditioning"
        )
    return DiTConfig(
        num_tokens=config["vocab_size"],  # the mask included, the last
        width=config["hidden_dim"],
        depth=config["n_blocks"],
        heads=config["n_heads"],
        conditioning=config["cond_dim"],
        dropout=config["dropout"],
        time="zero",
    )


def mdlm_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """MDLM's weights by the names of `DiT`."""
    return {_name(there): x for there, x in weights.items() if not there.endswith(_COMPUTED)}


def _name(there: str) -> str:
    for pattern, here in _NAMES.items():
        there = re.sub(pattern, here, there)
    return there
