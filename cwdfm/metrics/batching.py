"""Sequences of different lengths in batches of bounded size, padded on the right."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# Tokens in one pass on a CPU, where more do not run faster; on a GPU memory decides, up to a cap
# at which its units are long busy.
CPU_TOKENS, MOST_TOKENS = 2**11, 2**15
MEMORY_SHARE = 0.25


def token_budget(device: torch.device, bytes_a_token: int) -> int:
    """How many tokens go into one pass, padding included, if each takes that much memory."""
    if device.type != "cuda":
        return CPU_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MOST_TOKENS, int(free * MEMORY_SHARE) // bytes_a_token))


def length_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places of sequences, longest first, in batches of at most `budget` tokens with padding.

    Longest first: what does not fit into memory fails at once. A sequence longer than the budget
    goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    first = 0
    while first < len(order):
        size = max(1, budget // max(1, lengths[order[first]]))
        yield order[first : first + size]
        first += size


def pad_right(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Ids [B, T] and the mask [B, T] of real tokens (None where nothing is padded).

    Padding is id 0: the mask hides it, and no result is read there.
    """
    longest = max(map(len, sequences))
    ids_BT = torch.zeros(len(sequences), longest, dtype=torch.int64)
    mask_BT = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for i, sequence in enumerate(sequences):
        ids_BT[i, : len(sequence)] = torch.tensor(sequence)
        mask_BT[i, : len(sequence)] = 1
    full = bool(mask_BT.all())
    return ids_BT.to(device), None if full else mask_BT.to(device)
