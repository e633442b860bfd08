"""Read published diffusion transformers of other projects, by their config.json.

MDLM, SEDD, Duo, UDLM, BD3LM and GIDD use the transformer of this library with other parameter
names. Their code cannot even be imported without flash-attn, so only their weights are read.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.gidd import GIDD
from cwdfm.baselines.sedd import SEDD
from cwdfm.data.text.fast_tokenizer import FastTokenizer, configured_token, find_tokenizer
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import InputError
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiTConfig
from cwdfm.pretrained.language import FAMILIES, is_language_model
from cwdfm.pretrained.own import OwnNetwork
from cwdfm.pretrained.weights import read_weights, renamed
from cwdfm.schedule import Linear
from cwdfm.source import MaskSource, UniformSource

# Patterns in the authors' parameter names, and their replacements.
_NAMES = {
    r"^backbone\.": "",
    r"^vocab_embed\.embedding$": "embedding",
    r"^sigma_map\.mlp\.0\.": "time.first.",
    r"^sigma_map\.mlp\.2\.": "time.second.",
    r"^output_layer\.norm_final\.": "norm.",
    r"^output_layer\.linear\.": "readout.",
    r"^output_layer\.": "",
    r"\battn_qkv\.": "qkv.",
    r"\battn_out\.": "out.",
    r"\bmlp\.0\.": "up.",
    r"\bmlp\.2\.": "down.",
    r"\badaLN_modulation\.": "modulation.",
}
_CLASSES = "cond_map.embedding_table.weight"  # the class labels of UDLM


class Checkpoint(NamedTuple):
    """A model as read from a folder."""

    fields: dict[str, Any]  # of a `Pretrained`, without the network
    shape: DiTConfig | OwnNetwork
    weights: dict[str, Tensor]  # by the parameter names of `DiT`


def read_mdlm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """MDLM (Sahoo et al. 2024), such as `kuleshov-group/mdlm-owt`: a masked linear flow."""
    shape = _shape(config, time="sigma" if config["time_conditioning"] else "zero")
    method = Flow(MaskSource(shape.num_tokens - 1), Linear())
    return _checkpoint(folder, "MDLM", shape, method, config["model_length"])


def read_bd3lm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """BD3LM (Arriola et al. 2025), such as `kuleshov-group/bd3lm-owt-block_size4`.

    The model is an MDLM if the network does not attend to clean blocks.
    """
    for name in ("causal", "time_conditioning"):
        if config[name]:
            raise InputError(
                f"{folder} is a BD3LM with {name}=true, which is not supported; use a model with "
                f"{name}=false, as published"
            )
    shape = _shape(config, time="zero" if config["adaln"] else "none")
    source = MaskSource(shape.num_tokens - 1)
    method: Method = Flow(source, Linear())
    if config["cross_attn"]:
        method = BlockDiffusion(source, Linear(), config["block_size"])
        shape = replace(shape, attention="block", block=method.block)
    return _checkpoint(folder, "BD3LM", shape, method, config["model_length"])


def read_duo(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Duo (Sahoo et al. 2025), such as `s-sahoo/duo`: a uniform linear flow.

    Like that of UDLM, its network predicts each token from the other positions; see
    `cwdfm.model.leave_one_out`.
    """
    if config.get("causal"):
        raise InputError(
            f"{folder} is an autoregressive model with the network of Duo (causal is true), which "
            f"is not supported; pass a diffusion model"
        )
    shape = _shape(config, time="sigma", leave_one_out=True)
    method = Flow(UniformSource(shape.num_tokens), Linear())
    return _checkpoint(folder, "Duo", shape, method, config["model_length"], mask=False)


def read_udlm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """UDLM (Schiff et al. 2025), such as `kuleshov-group/udlm-lm1b`: a uniform linear flow.

    Of a network trained with classifier-free guidance, only the unconditional model is read.
    """
    time = "sigma" if config["time_conditioning"] else "zero"
    shape = _shape(config, time=time, leave_one_out=True)
    method = Flow(UniformSource(shape.num_tokens), Linear())
    length, default = config["model_length"], "bert-base-uncased"
    found = _checkpoint(folder, "UDLM", shape, method, length, mask=False, tokenizer=default)
    return found._replace(weights=_unconditional(found.weights)) if config["cfg"] else found


