"""SDAR (Cheng et al. 2025): Qwen3 with attention that is causal between blocks, no logit shift."""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import decoder_model, qwen_config
from cwdfm.pretrained.text_tokenizer import LoadOptions

BLOCK = 4  # of the models without a size in their name


def read_sdar(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Blocks of 4 tokens unless `block` says otherwise: models exist with 4 to 64."""
    shape = qwen_config(config, qk_norm=True, qkv_bias=config.get("attention_bias", False))
    block = options.block or config.get("block_size") or BLOCK
    facts = {"block": block, "length": config["max_position_embeddings"]}
    kind = "Qwen2Tokenizer"
    return decoder_model(folder, config, options, shape, "SDAR", tokenizer_class=kind, **facts)
