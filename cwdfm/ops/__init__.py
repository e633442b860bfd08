"""Fast paths: the linear head, without the logits of all coordinates; Algorithm 1; the trunk.

`head_draw` samples, `head_cross_entropy` and `head_log_prob` train, `reveal` is Algorithm 1's loop,
`rotary` tells the network where tokens stand, `short_attention` mixes those of short sequences,
`adaptive_norm` adds to the stream and normalises it, `gelu` is between two linear maps, `cast`
keeps weights as products read them; `triton_*` hold their Triton kernels and are only imported
where they run. Whether they run is decided here. CWDFM_FUSED=off leaves Triton alone,
CWDFM_FUSED=on uses it wherever it can run at all, its interpreter on a CPU included; the default,
"auto", uses it where it is faster.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

MODE = os.environ.get("CWDFM_FUSED", "auto")
TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HALF = (torch.bfloat16, torch.float16)
# Tokens and head width of which one program of the short attention can have everything at once.
LONGEST, WIDEST = 64, 128
WIDEST_ROW = 2048  # that a program of the adaptive norm can have in registers
SHARED_BYTES = 164 * 2**10  # what the largest tile needs of a multiprocessor's shared memory


def fused_head(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether to fuse products in `dtype` with what reads them.

    Without tensor cores cuBLAS is faster than Triton: "auto" wants half precision.
    """
    return _runs(device, dtype) and (MODE == "on" or (MODE == "auto" and dtype in HALF))


def fused_elementwise(x: Tensor) -> bool:
    """Whether Triton takes elementwise work on x, which then reads and writes x once."""
    return _runs(x.device, x.dtype) and (MODE == "on" or (MODE == "auto" and x.is_cuda))


def fused_reveal(device: torch.device) -> bool:
    """Whether Triton runs Algorithm 1's loop."""
    return _wanted(device) and _triton_runs(device)


def fused_random(device: torch.device) -> bool:
    """Whether Triton makes counted draws: in one launch, where tensor arithmetic takes eighty."""
    return _wanted(device) and _triton_runs(device)


def fused_rotary(x: Tensor) -> bool:
    """Whether Triton rotates queries and keys like x. Traced too."""
    return _takes(x)


def fused_norm(h: Tensor) -> bool:
    """Whether Triton adds to a stream like h and normalises it in one pass. Traced too."""
    return _takes(h) and h.shape[-1] <= WIDEST_ROW


def fused_short_attention(qkv_BN3Hd: Tensor) -> bool:
    """Whether Triton attends within sequences, which must be short, in half precision. Traced too.

    Its interpreter takes bfloat16 for integers in products: there float16 alone.
    """
    length, _, _, width = qkv_BN3Hd.shape[1:]
    fits = length <= LONGEST and width <= WIDEST and width % 16 == 0
    half = qkv_BN3Hd.dtype in (HALF if qkv_BN3Hd.is_cuda else (torch.float16,))
    return fits and half and _wanted(qkv_BN3Hd.device) and _runs_traced(qkv_BN3Hd.device)


def fused_gelu(x: Tensor) -> bool:
    """Whether a linear map of x takes its bias and gelu along, which leaves no way back.

    cuBLAS does, with tanh's approximation; on a CPU the same operator has another gelu. Traced too.
    """
    half = product_dtype(x) in HALF
    return x.is_cuda and half and not torch.is_grad_enabled() and MODE != "off"


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear map of x works here: autocast's where it is on, else x's own."""
    kind = x.device.type
    cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if cast else x.dtype


def sum_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums over many elements of x: half precision is too coarse, float32 will do."""
    return torch.promote_types(x.dtype, torch.float32)


def mode() -> str:
    """Which of "auto", "on" and "off" holds at the moment."""
    return MODE


@contextmanager
def plain() -> Iterator[None]:
    """Triton left alone for a while, to compare with."""
    global MODE
    kept, MODE = MODE, "off"
    try:
        yield
    finally:
        MODE = kept


def _wanted(device: torch.device) -> bool:
    return MODE == "on" or (MODE == "auto" and device.type == "cuda")


def _takes(x: Tensor) -> bool:
    """Whether Triton takes work on x.

    Asked inside compiled code as well: no more stands here than torch.compile can trace.
    """
    here = (x.is_cuda and torch.version.cuda is not None) or (x.is_cpu and INTERPRETED)
    return _wanted(x.device) and TRITON and here and x.dtype in (*HALF, torch.float32)


def _runs(device: torch.device, dtype: torch.dtype) -> bool:
    return dtype in (*HALF, torch.float32) and _triton_runs(device)


@cache
def _triton_runs(device: torch.device) -> bool:
    """Whether the kernels can run on a device: a GPU like the A100 or later, or the interpreter."""
    if not TRITON:
        return False
    if device.type == "cuda" and torch.version.cuda is not None:
        shared: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
        return shared >= SHARED_BYTES
    return device.type == "cpu" and INTERPRETED


def _runs_traced(device: torch.device) -> bool:
    """The same for compiled code, which cannot look into it."""
    return _triton_runs(device)


# What torch.compiler.assume_constant_result does, without importing the compiler, which takes as
# long as importing torch.
_runs_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
