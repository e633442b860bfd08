"""The one categorical sampler: inverse transform, one counted uniform a draw, float64 by default.

Gumbel-max needs a noise value a vocabulary entry, and with float32 uniforms its tail is capped
near 16.6, which silently lowers the entropy of the samples. Inverting the cumulative sum needs a
single uniform a draw; in float64 its resolution is 2^-53 of the total mass.

The sum is inverted in two levels: first among blocks of about sqrt(V) tokens, then inside one. So
the only pass over the vocabulary that costs float64 arithmetic is a sum, and no float64 tensor of
the vocabulary's width is stored. The masses themselves are as precise as the logits they come from.

On a GPU a kernel does the same in one pass over the logits, `cwdfm.ops.row_draw`. What is here
is the reference, and takes float64 logits and nuclei.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.ops import fused_elementwise, sum_dtype
from cwdfm.ops.row_draw import row_draw

_SHIFT = 18  # leaves a float32 its exponent and five bits of its mantissa
_BUCKETS = 1 << (31 - _SHIFT)
_SMALL = 1024  # a vocabulary of that many tokens is sorted as fast as it is looked through
_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # masses: what a CPU's cache, a GPU's memory holds well


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
    uniforms in `dtype` and cumulative masses in no less.
    """
    if dtype == torch.float32:
        u_K = (u_K * 2**24).floor() * 2.0**-24  # rounding up to 1 would leave the support
    if top_p == 1 and fused_elementwise(logits_KV):
        return row_draw(logits_KV, u_K.double(), temperature=temperature)
    # Scaled after the maximum is taken off, so that a small temperature cannot overflow.
    z_KV = logits_KV.to(sum_dtype(logits_KV))
    z_KV = z_KV - z_KV.amax(dim=-1, keepdim=True)
    p_KV = (z_KV if temperature == 1 else z_KV / temperature).exp()
    if top_p < 1:
        p_KV = p_KV * nucleus(p_KV, top_p)
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

    In the order of falling mass, those before which less than `top_p` of the total lies. Ties are
    broken by token id, so that the nucleus does not depend on the sort's whims.
    """
    rows, vocab = p_KV.shape
    if vocab <= _SMALL:
        return _nucleus_by_sort(p_KV, top_p)
    size = max(1, _AT_ONCE.get(p_KV.device.type, _AT_ONCE["cpu"]) // vocab)
    keep_KV = torch.empty(rows, vocab, dtype=torch.bool, device=p_KV.device)
    for start in range(0, rows, size):
        part = slice(start, start + size)
        keep_kV, sure_k = _nucleus_by_buckets(p_KV[part], top_p)
        if not bool(sure_k.all()):
            keep_kV[~sure_k] = _nucleus_by_sort(p_KV[part][~sure_k], top_p)
        keep_KV[part] = keep_kV
    return keep_KV


def _nucleus_by_sort(p_KV: Tensor, top_p: float) -> Tensor:
    """The definition: sums in float64, rounded to the masses' own precision and compared there."""
    sorted_KV, order_KV = p_KV.sort(dim=-1, descending=True, stable=True)
    cumulative_KV = sorted_KV.cumsum(dim=-1, dtype=torch.float64).to(p_KV.dtype)
    before_KV = cumulative_KV - sorted_KV
    keep_KV = before_KV < top_p * cumulative_KV[:, -1:]
    return torch.zeros_like(keep_KV).scatter(-1, order_KV, keep_KV)


def _nucleus_by_buckets(p_KV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The same without sorting the vocabulary; and in which rows it is the same for sure [K].

    A token's bucket is the beginning of its mass's binary form, so larger masses lie in higher
    buckets. One sum a bucket tells in which one the nucleus ends, and only that one is sorted.
    The sums here and there are of the same numbers in another order. What this may change lies
    within `slack`; a row where it could change a comparison is not sure.
    """
    (rows, vocab), device = p_KV.shape, p_KV.device
    bucket_KV = (p_KV.float().view(torch.int32) >> _SHIFT).clamp(min=0)  # -0.0 and NaN may be < 0
    mass_KC = torch.zeros(rows, _BUCKETS, dtype=torch.float64, device=device)
    mass_KC = mass_KC.scatter_add_(1, bucket_KV.long(), p_KV.double()).flip(-1)
    down_KC = mass_KC.cumsum(dim=-1)  # from the highest bucket on
    total_K1 = down_KC[:, -1:]
    last_K1 = torch.searchsorted(down_KC, top_p * total_K1).clamp(max=_BUCKETS - 1)
    above_K1 = down_KC.gather(1, last_K1) - mass_KC.gather(1, last_K1)
    last_K1 = _BUCKETS - 1 - last_K1

    inside_KV = bucket_KV == last_K1
    row_n, token_n = inside_KV.nonzero(as_tuple=True)
    count_K = torch.bincount(row_n, minlength=rows)
    slot_n = torch.arange(len(row_n), device=device) - (count_K.cumsum(0) - count_K)[row_n]
    p_KM = p_KV.new_zeros(rows, max(1, int(count_K.max())))
    p_KM[row_n, slot_n] = p_KV[row_n, token_n]
    p_KM, order_KM = p_KM.sort(dim=-1, descending=True, stable=True)
    sum_KM = above_K1 + p_KM.cumsum(dim=-1, dtype=torch.float64)

    slack = vocab * 2.0**-50  # two sums of V terms differ by less than V * 2^-52 of them
    low_KM, high_KM = ((sum_KM * (1 + s)).to(p_KV.dtype) for s in (-slack, slack))
    low_K1, high_K1 = (top_p * (total_K1 * (1 + s)).to(p_KV.dtype) for s in (-slack, slack))
    keep_KM, perhaps_KM = high_KM - p_KM < low_K1, low_KM - p_KM < high_K1
    filled_KM = torch.arange(p_KM.shape[1], device=device) < count_K[:, None]
    same_K = (keep_KM == perhaps_KM).logical_or(~filled_KM).all(-1)
    # With the first token of the bucket all above it are kept. With its last token dropped, or with
    # all that comes behind it beyond the end by more than rounding, all below are dropped.
    behind_K1 = sum_KM[:, -1:] * (1 - slack - 4 * torch.finfo(p_KV.dtype).eps)
    dropped_K1 = (~perhaps_KM & filled_KM).any(-1, keepdim=True) | (behind_K1 >= high_K1)
    sure_K = (count_K > 0) & keep_KM[:, 0] & same_K & dropped_K1[:, 0]

    keep_KV = bucket_KV > last_K1
    keep_KV[row_n, token_n] = torch.zeros_like(keep_KM).scatter(-1, order_KM, keep_KM)[
        row_n, slot_n
    ]
    return keep_KV, sure_K


def check_draw(temperature: float, top_p: float, dtype: torch.dtype) -> None:
    """Refuse settings that define no distribution to draw from."""
    if not isinstance(temperature, int | float) or not 1e-6 <= temperature <= 1e6:
        raise InputError(
            f"temperature must be a number > 0, from 1e-6 to 1e6, got {temperature!r}; for nearly "
            f"greedy draws use a small one such as 0.01"
        )
    if not isinstance(top_p, int | float) or not 1e-6 <= top_p <= 1:  # float32 must tell it from 0
        raise InputError(
            f"top_p must lie in (0, 1], from 1e-6 on, got {top_p!r}; 1.0 switches the nucleus off"
        )
    if dtype not in (torch.float64, torch.float32):
        raise InputError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
