"""A worker of `experiments run` that knows an experiment of toy jobs, for tests."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.catalog import EXPERIMENTS
from experiments.cli.worker import main
from experiments.experiment import Experiment, Plan
from experiments.job import Job, Resources, Store

NAME = "toys"
MORTAL = __name__ == "__main__"  # a worker, and not who reads this module


@dataclass(frozen=True)
class Toy(Job):
    """Writes a line each time it is done; the first attempt at a deadly one kills a worker."""

    number: int
    deadly: bool = False

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        if MORTAL and self.deadly and not (place / "tried").exists():
            (place / "tried").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        with (store.folder / "done.txt").open("a") as log:
            log.write(f"{self.number} {os.getpid()}\n")
        return {"square": self.number**2}


def toys() -> Experiment:
    plan = Plan(tuple(Toy(number, deadly=number == 8) for number in range(9)), lambda _: [])
    return Experiment(NAME, "toys", lambda _: plan)


if __name__ == "__main__":
    EXPERIMENTS[NAME] = toys()
    main()
