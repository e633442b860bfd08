"""Categorical draws by inverse transform sampling, with one counter-based uniform per draw.

Gumbel-max needs one noise value per vocabulary entry, and with float32 uniforms its tail is capped
near 16.6, which silently lowers the entropy of the samples. Inverting the cumulative sum needs a
single uniform per draw; in float64 its resolution is 2^-53 of the total mass.

The sum is inverted in two levels: first among blocks of about sqrt(V) tokens, then within one. The
only float64 operation over the vocabulary is therefore a sum, and no float64 tensor of its width is
stored. The masses themselves are as precise as the logits.

On a GPU, `row_draw` does the same in one kernel that reads the logits once. The plain code is the
reference; it also supports float64 logits and nucleus sampling.

Shapes: K rows, V tokens, C blocks of W tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError, is_number
from cwdfm.ops.dispatch import fused_elementwise, next_power_of_2
from cwdfm.ops.host_copy import check_rows
from cwdfm.ops.precision import sum_dtype

_SHIFT = 18  # keeps the exponent and five mantissa bits of a float32
_BUCKETS = 1 << (31 - _SHIFT)
_SORTED_VOCAB = 1024  # up to this size sorting is as fast as bucketing
_MAX_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}  # masses that fit a CPU's cache or a GPU's memory

# `row_draw`: the widest load of a thread, and of a warp, so that one warp sums a block.
LINE_BYTES = 16
BLOCK_BYTES = 32 * LINE_BYTES
# Blocks per tile, and per warp in registers; twice as many are in flight. With four warps and 64
# registers per thread, eight programs fit on a multiprocessor and prefetch 128 kB, several times
# the amount needed to saturate an H200's memory bandwidth.
TILE, WARP_BLOCKS, STAGES = 16, 4, 3


def sample_categorical(
    logits_KV: Tensor,
    u_K: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Draw token ids [K] from softmax(logits / temperature), restricted to the `top_p` nucleus.

    A draw is the first id whose cumulative mass exceeds u * total, with uniforms `u_K` in [0, 1)
    rounded to `dtype` and cumulative masses of at least that precision. Temperature 0 selects the
    most likely token, the first one in case of ties.
    """
    if temperature == 0 or not len(logits_KV):
        return logits_KV.argmax(dim=-1)
    if dtype == torch.float32:
        u_K = (u_K * 2**24).floor() * 2.0**-24  # rounding up could give 1
    if top_p == 1 and fused_elementwise(logits_KV):
        return row_draw(logits_KV, u_K.double(), temperature=temperature)
    # Scaled after the maximum is subtracted, so that a small temperature cannot overflow.
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
    """The cell [K] that u * total falls into, and its relative position in that cell, in [0, 1)."""
    cdf_KC = mass_KC.cumsum(dim=-1)
    target_K1 = u_K[:, None] * cdf_KC[:, -1:]
    cell_K1 = torch.searchsorted(cdf_KC, target_K1, right=True)
    rest_K1 = target_K1 - (cdf_KC - mass_KC).gather(1, cell_K1)
    fraction_K1 = rest_K1 / mass_KC.gather(1, cell_K1)
    below_one = 1 - torch.finfo(u_K.dtype).eps / 2
    return cell_K1[:, 0], fraction_K1[:, 0].clamp(0.0, below_one)


