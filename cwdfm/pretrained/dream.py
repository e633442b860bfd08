"""Dream-7B and DiffuCoder (Ye et al. 2025): Qwen2 with bidirectional attention and a logit shift.

The logits at a position predict the next token, as in the autoregressive model that the weights
were initialized from.
"""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import decoder_model, qwen_config
from cwdfm.pretrained.text_tokenizer import LoadOptions

LENGTH = 2048  # in training; config.json has the length of Qwen2


def read_dream(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a model. As in the authors' code, everything is generated in one block."""
    shape = qwen_config(config, qkv_bias=config.get("attention_bias", True))
    facts = {"shift": True, "length": min(LENGTH, config["max_position_embeddings"])}
    kind = "Qwen2Tokenizer"
    return decoder_model(folder, config, options, shape, "Dream", tokenizer_class=kind, **facts)
