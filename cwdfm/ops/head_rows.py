"""Building blocks of the losses fused with the head: row chunks, their softmax, gradient sums.

Logits l = hidden @ W^T + b are computed one chunk at a time and overwritten by their gradient,

    d/dl sum_j g_j log p(token_j) = sum_j g_j (onehot(token_j) - p)

Shapes: K rows, k rows of a chunk, D width, V data tokens, J tokens per row.
"""

from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.ops.dispatch import fused_elementwise, next_power_of_2
from cwdfm.ops.precision import HALF, sum_dtype

# Logits per chunk: few enough to limit a CPU's memory traffic, enough to keep a GPU busy. On a GPU
# every chunk reads and writes all of d_weight: 0.3 GB in float32 at V = 50,257 and D = 768, which
# takes 0.075 ms on an H200. With 2**28 logits (0.5 GB in half precision), K = 64 x 1024 rows are 13
# chunks: 1 ms in total, against 20 ms of products. All logits together would take 6.6 GB.
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}
# Rows of logits start at multiples of this, as fast half-precision products require, and the size
# of a chunk is a multiple of it.
ALIGN = 64
# Kernel parameters, see `triton_softmax.py`: 16 warps, each thread loading 16 bytes at once.
THREADS = 512
# The kernel that reads rows twice uses 64 registers per thread, so that two programs fit on a
# multiprocessor. A GPU with 132 multiprocessors then has 26 MB of rows in flight, which the 50 MB
# L2 cache of an H200 holds until the second read. Prefetching keeps the GPU busy with so few
# programs.
DEPTH, STAGES, REGISTERS = 2, 3, 64
# The other kernel holds a row in 128 registers per thread, with one program per multiprocessor. It
# is used for column counts large enough to pay off and small enough to fit, at two columns per
# register. Two more rows are prefetched into shared memory, which is large enough on an H100 but
# not on an A100; with space for only one, Triton would not overlap loading with computation.
HELD_COLUMNS = range(2**14, 7 * 2**13 + 1)
HELD_DEPTH, HELD_STAGES, HELD_REGISTERS = 4, 3, 128
HELD_SHARED_BYTES = 228 * 2**10
# The bias is treated as the weight of a constant input 1, so that the product for d_weight includes
# its gradient: at the sizes above 776 columns instead of 768, 1% more work, or one more column of
# tiles. Summing the rows of the gradient instead would read another 6.6 GB, which takes 1.6 ms.
# There are eight such inputs, of which one is used, because fast products require rows at multiples
# of 16 bytes.
ONES = 8


