"""Checkpoints of SEDD (Lou, Meng and Ermon 2024), such as `louaaron/sedd-small`."""

from pathlib import Path
from typing import Any

from cwdfm.baselines.sedd import SEDD
from cwdfm.errors import InputError
from cwdfm.model.transformer import DiTConfig
from cwdfm.pretrained.dit import Checkpoint, dit_checkpoint


def read_sedd(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a score model. Its config.json is the authors' training config, without a model type.

    With the absorbing graph, the authors' `scale_by_sigma` is the scaling of `Absorb` here.
    """
    network, noise, graph = config["model"], config["noise"], config["graph"]["type"]
    absorb = graph == "absorb"
    if bool(network["scale_by_sigma"]) != absorb:
        raise InputError(
            f"{folder} is a SEDD with graph {graph!r} and scale_by_sigma="
            f"{network['scale_by_sigma']}; supported are 'absorb' with true and 'uniform' with "
            f"false, as published"
        )
    method = SEDD(
        config["tokens"],
        graph,
        noise["type"],
        sigma_min=float(noise["sigma_min"]),
        sigma_max=float(noise["sigma_max"]),
    )
    shape = DiTConfig(
        method.num_tokens,
        width=network["hidden_size"],
        depth=network["n_blocks"],
        heads=network["n_heads"],
        conditioning=network["cond_dim"],
        dropout=network["dropout"],
    )
    return dit_checkpoint(folder, "SEDD", shape, method, network["length"], mask=absorb)
