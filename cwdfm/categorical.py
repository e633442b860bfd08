"""The one categorical sampler: inverse transform, one counted uniform a draw, float64 by default.

Gumbel-max needs a noise value a vocabulary entry, and with float32 uniforms its tail is capped
near 16.6, which silently lowers the entropy of the samples. Inverting the cumulative sum needs a
single uniform a draw; in float64 its resolution is 2^-53 of the total mass.

The sum is inverted in two levels: first among blocks of about sqrt(V) tokens, then inside one. So
the only pass over the vocabulary that costs float64 arithmetic is a sum, and no float64 tensor of
the vocabulary's width is stored. The masses themselves are as precise as the logits they come from.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError


def sample_categorical(
    logits_KV: Tensor,
    u_K: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Token ids [K] drawn from softmax(logits / temperature), cut to its nucleus.

    `u_K` are uniforms in [0, 1). The id is the first whose cumulative mass exceeds u * total, with
    uniforms and cumulative masses in `dtype`.
    """
    # Scaled after the maximum is taken off, so that a small temperature cannot overflow.
    z_KV = logits_KV.to(torch.promote_types(logits_KV.dtype, torch.float32))
    z_KV = z_KV - z_KV.amax(dim=-1, keepdim=True)
    p_KV = (z_KV if temperature == 1 else z_KV / temperature).exp()
    if top_p < 1:
        p_KV = p_KV * nucleus(p_KV, top_p)
    if dtype == torch.float32:
        u_K = (u_K * 2**24).floor() * 2.0**-24  # rounding up to 1 would leave the support
    return _invert(p_KV, u_K.to(dtype))


def _invert(p_KV: Tensor, u_K: Tensor) -> Tensor:
    """The first token of each row whose cumulative mass exceeds u * total."""
    rows, vocab = p_KV.shape
    block = 1 << (vocab.bit_length() + 1) // 2  # a power of two near sqrt(vocab)
    p_KCW = F.pad(p_KV, (0, -vocab % block)).view(rows, -1, block)
    mass_KC = p_KCW.sum(-1, dtype=u_K.dtype)
    block_K, rest_K = first_above(mass_KC, u_K)
    chosen_KW = p_KCW[torch.arange(rows, device=p_KV.device), block_K].to(u_K.dtype)
    token_K, _ = first_above(chosen_KW, rest_K)
    return block_K * block + token_K


def first_above(mass_KC: Tensor, u_K: Tensor) -> tuple[Tensor, Tensor]:
    """The cell in which u * total falls, and how far into it, as a share of it below 1."""
    cdf_KC = mass_KC.cumsum(dim=-1)
    target_K1 = u_K[:, None] * cdf_KC[:, -1:]
    cell_K1 = torch.searchsorted(cdf_KC, target_K1, right=True)
    inside_K1 = target_K1 - (cdf_KC - mass_KC).gather(1, cell_K1)
    share_K1 = inside_K1 / mass_KC.gather(1, cell_K1)
    below_one = 1 - torch.finfo(u_K.dtype).eps / 2
    return cell_K1[:, 0], share_K1[:, 0].clamp(0.0, below_one)


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
    if not isinstance(temperature, int | float) or not 1e-6 <= temperature <= 1e6:
        raise InputError(
            f"temperature must be a number > 0, from 1e-6 to 1e6, got {temperature!r}; for nearly "
            f"greedy draws use a small one such as 0.01"
        )
    if not isinstance(top_p, int | float) or not 0 < top_p <= 1:
        raise InputError(f"top_p must lie in (0, 1], got {top_p!r}; 1.0 switches the nucleus off")
    if dtype not in (torch.float64, torch.float32):
        raise InputError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
