"""Checkpoints of BD3LM (Arriola et al. 2025), such as `kuleshov-group/bd3lm-owt-block_size4`."""

from pathlib import Path
from typing import Any

from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.errors import InputError
from cwdfm.method import Flow, Method
from cwdfm.pretrained.dit import Checkpoint, dit_checkpoint, dit_config
from cwdfm.schedule import Linear
from cwdfm.source import MaskSource


def read_bd3lm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a block diffusion model, or an MDLM if the network does not attend to clean blocks."""
    for name in ("causal", "time_conditioning"):
        if config[name]:
            raise InputError(
                f"{folder} is a BD3LM with {name}=true, which is not supported; use a model with "
                f"{name}=false, as published"
            )
    shape = dit_config(config, time="zero" if config["adaln"] else "none")
    source = MaskSource(shape.num_tokens - 1)
    method: Method = Flow(source, Linear())
    if config["cross_attn"]:
        method = BlockDiffusion(source, Linear(), config["block_size"])
        shape = dit_config(config, time=shape.time, attention="block", block=config["block_size"])
    return dit_checkpoint(folder, "BD3LM", shape, method, config["model_length"], mask=True)
