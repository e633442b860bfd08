"""Counter-based randomness: a draw is a function of (seed, sample index, step, position, purpose).

There is no generator state. The same seed gives the same samples for any batch size, number of
processes, device or implementation, and a resumed training run draws exactly the same noise.

The function is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), written in int64 tensor arithmetic, which runs on every device. A Triton kernel on a GPU
and a numba loop on a CPU compute the same bits.
"""

import hashlib
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer, describe, has_values, require
from cwdfm.ops.dispatch import fused_device, numba_jit

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_BLOCK = 512  # draws per program of the kernel


class Purpose(IntEnum):
    """The purpose of a draw. Draws for different purposes are independent."""

    SOURCE = 0  # x_0
    REVEAL = 1  # which coordinates (mixture path), or how many (context path), are revealed
    ORDER = 2  # the order in which Algorithm 1 reveals coordinates, or resampling redraws them
    FORWARD = 3  # the clock of a jump to the proposal
    BACKWARD = 4  # the clock of a corrector's jump back to the source
    PROPOSAL = 5  # xhat_1
    RENOISE = 6  # the target of a corrector's jump
    TIME = 7  # stratified times
    HITTING = 8  # first hitting: the time of the next jump
    NEXT = 9  # first hitting: the coordinate that jumps
    TIE = 10  # the order of tied coordinates
    COUNT = 11  # how many coordinates jump, if drawn separately from which
    SELECT = 12  # which tokens a Gibbs corrector redraws
    REDRAW = 13  # the redrawn tokens
    KEEP = 14  # whether a redrawn token is noise
    CONDITION = 15  # which conditions are dropped in training


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Philox4x32-10 of a 128-bit counter under a 64-bit key.

    `counter` holds four int64 tensors of 32-bit words, which must be broadcastable. The result has
    the same format.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The 64-bit products wrap in int64, which keeps the bits; masks undo the sign extension.
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK32) ^ c1 ^ k0,
            p1 & _MASK32,
            ((p0 >> 32) & _MASK32) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK32, (k1 + _WEYL[1]) & _MASK32
    return c0, c1, c2, c3


def uniform(
    seed: int, purpose: Purpose, index: Tensor, step: int | Tensor, position: Tensor
) -> Tensor:
    """Uniform float64 draws in [0, 1) with 53 random bits, one per (index, step, position).

    `index` (the sample index), `position` and `step` (unless it is an int) are int64 tensors, which
    must be broadcastable. The largest value is 1 - 2^-53, so u * total < total holds in float64 for
    every positive total.
    """
    check_seed(seed)
    if not isinstance(step, Tensor):
        check_step(step)
    if index.device == position.device and fused_device(index.device):
        return _fused_uniform(seed, purpose, index, step, position)
    on_cpu = all(x.is_cpu for x in (index, step, position) if isinstance(x, Tensor))
    if on_cpu and not torch.compiler.is_compiling():  # torch.compile cannot trace the loop
        return _looped_uniform(seed, purpose, index, step, position)
    return _plain_uniform(seed, purpose, index, step, position)


def _plain_uniform(
    seed: int, purpose: Purpose, index: Tensor, step: int | Tensor, position: Tensor
) -> Tensor:
    counter = (
        position & _MASK32,
        step if isinstance(step, Tensor) else torch.full_like(position, step),
        index & _MASK32,
        ((index >> 32) << 8) | int(purpose),
    )
    high, low, _, _ = philox(counter, (seed & _MASK32, seed >> 32))
    bits = ((high >> 5) << 26) | (low >> 6)
    return bits.double() * 2.0**-53


def _looped_uniform(
    seed: int, purpose: Purpose, index: Tensor, step: int | Tensor, position: Tensor
) -> Tensor:
    steps = step if isinstance(step, Tensor) else torch.tensor(step)
    counters = torch.broadcast_tensors(index, steps, position)
    out = torch.empty(counters[0].shape, dtype=torch.float64)
    # All arrays are contiguous, so that numba compiles the loop once.
    words = (x.reshape(-1).contiguous().numpy() for x in counters)
    _uniform_loop(out.view(-1).numpy(), *words, seed & _MASK32, seed >> 32, int(purpose))
    return out


