"""Tiny-A2D (dllm): autoregressive models turned into bidirectional ones, without a logit shift."""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import LoadOptions, qwen_config, read_decoder
from cwdfm.pretrained.text_tokenizer import find_mask, find_stop, read_tokenizer


def read_a2d(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """The architecture is that of the original model: Llama, Qwen2 or Qwen3."""
    origin = str(config["model_type"]).rpartition("-")[2]
    bias = config.get("attention_bias", origin == "qwen2")
    shape = qwen_config(config, qkv_bias=bias, qk_norm=origin == "qwen3")
    tokenizer = read_tokenizer(folder, options)
    return LanguageModel(
        read_decoder(folder, shape, options),
        tokenizer,
        "A2D",
        mask_id=find_mask(config, tokenizer),
        block_length=32,
        stop_ids=find_stop(folder, config, tokenizer),
        length=config["max_position_embeddings"],
    )
