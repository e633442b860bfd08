"""Process groups: a command runs in a single process, or in several started by torchrun."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from cwdfm.device import find_device
from cwdfm.errors import InputError, RunError
from cwdfm.files import (
    check_output_file,
    check_writable,
    held,
    lock_file,
    remove_lock,
    write_errors,
)


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Join the process group if torchrun started this process; yields the process's device.

    "auto" and "cuda" mean the GPU of this process's local rank.
    """
    chosen = find_device(device)
    if chosen.type == "cuda" and chosen.index is not None:
        torch.cuda.set_device(chosen)  # makes it the default for tensors on "cuda"
    if "RANK" not in os.environ:
        yield chosen
        return
    gpu_by_rank = chosen.type == "cuda" and chosen.index is None
    check_environment(gpu_by_rank=gpu_by_rank)
    if gpu_by_rank:
        chosen = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(chosen)
    store, rank, size = fresh_store()
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield chosen
        # Wait for the others before the group is destroyed, and free the objects that use it:
        # threads that need the GIL while the interpreter shuts down would crash the process.
        dist.barrier()
        gc.collect()
    finally:
        dist.destroy_process_group()


def fresh_store() -> tuple[Store, int, int]:
    """Return a store private to this launch of the process group, the rank and the world size.

    When torchrun restarts a group on several machines, its store still holds the addresses of the
    old processes, and the new ones would wait for them. The restart count cannot tell launches
    apart because it differs between machines. Rank 0 therefore chooses a random key prefix; every
    other rank requests it under a random key of its own, which no old process could have answered.
    """
    store, rank, size = next(rendezvous("env://"))
    if rank:
        question = uuid4().hex
        store.set(f"question/{rank}", question)
        prefix = store.get(f"answer/{question}").decode()  # blocks until rank 0 answers
        store.set(f"{prefix}/{rank}", "")
        return PrefixStore(prefix, store), rank, size
    prefix, deadline = uuid4().hex, time.monotonic() + store.timeout.total_seconds()
    for other in range(1, size):
        while not store.check([f"{prefix}/{other}"]):
            if store.check([f"question/{other}"]):
                store.set(f"answer/{store.get(f'question/{other}').decode()}", prefix)
            if time.monotonic() > deadline:
                raise RunError(f"process {other} of {size} did not join the group")
            time.sleep(0.02)
    return PrefixStore(prefix, store), rank, size


def check_environment(*, gpu_by_rank: bool) -> None:
    """Reject an environment where only RANK is set, by some job scheduler and not by torchrun."""
    numeric = ("RANK", "WORLD_SIZE", "MASTER_PORT", *(("LOCAL_RANK",) if gpu_by_rank else ()))
    invalid = [name for name in numeric if not os.environ.get(name, "").isdecimal()]
    if invalid or not os.environ.get("MASTER_ADDR"):
        raise InputError(
            f"RANK is set, as in a process started by torchrun, but "
            f"{', '.join(invalid or ['MASTER_ADDR'])} is missing or not a number; start the "
            f"command with torchrun, or unset RANK"
        )


def rank() -> int:
    """The rank of this process in its group; 0 without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of processes in the group; 1 without a group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Wait until all processes of the group have reached this call."""
    if dist.is_initialized():
        dist.barrier()


def broadcast(value: Any) -> Any:
    """Return rank 0's value on every process."""
    if not dist.is_initialized():
        return value
    objects = [value]
    dist.broadcast_object_list(objects)
    return objects[0]


def gather(value: Any) -> list[Any]:
    """The values of all processes, ordered by rank."""
    values = [value] * world_size()
    if dist.is_initialized():
        dist.all_gather_object(values, value)
    return values


def all_reduce_mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over all processes."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value / world_size()


@contextmanager
def exclusive(file: Path, conflict: str) -> Iterator[None]:
    """Hold a lock file in an existing folder on behalf of the whole process group.

    `conflict` begins the error message that is raised if another run holds the lock.
    """
    with held(file) if rank() == 0 else nullcontext(True) as acquired:
        if not broadcast(acquired):
            raise InputError(f"{conflict}; wait until it ends, or choose a different output path")
        yield


@contextmanager
def output(path: Path, check: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of an output path until it is written; create missing parent folders.

    `check` is called with the lock held, because another run may have just written the path.
    """
    check_writable(path)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(lock_file(path), f"another run is writing {path}"):
        try:
            check()
            yield
        finally:
            if rank() == 0:
                remove_lock(path)


def output_file(path: Path, *, force: bool) -> AbstractContextManager[None]:
    """Hold the lock of an output file, which must not exist unless `force` is set."""
    return output(path, lambda: check_output_file(path, force=force))
