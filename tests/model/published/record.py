"""Record the logits that the authors' code computes from small random weights.

Clone the repositories of `COMMITS` into one folder, then

    pip install einops omegaconf
    python -m tests.model.published.record FOLDER

This writes one file per network next to this script: the weights under their published names, the
inputs `x` and `time` of the network, its output `logits`, and config.json as metadata. flash-attn
needs a GPU; PyTorch's attention and the definition of rotary embeddings replace it.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

COMMITS = {
    "kuleshov-group/mdlm": "c112c526d193436838c98d81455ee51f90309470",
    "louaaron/Score-Entropy-Discrete-Diffusion": "0605786da5ccb5747545e26d66fdf477187598b6",
    "s-sahoo/duo": "7c9b498f5b717de064d6fad7e2509c866e6cb620",
    "kuleshov-group/discrete-diffusion-guidance": "edb0f8c28b7caeb4ea7a06a2fee8d74ab6da1661",
    "kuleshov-group/bd3lms": "1c3e8f43d88dfbcee5ff2aa6932a9e74b31ae1d7",
    "dvruette/gidd": "f67acc961cc858cc69e8e6d91e7eb67a0a79151c",
}
TOKENS, LENGTH, BLOCK, CLASSES = 8, 12, 4, 3
SHAPE = {"hidden_dim": 12, "cond_dim": 4, "n_blocks": 2, "n_heads": 2, "dropout": 0.25}
HYDRA = {"hidden_size": 12, "cond_dim": 4, "n_blocks": 2, "n_heads": 2, "dropout": 0.25}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embeddings of x [..., N, H, d] by cos and sin [N, d / 2]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotate_packed(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """flash-attn's rotation of queries and keys in qkv [B, N, 3, H, d]."""
    q, k, v = qkv.unbind(2)
    return torch.stack([rotate(q, cos, sin), rotate(k, cos, sin), v], dim=2)


def attend_packed(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: float, causal: bool
) -> Tensor:
    """flash-attn's attention of qkv [B N, 3, H, d], for sequences of one length."""
    q, k, v = qkv.unflatten(0, (-1, max_seqlen)).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
    return out.transpose(1, 2).flatten(0, 1)


def replace_flash_attention() -> None:
    import_module("transformers.modeling_utils")  # before: it looks for the real flash-attn
    names = ("flash_attn", "flash_attn.layers", "flash_attn.layers.rotary")
    modules = {name: ModuleType(name) for name in (*names, "flash_attn.flash_attn_interface")}
    sys.modules |= modules
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    rotary: Any = modules["flash_attn.layers.rotary"]
    rotary.apply_rotary_emb_qkv_, rotary.apply_rotary_emb_torch = rotate_packed, rotate
    interface: Any = modules["flash_attn.flash_attn_interface"]
    interface.flash_attn_varlen_qkvpacked_func = attend_packed


def load(folder: Path, module: str, name: str = "") -> Any:
    """Import a module of a folder of a clone, without running the folder's `__init__`."""
    package = ModuleType(name or f"{folder.parent.name}_{folder.name}".replace("-", "_"))
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    return import_module(f"{package.__name__}.{module}")


def randomize(network: nn.Module) -> nn.Module:
    """Random parameters: the authors' initialization sets gates and outputs to zero."""
    for name, weight in network.named_parameters():
        nn.init.normal_(weight, mean=float(".norm" in name), std=0.5)
    return network.eval()


@torch.no_grad()
def record(
    name: str,
    config: dict[str, Any],
    network: nn.Module,
    call: Callable[[Tensor, Tensor], Tensor],
    time: list[float],
    *,
    prefix: str = "",
    length: int = LENGTH,
    tokens: int = TOKENS,
    more: Callable[[Tensor, Tensor], dict[str, Tensor]] = lambda x, time: {},
) -> None:
    x = torch.randint(0, tokens, (len(time), length))
    time_B = torch.tensor(time)
    tensors = {f"weights.{prefix}{key}": value for key, value in network.state_dict().items()}
    tensors |= {"x": x, "time": time_B, "logits": call(x, time_B), **more(x, time_B)}
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    path = Path(__file__).with_name(f"{name}.safetensors")
    save_file(tensors, path, {"config": json.dumps(config)})


def record_mdlm(clones: Path, sigma: list[float]) -> None:
    dit = load(clones / "mdlm" / "models", "dit")
    network = randomize(dit.DIT({"model": {**HYDRA, "scale_by_sigma": True}}, TOKENS))
    config = {"model_type": "mdlm", "vocab_size": TOKENS, "model_length": LENGTH, **SHAPE}
    on, off = ({**config, "time_conditioning": given} for given in (True, False))
    record("mdlm-time", on, network, network, sigma, prefix="backbone.")
    without = [0.0] * len(sigma)
    record("mdlm", off, network, network, without, prefix="backbone.")


