"""Checkpoints of MDLM (Sahoo et al. 2024), such as `kuleshov-group/mdlm-owt`."""

from pathlib import Path
from typing import Any

from cwdfm.method import Flow
from cwdfm.pretrained.dit import Checkpoint, dit_checkpoint, dit_config
from cwdfm.schedule import Linear
from cwdfm.source import MaskSource


def read_mdlm(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a masked flow with the linear schedule."""
    shape = dit_config(config, time="sigma" if config["time_conditioning"] else "zero")
    method = Flow(MaskSource(shape.num_tokens - 1), Linear())
    return dit_checkpoint(folder, "MDLM", shape, method, config["model_length"], mask=True)
