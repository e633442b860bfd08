"""Algorithm 1: reveal m masked coordinates one by one, each with probability alpha^i / sum alpha.

For a general weight of the reveal mask, alpha is recomputed for each draw, at a cost of O(N).
Neighbor scores take few values and change only around the last reveal, so the masked coordinates
are kept in buckets by score: choose a bucket with probability proportional to size times weight, a
member uniformly, then move its neighbors up by one bucket. This is exact, and costs O(window) per
draw and O(N) in total.

The bucket loop is plain Python over arrays, compiled by numba. On a GPU a Triton kernel implements
the same algorithm. Tensors on other devices are copied to the CPU.
"""

from functools import lru_cache
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from cwdfm.ops import reveal
from cwdfm.ops.dispatch import fused_device, numba_jit
from cwdfm.ops.random import (
    Purpose,
    check_seed,
    check_step,
    index_or_arange,
    int32_words,
    uniform_BN,
)
from cwdfm.path.base import RevealOptions
from cwdfm.weight import Neighbor, Weight


def reveal_drawn(
    weight: Weight, kappa_B: Tensor, length: int, **options: Unpack[RevealOptions]
) -> Tensor:
    """The reveal mask [B, N] after m reveals per sequence, m ~ Binomial(number not fixed, kappa_B).

    Coordinates in `fixed` [B, N] are revealed from the start (default: none). `index` [B] holds the
    sample indices (default: 0..B-1).
    """
    device, fixed, index = kappa_B.device, options["fixed"], options["index"]
    seed, step = options["seed"], options["step"]
    if isinstance(weight, Neighbor) and fused_device(device):
        check_seed(seed)
        check_step(step)
        seed_words = (*int32_words(seed, step), int(Purpose.REVEAL), int(Purpose.ORDER))
        tables = _tables(weight, length, device)
        ascending = weight.scale >= 0
        return reveal.reveal_drawn(fixed, kappa_B, index, seed_words, *tables, ascending=ascending)
    index_B = index_or_arange(index, len(kappa_B), device)
    if fixed is None:
        fixed = torch.zeros(len(kappa_B), length, dtype=torch.bool, device=device)
    # The number of independent reveals is Binomial(N, kappa), so no binomial sampler is needed.
    below_BN = uniform_BN(seed, Purpose.REVEAL, index_B, step, length) < kappa_B[:, None]
    u_BN = uniform_BN(seed, Purpose.ORDER, index_B, step, length)
    return reveal_in_order(weight, fixed, (below_BN & ~fixed).sum(1), u_BN)


def reveal_in_order(weight: Weight, start_BN: Tensor, count_B: Tensor, u_BN: Tensor) -> Tensor:
    """The reveal mask [B, N] after count_B more reveals; draw k of sequence b uses u_BN[b, k].

    count_B must not exceed the number of masked coordinates in start_BN.
    """
    if isinstance(weight, Neighbor):
        return _reveal_bucketed(weight, start_BN, count_B, u_BN)
    return reveal_naive(weight, start_BN, count_B, u_BN)


def reveal_naive(weight: Weight, start_BN: Tensor, count_B: Tensor, u_BN: Tensor) -> Tensor:
    """Algorithm 1 as in the paper, for any weight of the reveal mask, O(N) per draw."""
    revealed_BN = start_BN.clone()
    for k in range(int(count_B.max())):
        cdf_BN = weight(revealed_BN).cumsum(1)
        target_B1 = u_BN[:, k : k + 1] * cdf_BN[:, -1:]
        chosen_B1 = torch.searchsorted(cdf_BN, target_B1, right=True)
        active_B1 = (k < count_B)[:, None]
        chosen_B1 = torch.where(active_B1, chosen_B1, 0)
        revealed_BN.scatter_(1, chosen_B1, active_B1 | revealed_BN.gather(1, chosen_B1))
    return revealed_BN