def _unconditional(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the class labels from the weights.

    The network modulates by W (c + e) + b, where e is the SiLU of the label's embedding. For "no
    label", the last embedding, e is constant, so W e is added to b.
    """
    result = dict(weights)
    e_C = F.silu(result.pop(_CLASSES)[-1].float())
    for name in result:
        if name.endswith("modulation.bias"):
            weight = result[name.replace("bias", "weight")]
            result[name] = result[name].float() + weight.float() @ e_C
    return result


def read_sedd(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """SEDD (Lou, Meng and Ermon 2024), such as `louaaron/sedd-small`: a score model.

    With the absorbing graph, the authors' `scale_by_sigma` is the scaling of `Absorb` here.
    """
    network, noise, graph = config["model"], config["noise"], config["graph"]["type"]
    absorb = graph == "absorb"
    if bool(network["scale_by_sigma"]) != absorb:
        raise InputError(
            f"{folder} is a SEDD with graph {graph!r} and scale_by_sigma="
            f"{network['scale_by_sigma']}; supported: 'absorb' with true and 'uniform' with "
            f"false, as published"
        )
    sigmas = {name: float(noise[name]) for name in ("sigma_min", "sigma_max")}
    method = SEDD(config["tokens"], graph, noise["type"], **sigmas)
    shape = DiTConfig(
        method.num_tokens,
        width=network["hidden_size"],
        depth=network["n_blocks"],
        heads=network["n_heads"],
        conditioning=network["cond_dim"],
        dropout=network["dropout"],
    )
    return _checkpoint(folder, "SEDD", shape, method, network["length"], mask=absorb)


def read_gidd(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """GIDD (von Rütte et al. 2025), such as `dvruette/gidd-base-p_unif-0.2`.

    Without uniform noise, the model is a masked linear flow.
    """
    shape = DiTConfig(
        num_tokens=config["vocab_size"],  # includes the mask
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        conditioning=config["timestep_cond_dim"],
        dropout=config["attention_dropout"],
        time="reversed",
    )
    p_uniform, vocab_size = float(config["p_uniform"]), shape.num_tokens - 1
    method: Method = Flow(MaskSource(vocab_size), Linear())
    if p_uniform > 0:
        method = GIDD(vocab_size, p_uniform)
    return _checkpoint(folder, "GIDD", shape, method, config["max_seq_len"])


# Readers by `model_type` in config.json, in lower case (see `_model_type`). To support another
# project, add a reader.
READERS: dict[str, Callable[[Path, dict[str, Any]], Checkpoint]] = {
    "mdlm": read_mdlm,
    "duo": read_duo,
    "udlm": read_udlm,
    "bd3lm": read_bd3lm,
    "sedd": read_sedd,
    "gidd": read_gidd,
}


def read_published(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a model of another project; raises InputError if its type is unknown."""
    kind = _model_type(config)
    if kind not in READERS and is_language_model(config):
        raise InputError(
            f"{folder} contains a language model of type {kind!r}, which generates from prompts; "
            f"use `cwdfm sample --prompts`, or cwdfm.load and cwdfm.generate; for its likelihood, "
            f"cwdfm.elbo or the lm-evaluation-harness (docs/pretrained.md)"
        )
    if kind not in READERS:
        known = (*READERS, *FAMILIES)
        nearest = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
        raise InputError(
            f"{folder} contains a model of another library with type {kind or 'unknown'!r}; "
            f"supported types are {', '.join(known)} and the masked language models of "
            f"transformers (the nearest is {nearest}); pass a folder written by save_pretrained "
            f"or `cwdfm train`, or wrap the network in cwdfm.Adapted"
        )
    return READERS[kind](folder, config)


def is_published(config: dict[str, Any]) -> bool:
    """Whether `read_published` can read a model with this config.json."""
    return _model_type(config) in READERS


def _model_type(config: dict[str, Any]) -> str:
    if {"graph", "noise", "model"} <= set(config):  # SEDD stores its training config
        return "sedd"
    if "p_uniform" in config:  # GIDD calls its type "dit"
        return "gidd"
    return str(config.get("model_type", "")).lower()


def _shape(config: Mapping[str, Any], **settings: Any) -> DiTConfig:
    """Read a config.json with the field names of MDLM; a KeyError names a missing field."""
    return DiTConfig(
        num_tokens=config["vocab_size"],  # includes the mask
        width=config["hidden_dim"],
        depth=config["n_blocks"],
        heads=config["n_heads"],
        conditioning=config["cond_dim"],
        dropout=config["dropout"],
        **settings,
    )


def _checkpoint(
    folder: Path,
    origin: str,
    shape: DiTConfig,
    method: Method,
    length: int,
    *,
    mask: bool = True,
    tokenizer: str = "gpt2",
) -> Checkpoint:
    """Read the checkpoint in a folder. `mask`: whether the last id is the mask token."""
    text_tokenizer = _find_tokenizer(folder, tokenizer, shape, mask)
    card = {"origin": f"a checkpoint of {origin}"}
    fields = {"method": method, "tokenizer": text_tokenizer, "length": length, "card": card}
    weights = renamed(read_weights(folder), _NAMES)
    if shape.leave_one_out and "readout.bias" in weights:
        # Uniform noise includes a last id without text. Data does not, so it must not be predicted.
        weights["readout.bias"][text_tokenizer.vocab_size :] = -torch.inf
    return Checkpoint(fields, shape, weights)


def _find_tokenizer(folder: Path, default: str, shape: DiTConfig, mask: bool) -> TextTokenizer:
    """The tokenizer in a folder, or else the authors' default; it must match the network.

    The last id may be missing from its vocabulary if it is the mask or never occurs in data.
    """
    num_tokens = shape.num_tokens
    minimum = num_tokens - (mask or shape.leave_one_out)
    has_own = (folder / "tokenizer.json").is_file()
    tokenizer = find_tokenizer(folder if has_own else default)
    if not minimum <= tokenizer.vocab_size <= num_tokens:
        raise InputError(
            f"{folder} has {num_tokens} token ids{', mask included,' if mask else ''} and "
            f"{'its' if has_own else f'the {default}'} tokenizer has {tokenizer.vocab_size}; put "
            f"the model's tokenizer.json into the folder"
        )
    name = configured_token(folder, "mask_token") if mask and has_own else None
    if name is not None and isinstance(tokenizer, FastTokenizer):
        token_id = tokenizer.token_id(name)
        if token_id != num_tokens - 1:
            raise InputError(
                f"the mask token {name!r} in {folder} has the id {token_id}, but the mask must be "
                f"the last id of the network, {num_tokens - 1}; check tokenizer_config.json, or "
                f"wrap the network in cwdfm.Adapted(network, mask_id=...)"
            )
    return tokenizer
