"""Training runs in a group of processes."""

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cwdfm.distributed import barrier, process_group, rank
from cwdfm.train.execution import Parallel
from cwdfm.train.loop import fit
from tests.support.train_script import Send, make_run, recipe, train

PARALLEL: tuple[Parallel, ...] = ("ddp", "fsdp")
STEPS = 20


def settings(parallel: Parallel) -> dict[str, object]:
    return {"dropout": 0.0, "accumulation": 2, "parallel": parallel, "steps": STEPS}


def without_the_end(run: Path, to: Path) -> None:
    """A copy of a finished run without the last checkpoint."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns(f"step-{STEPS:08d}"))


class Collectives(TorchDispatchMode):
    """Bytes of float32 tensors that each collective operation of this process works on.

    Of a gather and of a reduce-scatter, these are the bytes of the whole tensor.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            sizes = [x.nbytes for x in tensors if x.dtype == torch.float32]
            self.bytes[func.overloadpacket.__name__] += max(sizes, default=0)
        return func(*args, **(kwargs or {}))


def count(out: Path, parallel: Parallel) -> None:
    """Write the bytes of the collectives of one training step."""
    run = make_run(out / "counted", recipe(**settings(parallel)))
    run.train_step()  # DDP forms its buckets anew after its first step
    with Collectives() as seen:
        run.train_step()
    if rank() == 0:
        (out / f"{parallel}-bytes.json").write_text(json.dumps(seen.bytes))


def stop(out: Path) -> None:
    """A signal to the first process; each writes what stopped it and where, and dropout's seed."""
    run = make_run(out / "stopped", recipe())
    stopped = fit(run, [Send(signal.SIGTERM, 5)] if rank() == 0 else [])
    (out / f"stopped-{rank()}").write_text(f"{stopped} at {run.step}")
    (out / f"seed-{rank()}").write_text(str(torch.initial_seed()))


def train_together(out: Path) -> None:
    """All runs, in each process of the group."""
    with process_group("cpu"):
        for parallel in PARALLEL:
            count(out, parallel)
            train(out / parallel, **settings(parallel))
            if rank() == 0:
                without_the_end(out / parallel, out / f"{parallel}-again")
            barrier()
            train(out / f"{parallel}-again", **settings(parallel))
        stop(out)
