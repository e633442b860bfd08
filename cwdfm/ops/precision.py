"""Dtypes of matrix products and sums, and cached casts of weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products with x: autocast's if it is enabled, else that of x."""
    device = x.device.type
    cast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if cast else x.dtype


def sum_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums over many elements of x: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def weight_version(weight: Tensor) -> int:
    """A counter of in-place changes; always 0 for tensors created in inference mode."""
    return 0 if weight.is_inference() else weight._version


class _Cast(NamedTuple):
    weight: Tensor  # keeps the weight alive, so that its id is not reused
    state: tuple[int, int]  # data pointer and version
    cast: Tensor


class CastCache:
    """Casts of weights, reused while sampling from a model.

    The version counter of a weight misses changes made through `weight.data`, for example by weight
    averaging. Such changes are likely between two runs of a sampler, but not within one, so casts
    are kept only within `enabled`.
    """

    def __init__(self) -> None:
        self._casts: dict[tuple[int, torch.dtype], _Cast] | None = None

    def get(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, contiguous and detached."""
        if self._casts is None or weight.dtype == dtype:
            return weight.detach().to(dtype).contiguous()
        key = (id(weight), dtype)
        state = (weight.data_ptr(), weight_version(weight))
        entry = self._casts.get(key)
        if entry is None or entry.state != state:
            entry = _Cast(weight, state, weight.detach().to(dtype).contiguous())
            self._casts[key] = entry
        return entry.cast

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Keep the casts made within this context until it ends."""
        previous, self._casts = self._casts, {} if self._casts is None else self._casts
        try:
            yield
        finally:
            self._casts = previous


CASTS = CastCache()  # enabled by `cwdfm.model.predict.evaluating`
