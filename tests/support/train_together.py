"""Training runs in a group of processes: torchrun ... -m tests.support.train_together OUT.

All in one start, which takes longer than the training.
"""

import shutil
import signal
import sys
from pathlib import Path

import torch

from cwdfm.distributed import barrier, process_group, rank
from cwdfm.train.execution import Parallel
from cwdfm.train.loop import fit
from tests.support.train_script import Send, make_run, recipe, train

PARALLEL: tuple[Parallel, ...] = ("ddp", "fsdp")


def settings(parallel: Parallel) -> dict[str, object]:
    return {"dropout": 0.0, "accumulation": 2, "parallel": parallel}


def without_the_end(run: Path, to: Path) -> None:
    """A copy of a finished run without the last checkpoint."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("step-00000040"))


def stop(out: Path) -> None:
    """A signal to the first process; each writes what stopped it and where, and dropout's seed."""
    run = make_run(out / "stopped", recipe())
    stopped = fit(run, [Send(signal.SIGTERM, 5)] if rank() == 0 else [])
    (out / f"stopped-{rank()}").write_text(f"{stopped} at {run.step}")
    (out / f"seed-{rank()}").write_text(str(torch.initial_seed()))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    with process_group("cpu"):
        for parallel in PARALLEL:
            train(out / parallel, **settings(parallel))
            if rank() == 0:
                without_the_end(out / parallel, out / f"{parallel}-again")
            barrier()
            train(out / f"{parallel}-again", **settings(parallel))
        stop(out)
