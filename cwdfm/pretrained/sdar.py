"""SDAR (Cheng et al. 2025): Qwen3 with attention that is causal between blocks, no logit shift."""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import LoadOptions, qwen_config, read_decoder
from cwdfm.pretrained.text_tokenizer import find_mask, find_stop, read_tokenizer

BLOCK = 4  # of the models without a size in their name


def read_sdar(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Blocks of 4 tokens unless `block` says otherwise: models exist with 4 to 64."""
    shape = qwen_config(config, qk_norm=True, qkv_bias=config.get("attention_bias", False))
    tokenizer = read_tokenizer(folder, options, "Qwen2Tokenizer")
    return LanguageModel(
        read_decoder(folder, shape, options),
        tokenizer,
        "SDAR",
        mask_id=find_mask(config, tokenizer),
        block=options.block or config.get("block_size") or BLOCK,
        stop_ids=find_stop(folder, config, tokenizer),
        length=config["max_position_embeddings"],
    )