def chunks(vocab: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors along their K rows into even chunks with a bounded number of logits."""
    total = len(tensors[0])
    limit = max(1, MAX_ELEMENTS.get(tensors[0].device.type, MAX_ELEMENTS["cpu"]) // vocab)
    unit = ALIGN if limit > ALIGN else 1
    count = -(-total // (limit // unit * unit))
    rows = -(-total // (max(1, count) * unit)) * unit
    for first in range(0, total, max(1, rows)):
        yield tuple(x[first : first + rows] for x in tensors)


def aligned_head(
    weight: Tensor, bias: Tensor | None, vocab: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The head's weight and bias for the data tokens in `dtype`, zero-padded to the alignment."""
    size = vocab + -vocab % ALIGN if dtype in HALF else vocab

    def pad(x: Tensor) -> Tensor:
        if size == vocab:
            return x[:vocab].to(dtype)
        padded = x.new_zeros(size, *x.shape[1:], dtype=dtype)
        padded[:vocab] = x[:vocab]
        return padded

    return pad(weight), None if bias is None else pad(bias)


def softmax_rows(
    logits_kV: Tensor,
    vocab: int,
    log_z_k: Tensor | None = None,
    targets: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return log Z [k] of the data tokens' logits, in at least float32; computed unless passed in.

    With `targets` = (tokens [k, J], g [k, J]), the logits are overwritten by the gradient
    d/dl sum_j g_j log p(token_j), which is 0 after the data tokens.
    """
    if fused_elementwise(logits_kV):
        with torch.cuda.device_of(logits_kV):
            return _fused_rows(logits_kV, vocab, log_z_k, targets)
    data_kV = logits_kV[:, :vocab].to(sum_dtype(logits_kV))
    log_z_k = data_kV.logsumexp(-1) if log_z_k is None else log_z_k
    if targets is not None:
        tokens_kJ, grad_kJ = targets
        gradient = (data_kV - log_z_k[:, None]).exp_().mul_(-grad_kJ.sum(1, keepdim=True))
        gradient.scatter_add_(1, tokens_kJ, grad_kJ.to(gradient.dtype))
        logits_kV[:, :vocab] = gradient
        logits_kV[:, vocab:] = 0.0
    return log_z_k


def _fused_rows(
    logits_kV: Tensor, vocab: int, log_z_k: Tensor | None, targets: tuple[Tensor, Tensor] | None
) -> Tensor:
    from cwdfm.ops import triton_softmax

    normalize = log_z_k is None
    if log_z_k is None:
        log_z_k = torch.empty(len(logits_kV), dtype=torch.float32, device=logits_kV.device)
    # Without targets, any tensor serves as a placeholder.
    tokens_kJ, grad_kJ = (x.contiguous() for x in targets or (log_z_k[:, None],) * 2)
    tensors, count = (logits_kV, log_z_k, tokens_kJ, grad_kJ), tokens_kJ.shape[1]
    if normalize and targets is not None and count == 1 and _fits_registers(logits_kV):
        programs = min(len(logits_kV), _multiprocessors(logits_kV.device)[0])
        triton_softmax.softmax_held_rows[(programs,)](
            *tensors, len(logits_kV), 0, **_options(logits_kV, vocab, held=True)
        )
        return log_z_k
    triton_softmax.softmax_rows[(len(logits_kV),)](
        *tensors, J=count, BLOCK_J=next_power_of_2(count), NORMALIZE=normalize,
        GRADIENT=targets is not None, **_options(logits_kV, vocab, held=False),
    )  # fmt: skip
    return log_z_k


def _fits_registers(logits_kV: Tensor) -> bool:
    """Whether holding a row in registers is possible and faster."""
    columns, device = logits_kV.shape[1], logits_kV.device
    fits = columns in HELD_COLUMNS and columns % 2 == 0 and logits_kV.dtype == torch.bfloat16
    return fits and _multiprocessors(device)[1] >= HELD_SHARED_BYTES


def _options(logits_kV: Tensor, vocab: int, *, held: bool) -> dict[str, int]:
    """Compile-time options of both kernels: full blocks [depth, lanes] of data tokens, and a tail.

    Each lane covers 16 adjacent bytes.
    """
    columns, wide = logits_kV.shape[1], 16 // logits_kV.element_size()
    lanes = min(THREADS * wide, max(wide, next_power_of_2(columns)))
    depth = HELD_DEPTH if held else DEPTH
    full = vocab // (depth * lanes)
    tail = -(-(columns - full * depth * lanes) // lanes)
    return {
        "VOCAB": vocab, "COLUMNS": columns, "LANES": lanes, "WIDE": wide, "DEPTH": depth,
        "FULL": full, "TAIL": next_power_of_2(tail) if tail else 0,
        "STAGES": HELD_STAGES if held else STAGES, "num_warps": max(1, lanes // (32 * wide)),
        "maxnreg": HELD_REGISTERS if held else REGISTERS,
    }  # fmt: skip


@cache
def _multiprocessors(device: torch.device) -> tuple[int, int]:
    """The number of multiprocessors and the shared memory of each; placeholders on a CPU."""
    if device.type != "cuda":
        return 3, HELD_SHARED_BYTES
    gpu = torch.cuda.get_device_properties(device)
    return gpu.multi_processor_count, gpu.shared_memory_per_multiprocessor


class GradientSums:
    """Accumulates the head's gradients from those of its logits, chunk by chunk.

    `total` holds d_weight and d_bias side by side, summed in at least float32. Rows after the data
    tokens stay 0.
    """

    def __init__(
        self, hidden_KD: Tensor, weight: Tensor, bias: Tensor | None, head_weight: Tensor
    ) -> None:
        self.d_hidden_KD = torch.empty_like(hidden_KD)
        self._head_weight, self._ones = head_weight, 0 if bias is None else ONES
        rows, width = max(len(weight), len(head_weight)), weight.shape[1] + self._ones
        dtype = sum_dtype(weight)
        self.total = torch.zeros(rows, width, dtype=dtype, device=weight.device)
        self._done = 0

    def add(self, d_logits_kV: Tensor, hidden_kD: Tensor) -> None:
        """Add the contribution of the next chunk of rows."""
        first, self._done = self._done, self._done + len(hidden_kD)
        torch.mm(d_logits_kV, self._head_weight, out=self.d_hidden_KD[first : self._done])
        hidden_kE = F.pad(hidden_kD, (0, self._ones), value=1.0) if self._ones else hidden_kD
        add_product(self.total[: d_logits_kV.shape[1]], d_logits_kV.T, hidden_kE)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, accumulated by the product itself if possible, to save a pass over memory."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif _accumulates_in_product(total.device, total.dtype, a.dtype):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


@cache
def _accumulates_in_product(device: torch.device, total: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a product in `dtype` can accumulate into another dtype; tested once by running it.

    Only CUDA supports it, and torch before 2.10 rejects this overload at run time.
    """
    sum_88 = torch.ones(8, 8, dtype=total, device=device)
    a_88 = torch.ones(8, 8, dtype=dtype, device=device)
    try:
        torch.addmm(sum_88, a_88.T, a_88, out_dtype=total, out=sum_88)
    except (TypeError, RuntimeError):
        return False
    return bool((sum_88 == 9).all())
