"""Dream-7B and DiffuCoder (Ye et al. 2025): Qwen2 with bidirectional attention and a logit shift.

The logits at a position predict the next token, as in the autoregressive model that training
started from.
"""

from pathlib import Path
from typing import Any

from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import LoadOptions, qwen_config, read_decoder
from cwdfm.pretrained.text_tokenizer import find_mask, find_stop, read_tokenizer

LENGTH = 2048  # of training; config.json has the length of Qwen2


def read_dream(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """The authors generate everything in one block."""
    shape = qwen_config(config, qkv_bias=config.get("attention_bias", True))
    tokenizer = read_tokenizer(folder, options, "Qwen2Tokenizer")
    return LanguageModel(
        read_decoder(folder, shape, options),
        tokenizer,
        "Dream",
        mask_id=find_mask(config, tokenizer),
        shift=True,
        stop_ids=find_stop(folder, config, tokenizer),
        length=min(LENGTH, config["max_position_embeddings"]),
    )
