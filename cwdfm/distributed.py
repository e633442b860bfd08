"""Processes that work together: started by torchrun, or one alone."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from cwdfm.device import find_device
from cwdfm.errors import InputError


@contextmanager
def joined(device: str) -> Iterator[torch.device]:
    """The device of this process; under torchrun, in a group with the others for a while.

    "auto" is a GPU where there is one, and under torchrun the one of this process's number.
    """
    chosen = find_device(device)
    if chosen.type == "cuda" and chosen.index is not None:
        torch.cuda.set_device(chosen)  # what names no device means this one
    if "RANK" not in os.environ:
        yield chosen
        return
    check_started(own_gpu=chosen.type == "cuda" and chosen.index is None)
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield chosen
        # Nobody takes the group apart while another still uses it, and what hangs on it goes first:
        # threads that want Python's lock at its end are killed, and take the process with them.
        dist.barrier()
        gc.collect()
    finally:
        dist.destroy_process_group()


def check_started(*, own_gpu: bool) -> None:
    """Refuse a part of what torchrun sets, as other schedulers leave it behind."""
    numbers = ("RANK", "WORLD_SIZE", "MASTER_PORT", *(("LOCAL_RANK",) if own_gpu else ()))
    wrong = [name for name in numbers if not os.environ.get(name, "").isdecimal()]
    if wrong or not os.environ.get("MASTER_ADDR"):
        lacks = ", ".join(wrong or ["MASTER_ADDR"])
        raise InputError(
            f"RANK is set, by which torchrun tells a process its number, and {lacks} of what it "
            f"sets too is not there or no number; start with torchrun, or unset RANK"
        )


def rank() -> int:
    """This process's number in its group, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Wait until all processes are here."""
    if dist.is_initialized():
        dist.barrier()


def from_first(value: Any) -> Any:
    """The first process's value, on all of them."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def mean_over_all(value: torch.Tensor) -> torch.Tensor:
    """The mean over processes of a tensor that each of them has."""
    if dist.is_initialized():
        dist.all_reduce(value)
    return value / world()
