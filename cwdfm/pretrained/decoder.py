"""Read published language models with the transformer of Llama or Qwen.

The code in their repositories is not executed. Their weights are loaded into `Decoder`, which adds
masks and caches that the authors' code does not have.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.language.model import LanguageModel, Network
from cwdfm.model.attention import KVCache
from cwdfm.model.decoder import Decoder, DecoderConfig
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_mask, find_stop, read_tokenizer
from cwdfm.pretrained.weights import check_depth, check_weights, read_weights

# Patterns in the parameter names of Qwen and Llama, and their replacements. Numbers mark the parts
# of fused layers.
NAMES = {
    r"^model\.embed_tokens\.": "embedding.",
    r"^model\.norm\.": "norm.",
    r"^lm_head\.": "readout.",
    r"^model\.layers\.": "layers.",
    r"\.input_layernorm\.": ".attention_norm.",
    r"\.post_attention_layernorm\.": ".mlp_norm.",
    r"\.self_attn\.q_norm\.": ".query_norm.",
    r"\.self_attn\.k_norm\.": ".key_norm.",
    r"\.self_attn\.q_proj\.": ".qkv:0.",
    r"\.self_attn\.k_proj\.": ".qkv:1.",
    r"\.self_attn\.v_proj\.": ".qkv:2.",
    r"\.self_attn\.o_proj\.": ".out.",
    r"\.mlp\.gate_proj\.": ".gate_up:0.",
    r"\.mlp\.up_proj\.": ".gate_up:1.",
    r"\.mlp\.down_proj\.": ".down.",
}


class DecoderNetwork(Network):
    """Adapts a `Decoder` to the network interface of language models."""

    graphs = True

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    @property
    def num_tokens(self) -> int:
        return self.decoder.config.num_tokens

    def hidden(
        self,
        ids_BM: Tensor,
        position_BM: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
        keep_L: Tensor | None = None,
    ) -> Tensor:
        hidden_BLD: Tensor = self.decoder(ids_BM, position_BM, mask, cache, keep_L)
        return hidden_BLD

    def logits(self, hidden_KD: Tensor) -> Tensor:
        logits_KV: Tensor = self.decoder.readout(hidden_KD)
        return logits_KV


def qwen_config(config: Mapping[str, Any], **settings: Any) -> DecoderConfig:
    """Read the sizes from a config.json with the field names of Llama, Qwen2 and Qwen3."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (rope_type := rope.get("rope_type", rope.get("type", "default"))) != "default":
        raise InputError(
            f"rotary positions of type {rope_type!r} are not supported, only type 'default'"
        )
    heads = config["num_attention_heads"]
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise InputError(f"the activation {activation!r} is not supported, only 'silu'")
    sizes = {
        "num_tokens": config["vocab_size"],
        "width": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_width": config.get("head_dim") or config["hidden_size"] // heads,
        "mlp_width": config["intermediate_size"],
        "rope_base": float(rope.get("rope_theta") or config["rope_theta"]),
        "norm_epsilon": config["rms_norm_eps"],
    }
    return DecoderConfig(**sizes | settings)


def decoder_model(
    folder: Path,
    config: dict[str, Any],
    options: LoadOptions,
    shape: DecoderConfig,
    family: str,
    *,
    names: Mapping[str, str] = NAMES,
    tokenizer_class: str = "AutoTokenizer",
    **facts: Any,
) -> LanguageModel:
    """Read the language model in a folder; `facts` are further fields of `LanguageModel`."""
    tokenizer = read_tokenizer(folder, options, tokenizer_class)
    facts |= {"mask_id": find_mask(config, tokenizer)}
    facts |= {"stop_ids": find_stop(folder, config, tokenizer)}
    return LanguageModel(read_decoder(folder, shape, options, names), tokenizer, family, **facts)


def read_decoder(
    folder: Path, shape: DecoderConfig, options: LoadOptions, names: Mapping[str, str] = NAMES
) -> DecoderNetwork:
    """Read the network in a folder, on the device and in the dtype of the options."""
    weights = fuse({rename(name, names): x for name, x in read_weights(folder).items()})
    weights.setdefault("readout.weight", weights.get("embedding.weight", torch.empty(0)))
    check_depth(shape.depth, weights)
    with torch.device("meta"):
        decoder = Decoder(shape)
    check_weights({n: x.shape for n, x in decoder.state_dict().items()}, weights)
    moved = {n: x.to(options.device, options.dtype or x.dtype) for n, x in weights.items()}
    decoder.load_state_dict(moved, assign=True)
    return DecoderNetwork(decoder.eval().requires_grad_(False))


def rename(name: str, names: Mapping[str, str]) -> str:
    """Apply all replacements to a parameter name."""
    for pattern, replacement in names.items():
        name = re.sub(pattern, replacement, name)
    return name


def fuse(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate the parts `layer:0.weight`, `layer:1.weight`, ... into `layer.weight`."""
    fused = {name: x for name, x in weights.items() if ":" not in name}
    parts: dict[str, list[str]] = {}
    for name in sorted(name for name in weights if ":" in name):
        parts.setdefault(re.sub(r":\d+", "", name), []).append(name)
    for fused_name, names in parts.items():
        fused[fused_name] = torch.cat([weights[name] for name in names])
    return fused
