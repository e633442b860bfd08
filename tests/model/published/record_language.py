"""Record the logits that the authors' code of language models computes from small random weights.

Clone the repositories of `COMMITS` into one folder, then, with transformers 4.52 and einops,

    python -m tests.model.published.record_language FOLDER

This writes one file per network next to this script, as `record.py` does. It also calls the
networks of LLaDA2 and SDAR in the way of `CausalLMNetwork`, block by block behind a cache, and
compares the logits with those of one call. flash-attn and the authors' training framework are
replaced: their attention and norms are those of PyTorch.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from cwdfm.model.attention import KVCache
from cwdfm.pretrained.transformers_models import CausalLMNetwork

COMMITS = {
    "NVlabs/Fast-dLLM": "24cc59e75f20a6384bae8c905965bb090b96388e",  # carries LLaDA's and Dream's
    "JetAstra/SDAR": "c2041a8333333d685f6e15122c84f60f51f85ebd",
    "inclusionAI/dFactory": "92b6890808088b112fcf5fc73a341b78b6ab76bf",  # carries LLaDA2's
}
TOKENS, LENGTH, BLOCK, MASK, EOS = 32, 12, 4, 1, 2


def replace_packages() -> None:
    """Stand-ins for packages that need a GPU or are not used in evaluation."""
    import_module("transformers.modeling_utils")  # before: it looks for the real flash-attn
    names = ["flash_attn.ops.triton.layer_norm", "flash_attn.bert_padding", "veomni.ops"]
    names += ["veomni.distributed.parallel_state", "veomni.utils.import_utils", "veomni.utils"]
    names += ["sdar.fused_linear_diffusion_cross_entropy"]
    for name in names:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            path = ".".join(parts[:count])
            module = sys.modules.setdefault(path, ModuleType(path))
            module.__path__, module.__spec__ = [], ModuleSpec(path, None)
    given: dict[str, dict[str, Any]] = {
        "flash_attn.ops.triton.layer_norm": {
            "rms_norm_fn": lambda x, weight, bias, eps: F.rms_norm(x, weight.shape, weight, eps)
        },
        "flash_attn": {"flash_attn_func": attend, "flash_attn_varlen_func": None},
        "flash_attn.bert_padding": dict.fromkeys(("index_first_axis", "pad_input", "unpad_input")),
        "veomni.ops": dict.fromkeys(("causallm_loss_function", "fused_moe_forward")),
        "veomni.distributed.parallel_state": {"get_parallel_state": None},
        "veomni.utils.import_utils": {"is_liger_kernel_available": lambda: False},
        "veomni.utils": {"logging": import_module("transformers.utils.logging")},
        "sdar.fused_linear_diffusion_cross_entropy": {"FusedLinearDiffusionCrossEntropyLoss": None},
    }
    for name, members in given.items():
        for member, value in members.items():
            setattr(sys.modules[name], member, value)


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """flash-attn's attention of [B, M, H, d]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


def load(folder: Path, package: str, module: str) -> Any:
    """Import a module of a folder, without running the folder's `__init__`."""
    sys.modules.setdefault(package, ModuleType(package)).__path__ = [str(folder)]
    return import_module(f"{package}.{module}")


def randomize(network: nn.Module) -> Any:
    torch.manual_seed(0)
    for name, weight in network.named_parameters():
        nn.init.normal_(weight, mean=float("norm" in name), std=0.3)
    return network.float().eval()


