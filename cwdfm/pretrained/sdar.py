"""SDAR (Cheng et al. 2025): Qwen3 with block-causal attention and no logit shift."""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import decoder_model, qwen_config
from cwdfm.pretrained.text_tokenizer import LoadOptions

BLOCK = 4  # tokens per block in models whose name does not state it


def read_sdar(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a model. Models exist with 4 to 64 tokens per block: set `block` if it is not 4."""
    shape = qwen_config(config, qk_norm=True, qkv_bias=config.get("attention_bias", False))
    block = options.block or config.get("block_size") or BLOCK
    facts = {"block": block, "length": config["max_position_embeddings"]}
    kind = "Qwen2Tokenizer"
    return decoder_model(folder, config, options, shape, "SDAR", tokenizer_class=kind, **facts)
