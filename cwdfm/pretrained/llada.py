"""LLaDA-8B and LLaDA 1.5 (Nie et al. 2025): bidirectional attention, no logit shift."""

from pathlib import Path
from typing import Any

from cwdfm.errors import InputError
from cwdfm.language.model import LanguageModel
from cwdfm.model.decoder import DecoderConfig
from cwdfm.pretrained.decoder import decoder_model
from cwdfm.pretrained.text_tokenizer import LoadOptions

_NAMES = {
    r"^model\.transformer\.": "",
    r"^wte\.": "embedding.",
    r"^ln_f\.": "norm.",
    r"^ff_out\.": "readout.",
    r"^blocks\.": "layers.",
    r"\.attn_norm\.": ".attention_norm.",
    r"\.ff_norm\.": ".mlp_norm.",
    r"\.q_proj\.": ".qkv:0.",
    r"\.k_proj\.": ".qkv:1.",
    r"\.v_proj\.": ".qkv:2.",
    r"\.attn_out\.": ".out.",
    r"\.ff_proj\.": ".gate_up:0.",
    r"\.up_proj\.": ".gate_up:1.",
    r"\.ff_out\.": ".down.",
}
# Options of the authors' code, with the only values that published models have.
_REQUIRED = {
    "block_type": "llama",
    "rope": True,
    "alibi": False,
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "input_emb_norm": False,
    "scale_logits": False,
    "include_bias": False,
}


def read_llada(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a model. Blocks have 32 tokens, as in the authors' examples."""
    for name, value in _REQUIRED.items():
        if config.get(name, value) != value:
            raise InputError(
                f"LLaDA models with {name} = {config[name]!r} are not supported, only {value!r}; "
                f"use a published model"
            )
    heads, width = config["n_heads"], config["d_model"]
    shape = DecoderConfig(
        num_tokens=config.get("embedding_size") or config["vocab_size"],
        width=width,
        depth=config["n_layers"],
        heads=heads,
        kv_heads=config.get("n_kv_heads") or heads,
        head_width=width // heads,
        mlp_width=config.get("mlp_hidden_size") or config["mlp_ratio"] * width,
        rope_base=config["rope_theta"],
        norm_epsilon=config["rms_norm_eps"],
        qkv_bias=config.get("include_qkv_bias", False),
    )
    facts = {"block_length": 32, "length": config["max_sequence_length"]}
    return decoder_model(folder, config, options, shape, "LLaDA", names=_NAMES, **facts)
