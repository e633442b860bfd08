"""`cwdfm train` in which the last process of the group is killed once.

torchrun ... -m tests.support.train_elastic train RECIPE --out DIR ...
"""

import os
import signal

from torch import Tensor

from cwdfm.cli.main import main
from cwdfm.distributed import rank, world_size
from cwdfm.train.run import Run

KILLED_AT = 25  # the step that the killed process does not start
MARK = "killed"  # a file beside the output folder: torchrun's counts of restarts differ by machine


def train_step(run: Run) -> Tensor:
    mark = run.out.parent / MARK
    if run.step == KILLED_AT and rank() == world_size() - 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(run)


if __name__ == "__main__":
    plain = Run.train_step
    Run.train_step = train_step  # type: ignore[assignment,method-assign]
    main()
