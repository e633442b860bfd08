"""Selects the implementation: Triton kernels, numba loops or plain PyTorch.

The environment variable CWDFM_FUSED controls where Triton kernels are used:

- "auto" (default): wherever they are faster;
- "on": wherever they can run, including Triton's interpreter on a CPU;
- "off": nowhere.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from numba import njit
from torch import Tensor

from cwdfm.ops.precision import HALF, product_dtype

MODE = os.environ.get("CWDFM_FUSED", "auto")
TRITON = find_spec("triton") is not None
DTYPES = (*HALF, torch.float32)  # dtypes that the kernels support
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Limits of short attention, where one program holds an entire head of a sequence.
MAX_SHORT_LENGTH, MAX_HEAD_WIDTH = 64, 128
MAX_NORM_WIDTH = 2048  # limit of the adaptive norm, where one program holds a row in registers
SHARED_BYTES = 164 * 2**10  # shared memory per multiprocessor that the largest tile needs


def fused_device(device: torch.device) -> bool:
    """Whether Triton generates uniforms and runs Algorithm 1, in one launch instead of many."""
    return _enabled(device) and _triton_runs(device)


def fused_elementwise(x: Tensor) -> bool:
    """Whether Triton runs elementwise and row-wise operations on x, in one pass over it."""
    return x.dtype in DTYPES and fused_device(x.device)


def fused_head(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton fuses the head's matrix product in `dtype` with the draw or the loss.

    Without tensor cores cuBLAS is faster than Triton, so "auto" requires half precision.
    """
    enabled = MODE == "on" or (MODE == "auto" and dtype in HALF)
    return enabled and dtype in DTYPES and _triton_runs(device)


# The functions below are traceable by torch.compile.


def fused_rotary(x: Tensor) -> bool:
    """Whether Triton rotates queries and keys such as x."""
    supported = (x.is_cuda and torch.version.cuda is not None) or (x.is_cpu and INTERPRETED)
    return _enabled(x.device) and TRITON and supported and x.dtype in DTYPES


def fused_norm(h: Tensor) -> bool:
    """Whether Triton fuses the residual addition and the adaptive norm of h."""
    return fused_rotary(h) and h.shape[-1] <= MAX_NORM_WIDTH


def fused_short_attention(qkv_BN3Hd: Tensor) -> bool:
    """Whether Triton computes attention over short sequences, in half precision.

    Triton's interpreter treats bfloat16 as integers in products, so on a CPU only float16 works.
    """
    length, _, _, width = qkv_BN3Hd.shape[1:]
    fits = length <= MAX_SHORT_LENGTH and width <= MAX_HEAD_WIDTH and width % 16 == 0
    half = qkv_BN3Hd.dtype in (HALF if qkv_BN3Hd.is_cuda else (torch.float16,))
    return fits and half and _enabled(qkv_BN3Hd.device) and _runs_traced(qkv_BN3Hd.device)


def fused_gelu(x: Tensor) -> bool:
    """Whether cuBLAS applies bias and GELU in the epilogue of a linear layer of x.

    The epilogue is not differentiable. It uses the tanh approximation on a GPU only; on a CPU the
    same operator computes the exact GELU.
    """
    half = product_dtype(x) in HALF
    return x.is_cuda and half and not torch.is_grad_enabled() and MODE != "off"


def onednn_gelu(x: Tensor) -> bool:
    """Whether oneDNN applies bias and GELU to the products of a linear layer of x on a CPU.

    PyTorch's own GELU takes as long as the product. Compiled code already fuses it.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or MODE == "off":
        return False
    return x.is_cpu and product_dtype(x) == torch.float32 and _has_onednn_linear()


@contextmanager
def plain() -> Iterator[None]:
    """Disable the Triton kernels within the context, for comparisons."""
    global MODE
    previous, MODE = MODE, "off"
    try:
        yield
    finally:
        MODE = previous


def numba_jit(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a loop over numpy arrays."""
    loop: Callable[..., None] = njit(cache=True, nogil=True)(function)
    return loop


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= n, which Triton requires for the sizes of blocks."""
    return 1 << (n - 1).bit_length()


def _enabled(device: torch.device) -> bool:
    return MODE == "on" or (MODE == "auto" and device.type == "cuda")


@cache
def _triton_runs(device: torch.device) -> bool:
    """Whether a device can run the kernels: an A100 or later GPU, or the interpreter."""
    if not TRITON:
        return False
    if device.type == "cuda" and torch.version.cuda is not None:
        shared: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
        return shared >= SHARED_BYTES
    return device.type == "cpu" and INTERPRETED


@cache
def _has_onednn_linear() -> bool:
    """Whether PyTorch was built with oneDNN and has its operator for linear layers."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _runs_traced(device: torch.device) -> bool:
    """`_triton_runs`, which torch.compile cannot trace and therefore treats as a constant."""
    return _triton_runs(device)


# Equivalent to torch.compiler.assume_constant_result, without importing the compiler, which takes
# as long as importing torch.
_runs_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
