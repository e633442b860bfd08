"""Small random language models in the layout of published ones."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from cwdfm.files import write_tensors

WORDS = ["the", "cat", "dog", "sat", "ran", "on", "mat", "a", "in", "sun", "moon", "red", "blue"]
WORDS += ["big", "old", "new", "house", "tree", "bird", "fish"]
SPECIAL = ["<pad>", "<mask>", "<eos>", "<|im_end|>", "[CLS]", "[SEP]"]
CHAT = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}the{% endif %}"
)
MASK, EOS = 1, 2
SIZES = {"width": 32, "mlp": 48, "depth": 2, "heads": 4, "kv_heads": 2, "vocab": 32}


def write_tokenizer(folder: Path, chat: bool = True, frames: bool = False) -> None:
    """A tokenizer of words, with 26 ids. The network has more."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    library = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate([*SPECIAL, *WORDS])}, unk_token="a")
    )
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(SPECIAL)
    if frames:
        pairs = [("[CLS]", 4), ("[SEP]", 5)]
        library.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=pairs
        )
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "mask_token": "<mask>",
        "eos_token": "[SEP]" if frames else "<eos>",
        "pad_token": "<pad>",
        "model_max_length": 128,
    }
    if frames:
        config |= {"sep_token": "[SEP]", "cls_token": "[CLS]"}
    if chat:
        config["chat_template"] = CHAT
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_model(
    folder: Path, network: nn.Module, config: dict[str, Any], rename: Any = None
) -> Path:
    """A folder with the weights of a network under other names."""
    write_tokenizer(folder)
    state = {name: x.contiguous() for name, x in network.state_dict().items()}
    if rename is not None:
        state = {rename(name): x for name, x in state.items()}
    write_tensors(folder / "model.safetensors", state)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def llada_name(name: str) -> str:
    """The name in LLaDA's checkpoints of a parameter of Llama."""
    for old, new in {
        "model.embed_tokens": "model.transformer.wte",
        "model.norm": "model.transformer.ln_f",
        "lm_head": "model.transformer.ff_out",
        "model.layers": "model.transformer.blocks",
        "self_attn.o_proj": "attn_out",
        "self_attn.": "",
        "mlp.gate_proj": "ff_proj",
        "mlp.up_proj": "up_proj",
        "mlp.down_proj": "ff_out",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ff_norm",
    }.items():
        name = name.replace(old, new)
    return name


def reference(kind: str) -> nn.Module:
    """A random causal language model of transformers: Llama, Qwen2 or Qwen3."""
    import transformers

    torch.manual_seed(0)
    s = SIZES
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=s["vocab"], hidden_size=s["width"], intermediate_size=s["mlp"],
        num_hidden_layers=s["depth"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], head_dim=8, max_position_embeddings=128,
        tie_word_embeddings=False, rms_norm_eps=1e-6,
    )  # fmt: skip
    network: nn.Module = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def write_masked_lm(folder: Path, kind: str) -> Any:
    """Save a masked language model of the class `kind`ForMaskedLM; returns the network."""
    import transformers

    torch.manual_seed(0)
    sizes = {
        "vocab_size": SIZES["vocab"], "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
        "pad_token_id": 0, "mask_token_id": MASK, "bos_token_id": 4, "eos_token_id": 5,
    }  # fmt: skip
    rotary = {"position_embedding_type": "rotary"} if kind == "Esm" else {}
    config = getattr(transformers, f"{kind}Config")(**sizes, **rotary)
    network = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    network.save_pretrained(folder)
    unused = {  # in published models
        "Bert": ("bert.pooler.dense.weight", "cls.seq_relationship.weight"),
        "Esm": ("esm.embeddings.position_embeddings.weight",),
    }
    path, more = folder / "model.safetensors", unused.get(kind, ())
    write_tensors(path, load_file(path) | {name: torch.zeros(2, 2) for name in more})
    write_tokenizer(folder, chat=False, frames=True)
    return network


def qwen_fields(kind: str, **more: Any) -> dict[str, Any]:
    """The config.json of a model with the architecture of Qwen."""
    s = SIZES
    return {
        "model_type": kind, "vocab_size": s["vocab"], "hidden_size": s["width"],
        "intermediate_size": s["mlp"], "num_hidden_layers": s["depth"],
        "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"],
        "head_dim": 8, "max_position_embeddings": 128, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "mask_token_id": MASK, "eos_token_id": EOS,
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


def write_llada(folder: Path) -> tuple[Path, nn.Module]:
    """LLaDA's layout, and the same network in transformers."""
    network, s = reference("Llama"), SIZES
    config = {
        "model_type": "llada", "d_model": s["width"], "n_heads": s["heads"],
        "n_kv_heads": s["kv_heads"], "n_layers": s["depth"], "mlp_hidden_size": s["mlp"],
        "mlp_ratio": 4, "vocab_size": s["vocab"], "embedding_size": s["vocab"],
        "rope": True, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_sequence_length": 128,
        "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu",
        "mask_token_id": MASK, "eos_token_id": EOS, "weight_tying": False,
    }  # fmt: skip
    return write_model(folder, network, config, llada_name), network


def write_qwen(folder: Path, kind: str, model_type: str, **fields: Any) -> tuple[Path, nn.Module]:
    """The layout of a model with the architecture of Qwen, and the same network in transformers."""
    network = reference(kind)
    return write_model(folder, network, qwen_fields(model_type, **fields)), network


write_dream = partial(write_qwen, kind="Qwen2", model_type="Dream")
write_sdar = partial(write_qwen, kind="Qwen3", model_type="sdar", block_size=4)
write_a2d = partial(write_qwen, kind="Qwen3", model_type="a2d-qwen3")


def block_mask(length: int, block: int) -> Tensor:
    """A mask [1, 1, N, N] with which attention is causal between blocks."""
    block_N = torch.arange(length) // block
    return (block_N[:, None] >= block_N)[None, None]


def reference_logits(
    network: nn.Module, ids_BN: Tensor, *, shift: bool = False, block: int | None = None
) -> Tensor:
    """Logits [B, N, V] by transformers with an explicit mask, one forward pass, no cache."""
    length = ids_BN.shape[1]
    allowed = block_mask(length, block or length)
    bias = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits: Tensor = network(ids_BN, attention_mask=bias.expand(len(ids_BN), -1, -1, -1)).logits
    return torch.cat([logits[:, :1], logits[:, :-1]], 1) if shift else logits


FAMILIES: dict[str, tuple[Callable[[Path], tuple[Path, nn.Module]], dict[str, Any]]] = {
    "llada": (write_llada, {}),
    "dream": (write_dream, {"shift": True}),
    "a2d": (write_a2d, {}),
    "sdar": (write_sdar, {"block": 4}),
}