@lru_cache(maxsize=8)
def _tables(weight: Neighbor, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables of the bucket loop: neighbors [N, K] int32 and ratio [C, C] float64.

    A missing neighbor is replaced by the coordinate itself. While the coordinate is masked, this
    adds nothing to its score; once it is revealed, it is in no bucket.

    ratio[c, d] = alpha(c) / alpha(d) is used for the occupied bucket d with the largest alpha, so
    it never overflows.
    """
    neighbors_NK = weight.neighbors(length)
    neighbors_NK = torch.where(neighbors_NK < 0, torch.arange(length)[:, None], neighbors_NK)
    level_C = weight.scale * torch.arange(neighbors_NK.shape[1] + 1, dtype=torch.float64)
    ratio_CC = (level_C[:, None] - level_C[None, :]).clamp(max=0).exp()
    return neighbors_NK.to(torch.int32).contiguous().to(device), ratio_CC.to(device)


def _reveal_bucketed(weight: Neighbor, start_BN: Tensor, count_B: Tensor, u_BN: Tensor) -> Tensor:
    ascending = weight.scale >= 0
    if fused_device(start_BN.device):
        tables = _tables(weight, start_BN.shape[1], start_BN.device)
        return reveal.reveal(start_BN, count_B, u_BN, *tables, ascending=ascending)
    neighbors_NK, ratio_CC = _tables(weight, start_BN.shape[1], torch.device("cpu"))
    # Use 16-bit indices if possible: the arrays of the loop then fit into the L1 cache.
    index_dtype = torch.int16 if len(neighbors_NK) < 2**15 else torch.int32
    # All arrays are contiguous, so that the loop is compiled once: numba's disk cache does not
    # support concurrent writers.
    revealed_BN = start_BN.cpu().contiguous().numpy().copy()
    _reveal_loop(
        revealed_BN,
        count_B.cpu().contiguous().numpy(),
        u_BN.cpu().contiguous().numpy(),
        neighbors_NK.to(index_dtype).numpy(),
        ratio_CC.numpy(),
        ascending,
    )
    return torch.from_numpy(revealed_BN).to(start_BN.device)


@numba_jit
def _sort(
    revealed_N: np.ndarray,
    neighbors_NK: np.ndarray,
    order: np.ndarray,
    slot: np.ndarray,
    score: np.ndarray,
    start: np.ndarray,
) -> None:
    """Fill the buckets with a counting sort: count the sizes, sum them, fill from the ends."""
    start[:] = 0
    for i in range(len(order)):
        score[i] = 0
        for j in neighbors_NK[i]:
            if revealed_N[j]:
                score[i] += 1
        if not revealed_N[i]:
            start[score[i]] += 1
    for c in range(1, len(start)):
        start[c] += start[c - 1]
    for i in range(len(order)):
        if not revealed_N[i]:
            start[score[i]] -= 1
            slot[i] = start[score[i]]
            order[slot[i]] = i


@numba_jit
def _promote(i: int, bucket: int, order: np.ndarray, slot: np.ndarray, start: np.ndarray) -> None:
    """Move coordinate i to the next bucket: swap it to the end, then shift the boundary."""
    end = start[bucket + 1] - 1
    last = order[end]
    order[slot[i]], slot[last] = last, slot[i]
    order[end], slot[i] = i, end
    start[bucket + 1] = end


@numba_jit
def _reveal_loop(
    revealed_BN: np.ndarray,
    count_B: np.ndarray,
    u_BN: np.ndarray,
    neighbors_NK: np.ndarray,
    ratio_CC: np.ndarray,
    ascending: bool,
) -> None:
    """Algorithm 1 with buckets; modifies revealed_BN in place.

    order[start[c] : start[c + 1]] are the masked coordinates with c revealed neighbors, in
    arbitrary order, and slot[i] is the index of i in `order`. Scores increase by one at a time, and
    a revealed coordinate is promoted past the last bucket, so promotion is the only operation.
    """
    batch, length = revealed_BN.shape
    buckets = ratio_CC.shape[0]
    order = np.empty(length, dtype=neighbors_NK.dtype)
    slot = np.empty(length, dtype=neighbors_NK.dtype)
    score = np.empty(length, dtype=neighbors_NK.dtype)
    start = np.empty(buckets + 1, dtype=np.int32)
    for b in range(batch):
        _sort(revealed_BN[b], neighbors_NK, order, slot, score, start)
        for k in range(count_B[b]):
            # Masses are relative to `top`, the occupied bucket with the largest alpha.
            top = 0
            for c in range(buckets):
                if start[c + 1] > start[c]:
                    top = c
                    if not ascending:
                        break
            total = 0.0
            for c in range(buckets):
                total += (start[c + 1] - start[c]) * ratio_CC[c, top]
            target = u_BN[b, k] * total
            chosen = top
            for c in range(buckets):
                mass = (start[c + 1] - start[c]) * ratio_CC[c, top]
                if target < mass:
                    chosen = c
                    break
                target -= mass
            member = start[chosen] + int(target / ratio_CC[chosen, top])
            i = order[min(member, start[chosen + 1] - 1)]
            revealed_BN[b, i] = True
            for c in range(chosen, buckets):
                _promote(i, c, order, slot, start)
            for j in neighbors_NK[i]:
                if not revealed_BN[b, j]:
                    _promote(j, score[j], order, slot, start)
                    score[j] += 1
