"""The same small step many times over, on a GPU without launching each of its kernels each time."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

FEW = 16  # steps that are not worth a recording


def repeat(
    step: Callable[[Tensor], None], times: int, device: torch.device, *, known: bool
) -> None:
    """step(k) for k = 0, 1, ..., times - 1, k being an int64 tensor [1] on the device.

    A step changes tensors in place, as its last acts. On a GPU it is recorded as a CUDA graph and
    replayed, unless it waits for the device somewhere: then it is called. `known`: it does not.
    """
    k = torch.zeros(1, dtype=torch.int64, device=device)

    def call() -> None:
        step(k)
        k.add_(1)

    done = 0
    if device.type == "cuda" and times > FEW:
        with torch.cuda.device(device):
            done = _replay(call, times, known)
    for _ in range(done, times):
        call()


def _replay(call: Callable[[], None], times: int, known: bool) -> int:
    """How many calls were made: all of them, or those after which it was seen to wait."""
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        call()  # whatever is compiled or chosen on a first call
        done = 1
        if not known:
            done += _without_waiting(call)
    torch.cuda.current_stream().wait_stream(aside)
    if not known and done == 1:
        return done
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    for _ in range(done, times):
        graph.replay()
    return times


def _without_waiting(call: Callable[[], None]) -> bool:
    """Whether a call ends without waiting for the device; one that would wait is not finished."""
    before = torch.cuda.get_sync_debug_mode()
    _when_waiting("error")
    try:
        call()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return False
    finally:
        _when_waiting(before)
    return True


def _when_waiting(mode: int | str) -> None:
    """What becomes of calls that wait for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)
