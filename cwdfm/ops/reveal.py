"""Algorithm 1 on a GPU: the bucket loop of `cwdfm.path.algorithm1`, a thread a sequence."""

import torch
from torch import Tensor

BLOCK = 1024  # coordinates that are sorted at once
CHUNK = 8  # buckets, at most, that are read at once
# Buckets, at most, whose borders are held in registers. With 9 of them an H200 goes wrong in about
# one of 20 draws, where Triton's interpreter and its PTX, emulated, are right (Triton 3.6).
FEW = 8
WIDE = 2048  # coordinates of a program, at most, that have words of 32 bits
WARP = 32  # threads
PROGRAMS = 1024  # warps: about 8 for each multiprocessor of a large GPU


def reveal(
    start_BN: Tensor,
    count_B: Tensor,
    u_BN: Tensor,
    neighbors_NK: Tensor,
    ratio_CC: Tensor,
    *,
    ascending: bool,
) -> Tensor:
    """The reveal mask [B, N] after count_B further reveals, all on one device.

    neighbors_NK int32, ratio_CC float64; see `cwdfm.path.algorithm1` for their meaning.
    """
    given = (_bytes(start_BN), count_B.contiguous(), None, None)
    u_BN, words = u_BN.contiguous(), (0, 0, 0, 0, 0)  # the words are read by nobody
    return _reveal(given, u_BN, words, len(start_BN), neighbors_NK, ratio_CC, ascending)


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
    """The reveal mask [B, N] after as many further reveals as a Binomial of kappa_B says.

    Counts and uniforms are drawn on the way. Nothing is revealed from the start where `start_BN` is
    None, and the samples are numbered 0..B-1 where `index_B` is. `words` are the seed's two of 32
    bits and the step's, signed, and the purposes of the counts and of the uniforms.
    """
    shape = (len(kappa_B), len(neighbors_NK))
    u_BN = torch.empty(shape, dtype=torch.float64, device=kappa_B.device)
    start = None if start_BN is None else _bytes(start_BN)
    index = None if index_B is None else index_B.contiguous()
    given = (start, None, kappa_B.contiguous(), index)
    return _reveal(given, u_BN, words, len(kappa_B), neighbors_NK, ratio_CC, ascending)


def _bytes(mask: Tensor) -> Tensor:
    return mask.contiguous().view(torch.int8)


def _reveal(
    given: tuple[Tensor | None, ...],  # start [B, N], count [B], kappa [B], index [B]
    u_BN: Tensor,
    words: tuple[int, ...],
    batch: int,
    neighbors_NK: Tensor,
    ratio_CC: Tensor,
    ascending: bool,
) -> Tensor:
    """Two launches, and little before them: the host takes longer for it than the GPU."""
    from cwdfm.ops import triton_reveal, triton_reveal_few, triton_reveal_start

    length, neighbors = neighbors_NK.shape
    buckets = len(ratio_CC)
    # Threads of a warp wait for the slowest load among them, so sequences share a warp only where
    # there are more of them than warps.
    lanes = min(WARP, -(-batch // PROGRAMS))
    # What a sequence changes should stay in a near cache. Words of 32 bits need no conversions;
    # where they would not fit, places and buckets have 16 if those do.
    narrow = lanes * length > WIDE and max(length, buckets) < 2**15
    word = torch.int16 if narrow else torch.int32
    state_3BN = torch.empty(3, batch, length, dtype=word, device=u_BN.device)
    if state_3BN.numel() == 0:
        return state_3BN[0] == buckets
    chunks = -(-buckets // CHUNK)
    chunk = -(-buckets // chunks)
    levels = 1 << (chunk * chunks - 1).bit_length()
    border_LB = torch.empty(levels + 2, batch, dtype=torch.int32, device=u_BN.device)
    with torch.cuda.device_of(u_BN):
        triton_reveal_start.prepare[(batch,)](
            state_3BN,
            border_LB,
            u_BN,
            neighbors_NK,
            *given,
            batch,
            length,
            *words,
            NEIGHBORS=neighbors,
            BUCKETS=buckets,
            LANES=levels,
            BLOCK=BLOCK,
            num_warps=4,
        )
        few = buckets <= FEW
        kernel = triton_reveal_few.reveal_few if few else triton_reveal.reveal
        kernel[(-(-batch // lanes),)](
            state_3BN,
            border_LB,
            u_BN,
            neighbors_NK,
            ratio_CC,
            batch,
            length,
            u_BN.shape[1],
            lanes,
            NEIGHBORS=neighbors,
            BUCKETS=buckets,
            ASCENDING=ascending,
            **({"ALONE": lanes == 1} if few else {"CHUNK": chunk}),
            num_warps=1,
            num_stages=1,
            enable_fp_fusion=False,  # a fused product and sum rounds once, the CPU's twice
        )
    return state_3BN[0] == buckets
