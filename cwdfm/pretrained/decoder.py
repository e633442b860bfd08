"""Read published language models with the transformer of Llama or Qwen: LLaDA, Dream, SDAR and A2D.

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
from cwdfm.pretrained.weights import check_depth, check_weights, read_weights, renamed

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
LLADA_NAMES = {
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
# Options of LLaDA's code, with the only values that published models have.
LLADA_OPTIONS = {
    "block_type": "llama",
    "rope": True,
    "alibi": False,
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "input_emb_norm": False,
    "scale_logits": False,
    "include_bias": False,
}
DREAM_LENGTH = 2048  # in training; config.json has the length of Qwen2
SDAR_BLOCK = 4  # tokens per block in models whose name does not state it


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


def read_llada(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """LLaDA-8B and LLaDA 1.5 (Nie et al. 2025): bidirectional attention, no logit shift.

    Blocks have 32 tokens, as in the authors' examples.
    """
    for name, value in LLADA_OPTIONS.items():
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
    return decoder_model(folder, config, options, shape, "LLaDA", names=LLADA_NAMES, **facts)


def read_dream(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Dream-7B and DiffuCoder (Ye et al. 2025): Qwen2 with bidirectional attention and logit shift.

    The logits at a position predict the next token, as in the autoregressive model that the weights
    were initialized from. As in the authors' code, everything is generated in one block.
    """
    shape = qwen_config(config, qkv_bias=config.get("attention_bias", True))
    facts = {"shift": True, "length": min(DREAM_LENGTH, config["max_position_embeddings"])}
    kind = "Qwen2Tokenizer"
    return decoder_model(folder, config, options, shape, "Dream", tokenizer_class=kind, **facts)


def read_sdar(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """SDAR (Cheng et al. 2025): Qwen3 with block-causal attention and no logit shift.

    Models exist with 4 to 64 tokens per block: set `block` if it is not 4.
    """
    shape = qwen_config(config, qk_norm=True, qkv_bias=config.get("attention_bias", False))
    block = options.block or config.get("block_size") or SDAR_BLOCK
    facts = {"block": block, "length": config["max_position_embeddings"]}
    kind = "Qwen2Tokenizer"
    return decoder_model(folder, config, options, shape, "SDAR", tokenizer_class=kind, **facts)


def read_a2d(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Tiny-A2D (dllm): autoregressive models converted to bidirectional ones, without logit shift.

    The architecture is that of the original model: Llama, Qwen2 or Qwen3.
    """
    origin = str(config["model_type"]).rpartition("-")[2]
    bias = config.get("attention_bias", origin == "qwen2")
    shape = qwen_config(config, qkv_bias=bias, qk_norm=origin == "qwen3")
    facts = {"block_length": 32, "length": config["max_position_embeddings"]}
    return decoder_model(folder, config, options, shape, "A2D", **facts)


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
    weights = fuse(renamed(read_weights(folder), names))
    weights.setdefault("readout.weight", weights.get("embedding.weight", torch.empty(0)))
    check_depth(shape.depth, weights)
    with torch.device("meta"):
        decoder = Decoder(shape)
    check_weights({n: x.shape for n, x in decoder.state_dict().items()}, weights)
    moved = {n: x.to(options.device, options.dtype or x.dtype) for n, x in weights.items()}
    decoder.load_state_dict(moved, assign=True)
    return DecoderNetwork(decoder.eval().requires_grad_(False))


def fuse(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate the parts `layer:0.weight`, `layer:1.weight`, ... into `layer.weight`."""
    fused = {name: x for name, x in weights.items() if ":" not in name}
    parts: dict[str, list[str]] = {}
    for name in sorted(name for name in weights if ":" in name):
        parts.setdefault(re.sub(r":\d+", "", name), []).append(name)
    for fused_name, names in parts.items():
        fused[fused_name] = torch.cat([weights[name] for name in names])
    return fused