@numba_jit
def _uniform_loop(
    out: np.ndarray,
    index: np.ndarray,
    step: np.ndarray,
    position: np.ndarray,
    low: int,
    high: int,
    purpose: int,
) -> None:
    """`_plain_uniform`, one draw at a time."""
    mask, half = np.uint64(_MASK32), np.uint64(32)
    for i in range(len(out)):
        c0, c1 = np.uint64(position[i]) & mask, np.uint64(step[i])
        c2, c3 = np.uint64(index[i]) & mask, np.uint64(((index[i] >> 32) << 8) | purpose)
        k0, k1 = np.uint64(low), np.uint64(high)
        for _ in range(_ROUNDS):
            p0, p1 = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
            c0, c1 = (p1 >> half) ^ c1 ^ k0, p1 & mask
            c2, c3 = (p0 >> half) ^ c3 ^ k1, p0 & mask
            k0, k1 = (k0 + np.uint64(_WEYL[0])) & mask, (k1 + np.uint64(_WEYL[1])) & mask
        bits = ((c0 >> np.uint64(5)) << np.uint64(26)) | (c1 >> np.uint64(6))
        out[i] = bits * 2.0**-53


def _fused_uniform(
    seed: int, purpose: Purpose, index: Tensor, step: int | Tensor, position: Tensor
) -> Tensor:
    from cwdfm.ops import triton_random

    steps = None if isinstance(step, int) else step
    counters = torch.broadcast_tensors(index, index if steps is None else steps, position)
    out = torch.empty(counters[0].shape, dtype=torch.float64, device=index.device)
    if out.numel() == 0:
        return out
    if out.dim() != 2:
        counters = tuple(x.reshape(1, -1) for x in counters)
    index, step_counters, position = counters
    with torch.cuda.device_of(out):
        triton_random.uniform[(-(-out.numel() // _BLOCK),)](
            out, index, None if steps is None else step_counters, position, out.numel(),
            index.shape[1],
            *(stride for x in counters for stride in x.stride()),
            *int32_words(seed, step if isinstance(step, int) else 0), int(purpose), BLOCK=_BLOCK,
        )  # fmt: skip
    return out


def uniform_BN(
    seed: int, purpose: Purpose, index_B: Tensor, step: int | Tensor, length: int
) -> Tensor:
    """Uniform draws [B, N], one per position of every sample; `step` is an int or [B]."""
    position_N = torch.arange(length, device=index_B.device)
    step = step[:, None] if isinstance(step, Tensor) else step
    return uniform(seed, purpose, index_B[:, None], step, position_N[None, :])


def int32_words(seed: int, step: int) -> tuple[int, int, int]:
    """The seed (low and high word) and the step as signed 32-bit words for a kernel.

    Triton infers the type of an integer from its value, and would compile a kernel for every type.
    """
    low, high, time = (((word & _MASK32) ^ 2**31) - 2**31 for word in (seed, seed >> 32, step))
    return low, high, time


def index_or_arange(index: Tensor | None, batch: int, device: torch.device) -> Tensor:
    """The sample indices [B]: `index`, or 0..B-1 if it is None. Not validated."""
    return torch.arange(batch, device=device) if index is None else index


def sample_index(index: Tensor | None, batch: int, device: torch.device) -> Tensor:
    """The validated global sample indices [B] of a batch: `index`, or 0..B-1 if it is None."""
    if index is None:
        return torch.arange(batch, device=device)
    check_index_tensor(index, batch)
    if batch > 0:
        check_index_range(*(int(v) for v in index.aminmax()))
    return index.to(device)


def check_index_tensor(index: Tensor, batch: int) -> None:
    """Raise an InputError unless `index` is an int64 tensor [B]."""
    if not has_values(index) or index.shape != (batch,) or index.dtype != torch.int64:
        raise InputError(
            f"index must be an int64 tensor of shape ({batch},), one number per sample, "
            f"got {describe(index)}"
        )


def check_index_range(low: float, high: float) -> None:
    """Raise an InputError if the smallest index is negative."""
    if low < 0:
        raise InputError(f"index must not be negative, got {low}")


def derive_seed(seed: int, number: int) -> int:
    """A 63-bit seed derived from a seed and a counter of any size."""
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def check_step(step: int) -> None:
    """Raise an InputError unless the step is an integer in 0..2^32-1."""
    check_integer("step", step, 0, _MASK32)


def check_seed(seed: int) -> None:
    """Raise an InputError unless the seed is an integer in 0..2^64-1."""
    valid = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**64
    require(valid, "seed", "be an integer in 0..2^64-1", seed)
