"""Fast paths around the linear head, which never hold the logits of all coordinates; Algorithm 1.

`head_draw` samples, `head_log_prob` trains, `reveal` is Algorithm 1's loop; `triton_head` and
`triton_reveal` hold their Triton kernels and are only imported where they run. Whether they run is
decided here. CWDFM_FUSED=off leaves Triton alone, CWDFM_FUSED=on uses it wherever it can run at
all, its interpreter on a CPU included; the default, "auto", uses it where it is faster.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

MODE = os.environ.get("CWDFM_FUSED", "auto")
HALF = (torch.bfloat16, torch.float16)
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
    wanted = MODE == "on" or (MODE == "auto" and device.type == "cuda")
    return wanted and _triton_runs(device)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear map of x works here: autocast's where it is on, else x's own."""
    kind = x.device.type
    cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if cast else x.dtype


def _runs(device: torch.device, dtype: torch.dtype) -> bool:
    return dtype in (*HALF, torch.float32) and _triton_runs(device)


@cache
def _triton_runs(device: torch.device) -> bool:
    """Whether the kernels can run on a device: a GPU like the A100 or later, or the interpreter."""
    if find_spec("triton") is None:
        return False
    if device.type == "cuda" and torch.version.cuda is not None:
        shared: int = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
        return shared >= SHARED_BYTES
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
