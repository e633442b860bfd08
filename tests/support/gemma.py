"""A small random DiffusionGemma."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.language import SIZES, write_tokenizer

TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8,
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, "sliding_window": 16,
    "max_position_embeddings": 512, "layer_types": ["sliding_attention", "full_attention"],
    "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
CANVAS = 8


def diffusion_gemma(vocab_size: int) -> Any:
    """A `DiffusionGemmaForBlockDiffusion` with canvases of 8 tokens."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    torch.manual_seed(0)
    text = TEXT | {"vocab_size": vocab_size}
    config = DiffusionGemmaConfig(text_config=text, vision_config=VISION, canvas_length=CANVAS)
    network: Any = DiffusionGemmaForBlockDiffusion(config)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    return network.eval()


def write_gemma(folder: Path) -> Any:
    """Save a network and its tokenizer; returns the network."""
    network = diffusion_gemma(SIZES["vocab"])
    network.save_pretrained(folder)
    write_tokenizer(folder)
    return network
