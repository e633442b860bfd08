"""What tests on a GPU share."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.kernels import interpreted

COMPILED = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # performance hints of the compiler
    pytest.mark.skipif(find_spec("triton") is None, reason="no Triton"),
]

# Kernels run in Triton's interpreter on a CPU, and compiled on a GPU.
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=COMPILED)]


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Calls that wait for the device raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is a prototype: said once a process
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
