"""What passes over the head's logits share: chunks of rows, their softmax, sums of gradients.

Logits are l = hidden @ W^T + b, a chunk of rows at a time, and become their own gradient in place:

    d/dl sum_j g_j log p(token_j) = sum_j g_j (onehot(token_j) - p)

Shapes: K rows, k rows of a chunk, D width, V data tokens, J tokens a row.
"""

from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.ops import HALF, fused_elementwise, sum_dtype
from cwdfm.ops.launch import on_its_gpu

# Logits held at once: few enough for a CPU's memory bus, enough to keep a GPU busy. There each
# chunk reads and writes all of d_weight: 0.3 GB in float32 at V = 50,257 and D = 768, 0.075 ms on
# an H200. 2**28 logits, 0.5 GB in half precision, cut K = 64 x 1024 rows into 13 chunks: 1 ms in
# all, beside 20 ms of products; all logits would be 6.6 GB.
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
# Rows of logits begin at multiples of this, without which matrix products in half precision leave
# the fast path; and chunks are whole tiles.
ALIGN = 64
# How kernels work on rows: see `triton_rows.py`. All have 16 warps, with 16 bytes a thread at once.
THREADS = 512
# Of two kernels the one that reads rows twice has 64 registers a thread: then two programs fit on a
# multiprocessor, and a GPU of 132 has 26 MB of rows in the works, which an H200's L2 cache of 50 MB
# holds until they are read for the second time. Blocks on their way from memory while one is worked
# on keep it busy with so few programs.
DEPTH, STAGES, REGISTERS = 2, 3, 64
# The other holds a row in 128 registers a thread, one program a multiprocessor: so many columns
# that it is worth it, so few that they fit, at two a register. Two more rows are in its shared
# memory, of which an H100 has as much and an A100 has not: with one Triton would ask for the next
# row only when this one is done.
HELD_COLUMNS = range(2**14, 7 * 2**13 + 1)
HELD_DEPTH, HELD_STAGES, HELD_REGISTERS = 4, 3, 128
HELD_SHARED_BYTES = 228 * 2**10
# The bias is the weight of an input that is always 1, so that its gradient comes with d_weight's
# product: at the sizes above 776 columns for 768, a hundredth more work, or a column of tiles where
# they do not fit. Summing the gradient's rows would read 6.6 GB once more, 1.6 ms. Eight such
# inputs, of which one is used, keep rows at the multiples of 16 bytes that fast products need.
ONES = 8


