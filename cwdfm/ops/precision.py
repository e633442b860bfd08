"""Dtypes of matrix products and sums, and cached casts of weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a linear layer of x: autocast's if it is enabled, else that of x."""
    device = x.device.type
    cast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if cast else x.dtype


def sum_dtype(x: Tensor) -> torch.dtype:
    """The dtype for sums over many elements of x: at least float32."""
    return torch.promote_types(x.dtype, torch.float32)


def weight_version(weight: Tensor) -> int:
    """A number that in-place changes increase; 0 for tensors made in inference mode."""
    return 0 if weight.is_inference() else weight._version


class _Cast(NamedTuple):
    weight: Tensor  # a reference, so that no other tensor can get its id
    state: tuple[int, int]  # data pointer and version
    cast: Tensor


class CastCache:
    """Casts of weights that are reused while a model is sampled from.

    The version counter of a weight misses changes made through `weight.data`, as weight averaging
    makes them. They are likely between two runs of a sampler, but not within one, so casts are
    only kept inside `enabled`.
    """

    def __init__(self) -> None:
        self._casts: dict[tuple[int, torch.dtype], _Cast] | None = None

    def get(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, contiguous and detached."""
        if self._casts is None or weight.dtype == dtype:
            return weight.detach().to(dtype).contiguous()
        key = (id(weight), dtype)
        state = (weight.data_ptr(), weight_version(weight))
        found = self._casts.get(key)
        if found is None or found.state != state:
            found = _Cast(weight, state, weight.detach().to(dtype).contiguous())
            self._casts[key] = found
        return found.cast

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Keep casts made inside this context until it ends."""
        previous, self._casts = self._casts, {} if self._casts is None else self._casts
        try:
            yield
        finally:
            self._casts = previous


CASTS = CastCache()  # enabled by `cwdfm.model.predict.evaluating`
