"""A small network with conditions."""

from cwdfm.model.conditions import Categorical, Numeric
from cwdfm.model.transformer import DiTConfig

CONDITIONS = (Numeric("logp", 1.0, 2.0, -3.0, 6.0), Categorical("kind", ("chain", "ring")))
CONFIG = DiTConfig(num_tokens=7, width=16, depth=2, heads=2, conditioning=8, dropout=0.0)
