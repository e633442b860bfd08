"""Block diffusion (BD3LM, Arriola et al. 2025): blocks from left to right, a flow inside each.

    p(x) = prod_k p(x_k | x_<k),   x_k the k-th block of `block` tokens,

where each factor is a masked diffusion. With blocks of one token this is an autoregressive model,
with a single block it is MDLM.
"""

from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.baselines.bd3lm.objective import BlockObjective
from cwdfm.baselines.bd3lm.solver import BlockSolver

__all__ = ["BlockDiffusion", "BlockObjective", "BlockSolver"]
