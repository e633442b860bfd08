"""Checkpoints of GIDD (von Rütte et al. 2025), such as `dvruette/gidd-base-p_unif-0.2`."""

from pathlib import Path
from typing import Any

from cwdfm.baselines.gidd import GIDD
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiTConfig
from cwdfm.pretrained.dit import Checkpoint, dit_checkpoint
from cwdfm.schedule import Linear
from cwdfm.source import MaskSource


def read_gidd(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a model with hybrid noise, or a masked linear flow if there is no uniform noise."""
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
    return dit_checkpoint(folder, "GIDD", shape, method, config["max_seq_len"], mask=True)
