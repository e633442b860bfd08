"""Triton launches on the current GPU, which need not be the one where the tensors lie."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
Launch = Callable[Concatenate[Tensor, P], T]


def on_its_gpu(launch: Launch[P, T]) -> Launch[P, T]:
    """Let the GPU of a function's first argument be the current one while it runs."""

    @wraps(launch)
    def launched(first: Tensor, /, *rest: P.args, **named: P.kwargs) -> T:
        with torch.cuda.device_of(first):
            return launch(first, *rest, **named)

    return launched
