"""The one categorical sampler: inverse transform, one counted uniform a draw, float64 by default.

Gumbel-max needs a noise value a vocabulary entry, and with float32 uniforms its tail is capped
near 16.6, which silently lowers the entropy of the samples. Inverting the cumulative sum needs a
single uniform a draw; in float64 its resolution is 2^-53 of the total mass.
"""

import torch
from torch import Tensor

from cwdfm.errors import InputError

NUCLEUS = "smallest set of most likely tokens whose mass reaches top_p, the crossing one kept"


def sample_categorical(
    logits_KV: Tensor,
    u_K: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Token ids [K] drawn from softmax(logits / temperature), cut to its nucleus.

    `u_K` are uniforms in [0, 1). The id is the first whose cumulative mass exceeds u * total.
    """
    # Scaled after the maximum is taken off, so that a small temperature cannot overflow.
    z_KV = logits_KV.to(dtype)
    p_KV = ((z_KV - z_KV.amax(dim=-1, keepdim=True)) / temperature).exp()
    if top_p < 1:
        p_KV = p_KV * nucleus(p_KV, top_p)
    cdf_KV = p_KV.cumsum(dim=-1)
    if dtype == torch.float32:
        u_K = (u_K * 2**24).floor() * 2.0**-24  # rounding up to 1 would leave the support
    target_K1 = u_K.to(dtype)[:, None] * cdf_KV[:, -1:]
    return torch.searchsorted(cdf_KV, target_K1, right=True)[:, 0]


def nucleus(p_KV: Tensor, top_p: float) -> Tensor:
    """Which tokens belong to the nucleus, bool [K, V].

    Ties are broken by token id, so that the nucleus does not depend on the sort's whims.
    """
    sorted_KV, order_KV = p_KV.sort(dim=-1, descending=True, stable=True)
    cumulative_KV = sorted_KV.cumsum(dim=-1)
    before_KV = cumulative_KV - sorted_KV
    keep_KV = before_KV < top_p * cumulative_KV[:, -1:]
    return torch.zeros_like(keep_KV).scatter(-1, order_KV, keep_KV)


def check_draw(temperature: float, top_p: float, dtype: torch.dtype) -> None:
    """Refuse settings that define no distribution to draw from."""
    if not 0 < temperature < float("inf"):
        raise InputError(
            f"temperature must be a finite number > 0, got {temperature!r}; for nearly greedy "
            f"draws use a small one such as 0.01"
        )
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must lie in (0, 1], got {top_p!r}; 1.0 switches the nucleus off")
    if dtype not in (torch.float64, torch.float32):
        raise InputError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
