"""Tiny-A2D (dllm): autoregressive models converted to bidirectional ones, without logit shift."""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import decoder_model, qwen_config
from cwdfm.pretrained.text_tokenizer import LoadOptions


def read_a2d(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a model with the architecture of its original model: Llama, Qwen2 or Qwen3."""
    origin = str(config["model_type"]).rpartition("-")[2]
    bias = config.get("attention_bias", origin == "qwen2")
    shape = qwen_config(config, qkv_bias=bias, qk_norm=origin == "qwen3")
    facts = {"block_length": 32, "length": config["max_position_embeddings"]}
    return decoder_model(folder, config, options, shape, "A2D", **facts)
