"""Weights in the dtype that products read, cast once for many steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class _Cast(NamedTuple):
    weight: Tensor  # kept, so that no other can have its id
    state: tuple[int, int]  # where its numbers were, and how often it had counted a change of them
    cast: Tensor


class Casts:
    """Casts of weights, which are kept while a model is sampled from, and no longer.

    A weight counts most changes of its numbers, not those made through `weight.data`, with which
    others average weights. Between two runs of a sampler that is likely, in a run it is not.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, torch.dtype], _Cast] | None = None

    def of(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, contiguous, without a way back for gradients."""
        if self._kept is None or weight.dtype == dtype:
            return weight.detach().to(dtype).contiguous()
        key = (id(weight), dtype)
        state = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        found = self._kept.get(key)
        if found is None or found.state != state:
            found = _Cast(weight, state, weight.detach().to(dtype).contiguous())
            self._kept[key] = found
        return found.cast

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Casts made inside are kept to its end."""
        before, self._kept = self._kept, {} if self._kept is None else self._kept
        try:
            yield
        finally:
            self._kept = before


CASTS = Casts()  # of whatever is sampled at the moment, kept by `evaluating`