def record_sedd(clones: Path, sigma: list[float]) -> None:
    transformer = load(clones / "Score-Entropy-Discrete-Diffusion" / "model", "transformer")
    noise = {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20}
    for name, graph in (("sedd", "absorb"), ("sedd-uniform", "uniform")):
        absorb = graph == "absorb"
        model = {"type": "ddit", "length": LENGTH, "scale_by_sigma": absorb, **HYDRA}
        config = {"tokens": TOKENS - 1, "graph": {"type": graph}, "noise": noise}
        config["model"] = model
        network = randomize(transformer.SEDD(config))
        record(name, config, network, network, sigma, tokens=TOKENS - 1 + absorb)


def record_duo(clones: Path, sigma: list[float]) -> None:
    dit = load(clones / "duo" / "models", "dit")
    hydra = {"model": {**HYDRA, "scale_by_sigma": True}, "algo": {"causal_attention": False}}
    network = randomize(dit.DIT(hydra, TOKENS))
    config = {"model_type": "duo", "vocab_size": TOKENS, "model_length": LENGTH, **SHAPE}
    config |= {"causal": False, "var_min": True}
    record("duo", config, network, network, sigma, prefix="backbone.")


def record_udlm(clones: Path, sigma: list[float]) -> None:
    hf = clones / "discrete-diffusion-guidance" / "models" / "hf"
    udlm, configuration = load(hf, "modeling_udlm"), load(hf, "configuration_udlm")
    sizes = {"vocab_size": TOKENS, "model_length": LENGTH, **SHAPE}
    for name, guided in (("udlm", False), ("udlm-guidance", True)):
        config = configuration.UDLMConfig(**sizes, cfg=guided, cfg_num_classes=CLASSES)
        network = randomize(udlm.UDLM(config))

        def call(x: Tensor, sigma_B: Tensor, network: Any = network, guided: bool = guided) -> Any:
            unconditional = torch.full((len(x),), CLASSES)
            return network.backbone(x, sigma_B, cond=unconditional if guided else None)[0]

        record(name, config.to_dict(), network, call, sigma)


def record_bd3lm(clones: Path) -> None:
    hf = clones / "bd3lms" / "models" / "hf"
    bd3lm, configuration = load(hf, "modeling_bd3lm"), load(hf, "configuration_bd3lm")
    sizes = {"vocab_size": TOKENS, "model_length": LENGTH, "block_size": BLOCK, **SHAPE}
    for name, adaptive in (("bd3lm", True), ("bd3lm-plain", False)):
        config = configuration.BD3LMConfig(**sizes, attn_backend="sdpa", adaln=adaptive)
        network: Any = randomize(bd3lm.BD3LM(config))

        def call(x: Tensor, t: Tensor, network: Any = network) -> Any:
            return network.backbone(x, t)[0]

        record(name, config.to_dict(), network, call, [0.0] * 3, length=2 * LENGTH)


def record_gidd(clones: Path, time: list[float]) -> None:
    models = clones / "gidd" / "gidd" / "models"
    dit, configuration = load(models, "modeling_dit"), load(models, "configuration_dit")
    config = configuration.DITConfig(
        vocab_size=TOKENS,
        max_seq_len=LENGTH,
        hidden_size=SHAPE["hidden_dim"],
        timestep_cond_dim=SHAPE["cond_dim"],
        num_hidden_layers=SHAPE["n_blocks"],
        num_attention_heads=SHAPE["n_heads"],
        p_uniform=0.2,
    )
    network = randomize(dit.DIT(config))

    class Tokenizer:
        mask_token_id = TOKENS - 1
        __len__ = lambda self: TOKENS  # noqa: E731

    sampling, loss = (load(clones / "gidd" / "gidd", m, "gidd") for m in ("sampling", "loss"))
    process = load(clones / "gidd" / "gidd", "diffusion_process", "gidd")
    noise = process.HybridDiffusion(Tokenizer(), p_uniform=0.2)
    sampling.sample_categorical = lambda law: law  # steps return their distribution
    weighting = {"loss_weighting": "none", "min_loss_weight": 0.0, "max_loss_weight": 2.0}
    objective = loss.GiddLoss(
        SimpleNamespace(loss=SimpleNamespace(**weighting)), Tokenizer(), noise
    )

    def formulas(z: Tensor, time_B: Tensor) -> dict[str, Tensor]:
        """The distribution after a step to 0.6 time, and the bound's integrand for data x_1."""
        x_1 = torch.where(torch.rand(z.shape) < 0.5, z, torch.randint_like(z, TOKENS - 1))
        x_1 = x_1.clamp(max=TOKENS - 2)
        step = sampling.GiddSampler.DenoisingStep(network, noise, Tokenizer())
        law = torch.cat([step(z[b : b + 1], t[None], 0.6 * t[None]) for b, t in enumerate(time_B)])
        elbo = objective.loss(network(z, time_B), x_1, torch.ones_like(z), z, time_B)[1]
        return {"law": law, "x_1": x_1, "elbo": elbo}

    record("gidd", config.to_dict(), network, network, time, more=formulas)


def main(clones: Path) -> None:
    replace_flash_attention()
    torch.manual_seed(0)
    t = [0.05, 0.4, 0.9]
    sigma = (-torch.tensor(t).log()).tolist()
    record_mdlm(clones, sigma)
    record_sedd(clones, sigma)
    record_duo(clones, sigma)
    record_udlm(clones, sigma)
    record_bd3lm(clones)
    record_gidd(clones, [1 - x for x in t])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
