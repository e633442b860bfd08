"""Algorithm 1 on a GPU: the bucket loop of `cwdfm.path.algorithm1`, a thread a sequence."""

import torch
from torch import Tensor

BLOCK = 1024  # coordinates that are sorted at once
CHUNK = 8  # buckets, at most, that are read at once
FEW = 9  # buckets, at most 15, whose borders fit into registers: those of a square on a grid
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
    from cwdfm.kernel import triton_reveal

    if start_BN.numel() == 0:
        return start_BN.clone()
    batch, length = start_BN.shape
    neighbors, buckets = neighbors_NK.shape[1], len(ratio_CC)
    device = start_BN.device
    # Threads of a warp wait for the slowest load among them, so sequences share a warp only where
    # there are more of them than warps.
    lanes = min(WARP, -(-batch // PROGRAMS))
    # What a sequence changes should stay in a near cache. Words of 32 bits need no conversions;
    # where they would not fit, places and buckets are no wider than need be.
    place, level = torch.int32, torch.int32
    if lanes * length > WIDE:
        place = torch.int16 if length < 2**15 else torch.int32
        level = torch.int8 if buckets < 2**7 else torch.int16
    bucket_BN = torch.empty(batch, length, dtype=level, device=device)
    order_BN, slot_BN = (torch.empty(batch, length, dtype=place, device=device) for _ in range(2))
    chunks = -(-buckets // CHUNK)
    chunk = -(-buckets // chunks)
    levels = 1 << (chunk * chunks - 1).bit_length()
    border_LB = torch.empty(levels + 1, batch, dtype=torch.int32, device=device)
    state = (bucket_BN, order_BN, slot_BN, border_LB)
    with torch.cuda.device_of(start_BN):
        triton_reveal.sort[(batch,)](
            start_BN.contiguous().view(torch.int8),
            neighbors_NK,
            *state,
            batch,
            length,
            NEIGHBORS=neighbors,
            BUCKETS=buckets,
            LANES=levels,
            BLOCK=BLOCK,
            num_warps=4,
        )
        few = buckets <= FEW
        kernel = triton_reveal.reveal_few if few else triton_reveal.reveal
        kernel[(-(-batch // lanes),)](
            *state,
            count_B.contiguous(),
            u_BN.contiguous(),
            neighbors_NK,
            ratio_CC,
            batch,
            length,
            u_BN.shape[1],
            lanes,
            NEIGHBORS=neighbors,
            BUCKETS=buckets,
            ASCENDING=ascending,
            **({} if few else {"CHUNK": chunk}),
            num_warps=1,
            num_stages=1,
            enable_fp_fusion=False,  # a fused product and sum rounds once, the CPU's twice
        )
    return bucket_BN == buckets
