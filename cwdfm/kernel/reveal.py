"""Algorithm 1 on a GPU: the bucket loop of `cwdfm.path.algorithm1`, a program a sequence."""

import torch
import torch.nn.functional as F
from torch import Tensor


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

    neighbors_NK int32 (-1: none), ratio_CC float64; see `cwdfm.path.algorithm1` for their meaning.
    """
    from cwdfm.kernel import triton_reveal

    batch, length = start_BN.shape
    buckets = len(ratio_CC)
    padded_BN = F.pad(start_BN, (0, 1))  # behind the end, for those without a neighbour
    score_BN = padded_BN[:, neighbors_NK.long()].sum(-1, dtype=torch.int32)
    # As the loop on a CPU has them: by score, and within a score from the last to the first.
    place_N = torch.arange(length, device=start_BN.device)
    key_BN = torch.where(start_BN, buckets, score_BN) * length + (length - 1 - place_N)
    order_BN = key_BN.argsort(dim=1).to(torch.int32)
    slot_BN = torch.empty_like(order_BN).scatter_(
        1, order_BN.long(), place_N.to(torch.int32).expand(batch, -1)
    )
    size_BC = F.one_hot(torch.where(start_BN, buckets, score_BN).long(), buckets + 1).sum(1)
    border_BC = F.pad(size_BC[:, :buckets].cumsum(1), (1, 0)).to(torch.int32)
    revealed_BN = start_BN.to(torch.int8)
    triton_reveal.reveal[(batch,)](
        revealed_BN,
        count_B,
        u_BN.contiguous(),
        neighbors_NK,
        ratio_CC,
        order_BN,
        slot_BN,
        score_BN.contiguous(),
        border_BC.contiguous(),
        length,
        NEIGHBORS=neighbors_NK.shape[1],
        BUCKETS=buckets,
        LANES=max(2, 1 << (buckets - 1).bit_length()),
        ASCENDING=ascending,
        num_warps=1,
    )
    return revealed_BN.bool()
