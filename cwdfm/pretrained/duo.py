"""Checkpoints of Duo (Sahoo et al. 2025) and UDLM (Schiff et al. 2025), with a uniform source.

Their networks predict each token from the other positions; see `cwdfm.model.leave_one_out`.
"""

from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.method import Flow
from cwdfm.pretrained.dit import Checkpoint, dit_checkpoint, dit_config
from cwdfm.schedule import Linear
from cwdfm.source import UniformSource

_CLASSES = "cond_map.embedding_table.weight"  # parameter name without prefixes


def read_duo(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a uniform flow with the linear schedule, conditioned on sigma, such as `s-sahoo/duo`."""
    if config.get("causal"):
        raise InputError(
            f"{folder} is an autoregressive model with the network of Duo (causal is true), which "
            f"is not supported; give a diffusion model"
        )
    shape = dit_config(config, time="sigma", leave_one_out=True)
    method = Flow(UniformSource(shape.num_tokens), Linear())
    return dit_checkpoint(folder, "Duo", shape, method, config["model_length"], mask=False)


def read_udlm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a uniform flow with the linear schedule, such as `kuleshov-group/udlm-lm1b`.

    Of a network trained with classifier-free guidance, only the unconditional model is read.
    """
    time = "sigma" if config["time_conditioning"] else "zero"
    shape = dit_config(config, time=time, leave_one_out=True)
    method = Flow(UniformSource(shape.num_tokens), Linear())
    length, tokenizer = config["model_length"], "bert-base-uncased"
    checkpoint = dit_checkpoint(
        folder, "UDLM", shape, method, length, mask=False, tokenizer=tokenizer
    )
    if not config["cfg"]:
        return checkpoint
    return checkpoint._replace(weights=_unconditional(checkpoint.weights))


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