def row_draw(logits_KV: Tensor, u_K: Tensor, *, temperature: float = 1.0) -> Tensor:
    """`sample_categorical` in one Triton kernel that reads the logits once.

    Logits are in half precision or float32, `u_K` are float64 uniforms in [0, 1). The kernel stores
    the maximum and the sum of exponentials of every block, and reads only the block that a draw
    falls into a second time. A row that does not define a distribution raises InputError, possibly
    deferred (see `check_rows`).

    Precision: both lookups are in float64, with block masses scaled by the row's maximum. u keeps
    its resolution of 2^-53, and no token is lost unless its mass is below 2^-126 of the largest in
    its block. Exponentials and their sums within a block are in float32. They change a token's
    probability by a relative 1e-6 + 2e-7 |gap|, where gap is the difference between its logit and
    the largest of its block, divided by the temperature; rounding the logit to float32 has an error
    of the same size.
    """
    from cwdfm.ops.triton_draw import draw_rows

    rows, vocab = logits_KV.shape
    token_K = torch.empty(rows, dtype=torch.int64, device=logits_KV.device)
    if rows == 0:
        return token_K
    logits_KV = logits_KV if logits_KV.stride(1) == 1 else logits_KV.contiguous()
    size = logits_KV.element_size()
    span = vocab * size + LINE_BYTES - size  # bytes, if a row begins at the end of a line
    blocks = next_power_of_2(-(-span // BLOCK_BYTES))
    tile = min(blocks, TILE)
    scratch = torch.empty(2, rows, blocks, dtype=torch.float32, device=logits_KV.device)
    with torch.cuda.device_of(logits_KV):
        draw_rows[(rows,)](
            logits_KV, u_K.contiguous(), *scratch, token_K, logits_KV.stride(0), vocab,
            math.log2(math.e) / temperature, BLOCK=BLOCK_BYTES // size, BLOCKS=blocks, TILE=tile,
            LINE=LINE_BYTES, STAGES=STAGES, num_warps=max(1, tile // WARP_BLOCKS),
        )  # fmt: skip
    check_rows(token_K < 0)
    return token_K.clamp(min=0)


def nucleus(p_KV: Tensor, top_p: float) -> Tensor:
    """The mask of the nucleus, bool [K, V].

    In order of decreasing mass, a token belongs to the nucleus if the tokens before it have less
    than `top_p` of the total mass. Ties are broken by token id, so that the result is
    deterministic.
    """
    rows, vocab = p_KV.shape
    if vocab <= _SORTED_VOCAB:
        return _nucleus_by_sort(p_KV, top_p)
    size = max(1, _MAX_ELEMENTS.get(p_KV.device.type, _MAX_ELEMENTS["cpu"]) // vocab)
    keep_KV = torch.empty(rows, vocab, dtype=torch.bool, device=p_KV.device)
    for start in range(0, rows, size):
        k = slice(start, start + size)
        keep_kV, certain_k = _nucleus_by_buckets(p_KV[k], top_p)
        if not bool(certain_k.all()):
            keep_kV[~certain_k] = _nucleus_by_sort(p_KV[k][~certain_k], top_p)
        keep_KV[k] = keep_kV
    return keep_KV


def _nucleus_by_sort(p_KV: Tensor, top_p: float) -> Tensor:
    """The reference implementation: float64 sums, rounded to the precision of the masses."""
    sorted_KV, order_KV = p_KV.sort(dim=-1, descending=True, stable=True)
    cumulative_KV = sorted_KV.cumsum(dim=-1, dtype=torch.float64).to(p_KV.dtype)
    before_KV = cumulative_KV - sorted_KV
    keep_KV = before_KV < top_p * cumulative_KV[:, -1:]
    return torch.zeros_like(keep_KV).scatter(-1, order_KV, keep_KV)


def _nucleus_by_buckets(p_KV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The nucleus without sorting the vocabulary, and the rows [K] where it is certainly correct.

    The leading bits of a token's mass are its bucket, so larger masses are in higher buckets. The
    sums of the buckets show in which bucket the nucleus ends, and only that one is sorted. The
    order of summation differs from `_nucleus_by_sort`. The rounding differences are at most
    `slack`, and rows in which they could change a comparison are marked as uncertain.
    """
    (rows, vocab), device = p_KV.shape, p_KV.device
    bucket_KV = (p_KV.float().view(torch.int32) >> _SHIFT).clamp(min=0)  # -0.0 and NaN may give < 0
    mass_KC = torch.zeros(rows, _BUCKETS, dtype=torch.float64, device=device)
    mass_KC = mass_KC.scatter_add_(1, bucket_KV.long(), p_KV.double()).flip(-1)
    down_KC = mass_KC.cumsum(dim=-1)  # from the highest bucket down
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
    keep_KM, maybe_KM = high_KM - p_KM < low_K1, low_KM - p_KM < high_K1
    filled_KM = torch.arange(p_KM.shape[1], device=device) < count_K[:, None]
    same_K = (keep_KM == maybe_KM).logical_or(~filled_KM).all(-1)
    # If the bucket's first token is kept, so are all buckets above. All buckets below are dropped
    # if its last token is, or if everything after it lies past the end by more than rounding.
    after_K1 = sum_KM[:, -1:] * (1 - slack - 4 * torch.finfo(p_KV.dtype).eps)
    dropped_K1 = (~maybe_KM & filled_KM).any(-1, keepdim=True) | (after_K1 >= high_K1)
    certain_K = (count_K > 0) & keep_KM[:, 0] & same_K & dropped_K1[:, 0]

    keep_KV = bucket_KV > last_K1
    keep_KM = torch.zeros_like(keep_KM).scatter(-1, order_KM, keep_KM)
    keep_KV[row_n, token_n] = keep_KM[row_n, slot_n]
    return keep_KV, certain_K


def check_draw(temperature: float, top_p: float, dtype: torch.dtype) -> None:
    """Raise an InputError for settings that do not define a distribution."""
    if not is_number(temperature) or not (temperature == 0 or 1e-6 <= temperature <= 1e6):
        raise InputError(
            f"temperature must be 0, which draws the most likely token, or a number from 1e-6 to "
            f"1e6, got {temperature!r}",
            fields=("temperature",),
        )
    # At least 1e-6, so that it does not vanish against 1 in float32.
    if not is_number(top_p) or not 1e-6 <= top_p <= 1:
        raise InputError(
            f"top_p must be a number from 1e-6 to 1, got {top_p!r}; 1.0 disables nucleus sampling",
            fields=("top_p",),
        )
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float64, torch.float32):
        raise InputError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
