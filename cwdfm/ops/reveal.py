"""Algorithm 1 on a GPU: the bucket loop of `cwdfm.path.algorithm1`, one thread per sequence."""

import torch
from torch import Tensor

BLOCK = 1024  # coordinates sorted at once
CHUNK = 8  # maximum number of buckets read at once
# Maximum number of buckets whose boundaries are held in registers. With 9, about one draw in 20 is
# wrong on an H200 (Triton 3.6), while Triton's interpreter and the emulated PTX are correct.
MAX_REGISTER_BUCKETS = 8
MAX_INT32_COORDINATES = 2048  # per program; with more, the state uses 16-bit words
WARP = 32  # threads
PROGRAMS = 1024  # programs (of one warp) to aim for: about 8 per multiprocessor of a large GPU


def reveal(
    start_BN: Tensor,
    count_B: Tensor,
    u_BN: Tensor,
    neighbors_NK: Tensor,
    ratio_CC: Tensor,
    *,
    ascending: bool,
) -> Tensor:
    """The reveal mask [B, N] after count_B more reveals.

    neighbors_NK (int32) and ratio_CC (float64) are the tables of `cwdfm.path.algorithm1`.
    """
    inputs = (_bytes(start_BN), count_B.contiguous(), None, None)
    u_BN, words = u_BN.contiguous(), (0, 0, 0, 0, 0)  # the words are unused
    return _reveal(inputs, u_BN, words, len(start_BN), neighbors_NK, ratio_CC, ascending)


def reveal_drawn(
    start_BN: Tensor | None,
    kappa_B: Tensor,
    index_B: Tensor | None,
    words: tuple[int, ...],
    neighbors_NK: Tensor,
    ratio_CC: Tensor,
    *,
    ascending: bool,
) -> Tensor:
    """The reveal mask [B, N] after m ~ Binomial(number of masked coordinates, kappa_B) reveals.

    The kernel draws counts and uniforms itself. `start_BN` is the initial reveal mask (None if
    nothing is revealed), and `index_B` holds the sample indices (None for 0..B-1). `words` holds
    seed and step as returned by `int32_words`, and the purposes of the counts and of the uniforms.
    """
    shape = (len(kappa_B), len(neighbors_NK))
    u_BN = torch.empty(shape, dtype=torch.float64, device=kappa_B.device)
    start = None if start_BN is None else _bytes(start_BN)
    index = None if index_B is None else index_B.contiguous()
    inputs = (start, None, kappa_B.contiguous(), index)
    return _reveal(inputs, u_BN, words, len(kappa_B), neighbors_NK, ratio_CC, ascending)


def _bytes(mask: Tensor) -> Tensor:
    return mask.contiguous().view(torch.int8)


def _reveal(
    inputs: tuple[Tensor | None, ...],  # start [B, N], count [B], kappa [B], index [B]
    u_BN: Tensor,
    words: tuple[int, ...],
    batch: int,
    neighbors_NK: Tensor,
    ratio_CC: Tensor,
    ascending: bool,
) -> Tensor:
    """Launch both kernels, with little host code before them because the host is the bottleneck."""
    from cwdfm.ops import triton_reveal, triton_reveal_few

    length, neighbors = neighbors_NK.shape
    buckets = len(ratio_CC)
    # The threads of a warp wait for the slowest of their loads, so sequences share a warp only if
    # there are more sequences than warps.
    lanes = min(WARP, -(-batch // PROGRAMS))
    # The state of a sequence should stay in the L1 cache. 32-bit words need no conversion; if they
    # would not fit, the state uses 16-bit words, provided that the values fit.
    narrow = lanes * length > MAX_INT32_COORDINATES and max(length, buckets) < 2**15
    word = torch.int16 if narrow else torch.int32
    state_3BN = torch.empty(3, batch, length, dtype=word, device=u_BN.device)
    if state_3BN.numel() == 0:
        return state_3BN[0] == buckets
    chunks = -(-buckets // CHUNK)
    chunk = -(-buckets // chunks)
    levels = 1 << (chunk * chunks - 1).bit_length()
    border_LB = torch.empty(levels + 2, batch, dtype=torch.int32, device=u_BN.device)
    with torch.cuda.device_of(u_BN):
        triton_reveal.prepare[(batch,)](
            state_3BN, border_LB, u_BN, neighbors_NK, *inputs, batch, length, *words,
            NEIGHBORS=neighbors, BUCKETS=buckets, LANES=levels, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        few = buckets <= MAX_REGISTER_BUCKETS
        kernel = triton_reveal_few.reveal_few if few else triton_reveal.reveal
        kernel[(-(-batch // lanes),)](
            state_3BN, border_LB, u_BN, neighbors_NK, ratio_CC, batch, length, u_BN.shape[1], lanes,
            NEIGHBORS=neighbors, BUCKETS=buckets, ASCENDING=ascending,
            **({"ALONE": lanes == 1} if few else {"CHUNK": chunk}), num_warps=1, num_stages=1,
            enable_fp_fusion=False,  # a fused multiply-add rounds once, the CPU twice
        )  # fmt: skip
    return state_3BN[0] == buckets
