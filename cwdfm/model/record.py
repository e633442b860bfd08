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

from cwdfm.kernel import product_dtype

AFTER = 3  # calls of a shape before it is recorded: one that comes but once is not worth it
MOST = 32  # shapes; each keeps its graph and its output


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    x_t: Tensor
    t: Tensor
    answer: Any
    weights: list[Tensor]  # that the graph reads: kept for it alone


class Recorded:
    """A function of x_t, t and a model's weights; what it returns is good until the next call.

    On a CPU or with gradients it is the function itself.
    """

    def __init__(self, model: nn.Module, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.model, self.function = model, function
        self.seen: Counter[Any] = Counter()
        self.recordings: dict[Any, _Recording] = {}
        self.pool: Any = None  # memory that they share: no two run at a time

    def __call__(self, x_t: Tensor, t: Tensor) -> Any:
        """The function's answer."""
        if not x_t.is_cuda or torch.is_grad_enabled():
            return self.function(x_t, t)
        # Weights that change are recorded anew.
        version = sum(p._version for p in self.model.parameters() if not p.is_inference())
        key = (x_t.shape, t.dtype, product_dtype(t), self.model.training, version)
        self.seen[key] += 1
        if key not in self.recordings:
            if self.seen[key] <= AFTER or len(self.recordings) >= MOST:
                return self.function(x_t, t)
            self.recordings[key] = self._record(x_t, t)
        found = self.recordings[key]
        found.x_t.copy_(x_t)
        found.t.copy_(t)
        found.graph.replay()
        return found.answer

    def _record(self, x_t: Tensor, t: Tensor) -> _Recording:
        x_t, t = x_t.clone(), t.clone()
        graph, dtype, device = torch.cuda.CUDAGraph(), product_dtype(t), x_t.device
        # A cast that autocast keeps would be recorded and then dropped: it is not to keep any.
        halved = torch.autocast(
            "cuda", dtype, enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False
        )
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        with torch.cuda.device(device), halved, _cast(self.model, dtype) as weights:
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(2):  # whatever is compiled or chosen on a first call
                    self.function(x_t, t)
            torch.cuda.current_stream().wait_stream(aside)
            with torch.cuda.graph(graph, pool=self.pool):
                answer = self.function(x_t, t)
        return _Recording(graph, x_t, t, answer, weights)


@contextmanager
def _cast(model: nn.Module, dtype: torch.dtype) -> Iterator[list[Tensor]]:
    """For a while, the trunk's linear layers with weights in the dtype that products read."""
    head = getattr(model, "readout", None)
    layers = [x for x in model.modules() if isinstance(x, nn.Linear) and x is not head]
    parameters = [p for layer in layers for p in layer.parameters() if p.is_floating_point()]
    kept = [p.data for p in parameters]
    cast = [x.to(dtype) for x in kept]
    try:
        for p, x in zip(parameters, cast, strict=True):
            p.data = x
        yield cast
    finally:
        for p, x in zip(parameters, kept, strict=True):
            p.data = x
