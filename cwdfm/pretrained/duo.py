"""Checkpoints of Duo (Sahoo et al. 2025) and UDLM (Schiff et al. 2025), with a uniform source.

Their networks predict a token from the other positions: see `cwdfm.model.leave_one_out`.
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

_CLASSES = "cond_map.embedding_table.weight"  # after the prefixes are removed


def read_duo(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """A uniform flow with the linear schedule, conditioned on sigma: `s-sahoo/duo`."""
    if config.get("causal"):
        raise InputError(
            f"{folder} is an autoregressive model (causal is true) with the network of Duo, which "
            f"is not supported; give a diffusion model"
        )
    shape = dit_config(config, time="sigma", leave_one_out=True)
    method = Flow(UniformSource(shape.num_tokens), Linear())
    return dit_checkpoint(folder, "Duo", shape, method, config["model_length"], mask=False)


def read_udlm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """A uniform flow with the linear schedule: `kuleshov-group/udlm-lm1b`.

    For a network trained with classifier-free guidance, this is the unconditional model.
    """
    time = "sigma" if config["time_conditioning"] else "zero"
    shape = dit_config(config, time=time, leave_one_out=True)
    method = Flow(UniformSource(shape.num_tokens), Linear())
    length, tokenizer = config["model_length"], "bert-base-uncased"
    found = dit_checkpoint(folder, "UDLM", shape, method, length, mask=False, tokenizer=tokenizer)
    return found._replace(weights=_unconditional(found.weights)) if config["cfg"] else found


def _unconditional(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights without class labels.

    The network modulates by W (c + e) + b, where e is the SiLU of the label's embedding. That of
    "no label", the last one, is constant, so W e + b takes the place of b.
    """
    rest = dict(weights)
    e_C = F.silu(rest.pop(_CLASSES)[-1].float())
    for name in rest:
        if name.endswith("modulation.bias"):
            rest[name] = rest[name].float() + rest[name.replace("bias", "weight")].float() @ e_C
    return rest
