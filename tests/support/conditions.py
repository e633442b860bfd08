"""A small network with conditions."""

import torch

from cwdfm.model.conditions import Categorical, Numeric
from cwdfm.model.transformer import DiT, DiTConfig

CONDITIONS = (Numeric("logp", 1.0, 2.0, -3.0, 6.0), Categorical("kind", ("chain", "ring")))
CONFIG = DiTConfig(num_tokens=7, width=16, depth=2, heads=2, conditioning=8, dropout=0.0)


def random_network(config: DiTConfig) -> DiT:
    """A network none of whose layers is zero."""
    torch.manual_seed(0)
    model = DiT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model
