"""CUDA graphs: capture kernels once and replay them.

Launching the many small kernels of a step takes the host about as long as running them takes the
GPU. A CUDA graph launches all of them at once.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cwdfm.ops import dispatch
from cwdfm.ops.precision import weight_version

MIN_LOOP = 16  # loops up to this length are not worth capturing
WARMUP_CALLS = 3  # the default; rare shapes are not worth a capture
MAX_GRAPHS = 32  # captured shapes; each keeps its graph and its output in memory


def replay_loop(
    step: Callable[[Tensor], None], times: int, device: torch.device, *, sync_free: bool
) -> None:
    """Run step(k) for k = 0, ..., times - 1, where k is an int64 tensor [1] on the device.

    A step may change tensors in place only in its last operations. On a GPU it is captured as a
    CUDA graph and replayed, unless it synchronizes with the device; in that case it is called
    `times` times. `sync_free` promises that it does not synchronize, which skips the test.
    """
    k = torch.zeros(1, dtype=torch.int64, device=device)

    def call() -> None:
        step(k)
        k.add_(1)

    done = 0
    if device.type == "cuda" and times > MIN_LOOP:
        with torch.cuda.device(device):
            done = _capture_and_replay(call, times, sync_free)
    for _ in range(done, times):
        call()


def _capture_and_replay(call: Callable[[], None], times: int, sync_free: bool) -> int:
    """Run the loop as a graph. Returns the number of calls made: 1 if the call synchronizes."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # warm-up: compilation and autotuning happen on a first call
        done = 1
        if not sync_free:
            done += _runs_without_sync(call)
    torch.cuda.current_stream().wait_stream(side)
    if not sync_free and done == 1:
        return done
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    for _ in range(done, times):
        graph.replay()
    return times


def _runs_without_sync(call: Callable[[], None]) -> bool:
    """Whether a call completes without synchronizing. A call that would synchronize is aborted."""
    previous = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return False
    finally:
        _set_sync_debug_mode(previous)
    return True


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    x_t: Tensor
    t: Tensor
    output: Any


class GraphedFunction:
    """A function of (x_t, t) and a model's weights, replayed as CUDA graphs, one per shape.

    The output is valid until the next call. On a CPU, or with gradients enabled, the function is
    called directly. Graphs use weights that are already cast to autocast's dtype, so that replays
    do not cast them again; when the weights change, all graphs are discarded. Use an instance on
    one stream at a time.

    `warmup_calls`: the number of calls with a shape before it is captured.
    """

    def __init__(
        self,
        model: nn.Module,
        function: Callable[[Tensor, Tensor], Any],
        warmup_calls: int = WARMUP_CALLS,
    ) -> None:
        self.model, self.function, self.warmup_calls = model, function, warmup_calls
        self._reset(())

    def __call__(self, x_t: Tensor, t: Tensor) -> Any:
        """function(x_t, t)."""
        if not x_t.is_cuda or torch.is_grad_enabled():
            return self.function(x_t, t)
        weights = tuple((p.data_ptr(), weight_version(p), p.dtype) for p in self.model.parameters())
        if weights != self.weights:
            self._reset(weights)
        state = (_autocast_dtype(), self.model.training, dispatch.MODE)
        key = (x_t.shape, t.shape, x_t.device, t.dtype, *state)
        self.calls[key] += 1
        if key not in self.graphs:
            if self.calls[key] <= self.warmup_calls or len(self.graphs) >= MAX_GRAPHS:
                return self.function(x_t, t)
            try:
                self.graphs[key] = self._capture(x_t, t)
            except torch.OutOfMemoryError:  # run this shape without a graph from now on
                self.calls[key] = -(2**62)
                return self.function(x_t, t)
        captured = self.graphs[key]
        captured.x_t.copy_(x_t)
        captured.t.copy_(t)
        captured.graph.replay()
        return captured.output

    def _reset(self, weights: tuple[Any, ...]) -> None:
        """Discard all graphs."""
        self.weights = weights
        self.calls: Counter[Any] = Counter()
        self.graphs: dict[Any, _Captured] = {}
        self.casts: dict[torch.dtype, list[Tensor]] = {}  # weights that the graphs read
        self.pool: Any = None  # memory shared by all graphs, which never run concurrently

    def _capture(self, x_t: Tensor, t: Tensor) -> _Captured:
        device, dtype = x_t.device, _autocast_dtype()
        with torch.inference_mode(False):  # later calls may be outside inference mode
            x_t, t = x_t.clone(), t.clone()
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        # A cast in autocast's cache would be captured and then freed, so the cache is disabled.
        autocast = torch.autocast(
            "cuda", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False
        )
        side = _capture_stream(device)
        with torch.cuda.device(device), autocast, self._cast_weights(dtype):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):  # warm-up: compilation and autotuning
                    self.function(x_t, t)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(
                graph, pool=self.pool, stream=side, capture_error_mode="thread_local"
            ):
                output = self.function(x_t, t)
        return _Captured(graph, x_t, t, output)

    @contextmanager
    def _cast_weights(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Temporarily replace the weights of all linear layers except the head by their casts."""
        if dtype is None:
            yield
            return
        head = getattr(self.model, "readout", None)
        layers = [x for x in self.model.modules() if isinstance(x, nn.Linear) and x is not head]
        parameters = [p for layer in layers for p in layer.parameters()]
        originals = [p.data for p in parameters]
        if dtype not in self.casts:
            self.casts[dtype] = [x.to(dtype) for x in originals]
        try:
            for p, x in zip(parameters, self.casts[dtype], strict=True):
                p.data = x
            yield
        finally:
            for p, x in zip(parameters, originals, strict=True):
                p.data = x


def _autocast_dtype() -> torch.dtype | None:
    """Autocast's dtype on CUDA; None if it is disabled."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The capture stream: one per device, because every stream keeps its own workspaces."""
    return torch.cuda.Stream(device)