@torch.no_grad()
def record(name: str, config: Any, network: Any, call: Callable[[Tensor], Tensor]) -> None:
    x = torch.randint(0, TOKENS - 6, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    tensors = {f"weights.{key}": value for key, value in network.state_dict().items()}
    tensors |= {"x": x, "logits": call(x)}
    fields = json.loads(json.dumps(config.to_dict(), default=str))
    path = Path(__file__).with_name(f"{name}.safetensors")
    kept = {key: value.contiguous() for key, value in tensors.items()}
    save_file(kept, path, {"config": json.dumps(fields)})


def record_llada(clones: Path) -> None:
    folder = clones / "Fast-dLLM" / "llada" / "model"
    code = load(folder, "llada", "modeling_llada")
    config = code.LLaDAConfig(
        d_model=16, n_heads=4, n_kv_heads=4, n_layers=2, mlp_hidden_size=24, vocab_size=TOKENS,
        embedding_size=TOKENS, max_sequence_length=64, rope=True, rope_theta=500000.0,
        block_type="llama", layer_norm_type="rms", activation_type="silu", weight_tying=False,
        include_bias=False, include_qkv_bias=False, flash_attention=False, attention_dropout=0.0,
        residual_dropout=0.0, embedding_dropout=0.0, mask_token_id=MASK, eos_token_id=EOS,
        pad_token_id=0, bias_for_layer_norm=False, alibi=False,
    )  # fmt: skip
    network = randomize(code.LLaDAModelLM(config, init_params=True))
    record("llada", config, network, lambda x: network(x).logits)


def qwen_sizes(**more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": TOKENS}
    ids = {"mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": 0}
    return {**sizes, **ids, "max_position_embeddings": 64, "tie_word_embeddings": False, **more}


def record_dream(clones: Path) -> None:
    folder = clones / "Fast-dLLM" / "dream" / "model"
    code = load(folder, "dream", "modeling_dream")
    config = code.DreamConfig(**qwen_sizes(rope_theta=1e6))
    config._attn_implementation = "sdpa"
    network = randomize(code.DreamModel(config))
    record("dream", config, network, lambda x: network(x, attention_mask="full").logits)


def block_mask(length: int) -> Tensor:
    place = torch.arange(length) // BLOCK
    return (place[:, None] >= place[None, :])[None, None]


def record_sdar(clones: Path) -> None:
    folder = clones / "SDAR" / "training" / "model" / "SDAR-8B-Chat"
    code = load(folder, "sdar", "modeling_sdar")
    config = code.SDARConfig(**qwen_sizes(head_dim=8, rope_theta=1e6, block_size=BLOCK))
    config.fuse_cross_entropy = False
    network = randomize(code.SDARForCausalLM(config))

    def call(x: Tensor) -> Any:
        mask = block_mask(LENGTH).expand(len(x), -1, -1, -1)
        return network(x, attention_mask=mask, use_cache=False).logits

    record("sdar", config, network, call)
    compare_cached("SDAR", CausalLMNetwork(network, "sdar_moe"), call)


def check_llada2(clones: Path) -> None:
    folder = clones / "dFactory" / "models" / "llada2_moe"
    code = load(folder, "llada2", "modeling_llada2_moe")
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    experts |= {"num_shared_experts": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
    config = code.LLaDA2MoeConfig(
        **qwen_sizes(head_dim=8, rope_theta=1e4, use_bias=False, use_qkv_bias=False), **experts
    )
    config.model_type = "llada2_moe"
    config._attn_implementation = "sdpa"
    network = randomize(code.LLaDA2MoeModelLM(config))

    def call(x: Tensor) -> Any:
        bias = torch.zeros(len(x), 1, LENGTH, LENGTH)
        bias = bias.masked_fill(~block_mask(LENGTH), torch.finfo(torch.float32).min)
        position = torch.arange(LENGTH).expand(len(x), -1)
        return network(x, attention_mask=bias, position_ids=position, use_cache=False).logits

    compare_cached("LLaDA2", CausalLMNetwork(network, "llada2_moe"), call)


@torch.no_grad()
def compare_cached(name: str, network: CausalLMNetwork, call: Callable[[Tensor], Tensor]) -> None:
    """Print how far logits behind a cache are from those of one call."""
    x = torch.randint(0, TOKENS, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    position, cache, parts = torch.arange(LENGTH).expand(3, -1), KVCache(LENGTH), []
    for start in range(0, LENGTH, BLOCK):
        columns = slice(start, start + BLOCK)
        cache.start, cache.end = start, start + BLOCK
        hidden = network.hidden(x[:, columns], position[:, columns], None, cache)
        parts.append(network.logits(hidden))
    expected = call(x)
    whole = network.logits(network.hidden(x, position, block_mask(LENGTH), None))
    distances = [float((found - expected).abs().max()) for found in (whole, torch.cat(parts, 1))]
    print(f"{name}: one call differs by {distances[0]:.1e}, behind a cache by {distances[1]:.1e}")


def main(clones: Path) -> None:
    replace_packages()
    record_llada(clones)
    record_dream(clones)
    record_sdar(clones)
    check_llada2(clones)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
