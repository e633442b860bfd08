"""Block diffusion (BD3LM, Arriola et al. 2025): blocks from left to right, a flow inside each.

    p(x) = prod_k p(x_k | x_<k),   x_k the k-th block of `block` tokens,

each factor a masked diffusion of its own. With blocks of one token that is an autoregressive model,
with one block it is MDLM.
"""

from cwdfm.baselines.bd3lm.method import BlockDiffusion
from cwdfm.baselines.bd3lm.objective import BlockObjective
from cwdfm.baselines.bd3lm.sampling import BlockSolver

__all__ = ["BlockDiffusion", "BlockObjective", "BlockSolver"]
