"""A trunk's beginning, recorded once and replayed: what a sampler asks for again and again.

To launch the hundreds of kernels of a transformer takes the host about as long as a GPU takes for
them. A CUDA graph is launched as one. Recorded with it are the weights as products read them:
autocast would cast them anew in every call.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.ops import mode

AFTER = 3  # calls of a shape before it is recorded: one that comes but once is not worth it
MOST = 32  # shapes; each keeps its graph and its output


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    x_t: Tensor
    t: Tensor
    answer: Any


class Recorded:
    """A function of x_t, t and a model's weights; what it returns is good until the next call.

    On a CPU or with gradients it is the function itself. Recordings are of the weights at that
    time: when others are in their place they are made anew. For one stream at a time.
    """

    def __init__(self, model: nn.Module, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.model, self.function = model, function
        self._forget(())

    def __call__(self, x_t: Tensor, t: Tensor) -> Any:
        """The function's answer."""
        if not x_t.is_cuda or torch.is_grad_enabled():
            return self.function(x_t, t)
        weights = tuple((p.data_ptr(), _version(p), p.dtype) for p in self.model.parameters())
        if weights != self.weights:
            self._forget(weights)
        key = (x_t.shape, x_t.device, t.dtype, _cast_dtype(), self.model.training, mode())
        self.seen[key] += 1
        if key not in self.recordings:
            if self.seen[key] <= AFTER or len(self.recordings) >= MOST:
                return self.function(x_t, t)
            try:
                self.recordings[key] = self._record(x_t, t)
            except torch.OutOfMemoryError:  # it can do without
                self.seen[key] = -(2**62)
                return self.function(x_t, t)
        found = self.recordings[key]
        found.x_t.copy_(x_t)
        found.t.copy_(t)
        found.graph.replay()
        return found.answer

    def _forget(self, weights: tuple[Any, ...]) -> None:
        """Begin anew, with other weights."""
        self.weights = weights
        self.seen: Counter[Any] = Counter()
        self.recordings: dict[Any, _Recording] = {}
        self.casts: dict[torch.dtype, list[Tensor]] = {}  # that the graphs read
        self.pool: Any = None  # memory that they share: no two run at a time

    def _record(self, x_t: Tensor, t: Tensor) -> _Recording:
        device, dtype = x_t.device, _cast_dtype()
        with torch.inference_mode(False):  # whoever calls next may be outside of it
            x_t, t = x_t.clone(), t.clone()
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        # A cast that autocast keeps would be recorded and then dropped: it is not to keep any.
        halved = torch.autocast(
            "cuda", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False
        )
        aside = _aside(device)
        with torch.cuda.device(device), halved, self._cast(dtype):
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(2):  # whatever is compiled or chosen on a first call
                    self.function(x_t, t)
            torch.cuda.current_stream().wait_stream(aside)
            with torch.cuda.graph(
                graph, pool=self.pool, stream=aside, capture_error_mode="thread_local"
            ):
                answer = self.function(x_t, t)
        return _Recording(graph, x_t, t, answer)

    @contextmanager
    def _cast(self, dtype: torch.dtype | None) -> Iterator[None]:
        """For a while, the trunk's linear layers with weights in the dtype that products read."""
        if dtype is None:
            yield
            return
        head = getattr(self.model, "readout", None)
        layers = [x for x in self.model.modules() if isinstance(x, nn.Linear) and x is not head]
        parameters = [p for layer in layers for p in layer.parameters()]
        kept = [p.data for p in parameters]
        if dtype not in self.casts:
            self.casts[dtype] = [x.to(dtype) for x in kept]
        try:
            for p, x in zip(parameters, self.casts[dtype], strict=True):
                p.data = x
            yield
        finally:
            for p, x in zip(parameters, kept, strict=True):
                p.data = x


def _version(p: Tensor) -> int:
    return 0 if p.is_inference() else p._version


def _cast_dtype() -> torch.dtype | None:
    """What autocast makes of products' operands; None where it is off."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


_ASIDE: dict[torch.device, torch.cuda.Stream] = {}


def _aside(device: torch.device) -> torch.cuda.Stream:
    """A stream for recordings: one for all, since each keeps workspaces of its own."""
    if device not in _ASIDE:
        _ASIDE[device] = torch.cuda.Stream(device)
    return _ASIDE[device]