def chunks(vocab: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors cut along their K rows alike: even chunks of a bounded number of logits."""
    total = len(tensors[0])
    most = max(1, MAX_ELEMENTS.get(tensors[0].device.type, MAX_ELEMENTS["cpu"]) // vocab)
    unit = ALIGN if most > ALIGN else 1
    count = -(-total // (most // unit * unit))
    rows = -(-total // (max(1, count) * unit)) * unit
    for first in range(0, total, max(1, rows)):
        yield tuple(x[first : first + rows] for x in tensors)


def aligned_head(
    weight: Tensor, bias: Tensor | None, vocab: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the data tokens in `dtype`, filled up with zero rows to the alignment."""
    size = vocab + -vocab % ALIGN if dtype in HALF else vocab

    def fit(x: Tensor) -> Tensor:
        if size == vocab:
            return x[:vocab].to(dtype)
        fitted = x.new_zeros(size, *x.shape[1:], dtype=dtype)
        fitted[:vocab] = x[:vocab]
        return fitted

    return fit(weight), None if bias is None else fit(bias)


def softmax_rows(
    logits_kV: Tensor,
    vocab: int,
    log_z_k: Tensor | None = None,
    change: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """log Z [k] of the data tokens' logits, in at least float32; unless it is given.

    `change` = (tokens [k, J], g [k, J]) overwrites the logits by d/dl sum_j g_j log p(token_j), and
    by 0 behind the data tokens.
    """
    if fused_elementwise(logits_kV):
        return _fused_rows(logits_kV, vocab, log_z_k, change)
    full = logits_kV[:, :vocab].to(sum_dtype(logits_kV))
    log_z_k = full.logsumexp(-1) if log_z_k is None else log_z_k
    if change is not None:
        tokens_kJ, grad_kJ = change
        gradient = (full - log_z_k[:, None]).exp_().mul_(-grad_kJ.sum(1, keepdim=True))
        gradient.scatter_add_(1, tokens_kJ, grad_kJ.to(gradient.dtype))
        logits_kV[:, :vocab] = gradient
        logits_kV[:, vocab:] = 0.0
    return log_z_k


@on_its_gpu
def _fused_rows(
    logits_kV: Tensor,
    vocab: int,
    log_z_k: Tensor | None,
    change: tuple[Tensor, Tensor] | None,
) -> Tensor:
    from cwdfm.ops import triton_rows

    normalises = log_z_k is None
    if log_z_k is None:
        log_z_k = torch.empty(len(logits_kV), dtype=torch.float32, device=logits_kV.device)
    # Where there is no change, anything stands in for its tensors.
    tokens_kJ, grad_kJ = (x.contiguous() for x in change or (log_z_k[:, None],) * 2)
    tensors, count = (logits_kV, log_z_k, tokens_kJ, grad_kJ), tokens_kJ.shape[1]
    if normalises and change is not None and count == 1 and _holds(logits_kV):
        programs = min(len(logits_kV), _multiprocessors(logits_kV.device)[0])
        triton_rows.softmax_held_rows[(programs,)](
            *tensors, len(logits_kV), 0, **_options(logits_kV, vocab, held=True)
        )
        return log_z_k
    triton_rows.softmax_rows[(len(logits_kV),)](
        *tensors,
        J=count,
        BLOCK_J=_power_of_two(count),
        NORMALISE=normalises,
        GRADIENT=change is not None,
        **_options(logits_kV, vocab, held=False),
    )
    return log_z_k


def _holds(logits_kV: Tensor) -> bool:
    """Whether registers can hold a row, and gain by it."""
    columns, device = logits_kV.shape[1], logits_kV.device
    fits = columns in HELD_COLUMNS and columns % 2 == 0 and logits_kV.dtype == torch.bfloat16
    return fits and _multiprocessors(device)[1] >= HELD_SHARED_BYTES


def _options(logits_kV: Tensor, vocab: int, *, held: bool) -> dict[str, int]:
    """What both kernels are compiled for: blocks [depth, lanes] of data tokens alone, and a tail.

    16 bytes of a lane are next to each other.
    """
    columns, wide = logits_kV.shape[1], 16 // logits_kV.element_size()
    lanes = min(THREADS * wide, max(wide, _power_of_two(columns)))
    depth = HELD_DEPTH if held else DEPTH
    full = vocab // (depth * lanes)
    tail = -(-(columns - full * depth * lanes) // lanes)
    return {
        "VOCAB": vocab,
        "COLUMNS": columns,
        "LANES": lanes,
        "WIDE": wide,
        "DEPTH": depth,
        "FULL": full,
        "TAIL": _power_of_two(tail) if tail else 0,
        "STAGES": HELD_STAGES if held else STAGES,
        "num_warps": max(1, lanes // (32 * wide)),
        "maxnreg": HELD_REGISTERS if held else REGISTERS,
    }


def _power_of_two(n: int) -> int:
    """The first that is not below n."""
    return 1 << (n - 1).bit_length()


@cache
def _multiprocessors(device: torch.device) -> tuple[int, int]:
    """How many there are, and the shared memory of each; on a CPU several, of any size."""
    if device.type != "cuda":
        return 3, HELD_SHARED_BYTES
    gpu = torch.cuda.get_device_properties(device)
    return gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor


class GradientSums:
    """The head's gradients from those of its logits, taken in a chunk of rows after the other.

    `total` is [d_weight, d_bias, ...] side by side, summed in at least float32; what lies behind
    the data tokens stays 0.
    """

    def __init__(
        self, hidden_KD: Tensor, weight: Tensor, bias: Tensor | None, head_weight: Tensor
    ) -> None:
        self.d_hidden_KD = torch.empty_like(hidden_KD)
        self._head_weight, self._ones = head_weight, 0 if bias is None else ONES
        rows, width = max(len(weight), len(head_weight)), weight.shape[1] + self._ones
        kind = sum_dtype(weight)
        self.total = torch.zeros(rows, width, dtype=kind, device=weight.device)
        self._done = 0

    def add(self, change_kV: Tensor, hidden_kD: Tensor) -> None:
        """Take in the next rows."""
        first, self._done = self._done, self._done + len(hidden_kD)
        torch.mm(change_kV, self._head_weight, out=self.d_hidden_KD[first : self._done])
        hidden_kE = F.pad(hidden_kD, (0, self._ones), value=1.0) if self._ones else hidden_kD
        add_product(self.total[: change_kV.shape[1]], change_kV.T, hidden_kE)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in the product itself where it can: a sum apart reads and writes twice."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif _adds_in_product(total.device, total.dtype, a.dtype):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


@cache
def _adds_in_product(device: torch.device, total: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a product of `dtype` adds to a sum of another: tried out, once.

    CUDA alone has it, and no overload tells that torch before 2.10 refuses this very use of it.
    """
    sum_88 = torch.ones(8, 8, dtype=total, device=device)
    a_88 = torch.ones(8, 8, dtype=dtype, device=device)
    try:
        torch.addmm(sum_88, a_88.T, a_88, out_dtype=total, out=sum_88)
    except (TypeError, RuntimeError):
        return False
    return bool((sum_88 == 9).all())
