"""`python -m experiments chaos --minutes M`: inject faults at random and count what breaks."""

import math
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.cli.options import parse
from cwdfm.errors import RunError, check_positive
from cwdfm.files import write_json
from cwdfm.provenance import provenance
from experiments.chaos.forked import warm_up
from experiments.chaos.jobs import JOBS
from experiments.chaos.scenarios import SCENARIOS
from experiments.cli import PROGRAM

# Scenarios per round, roughly in proportion to the counts of a full run.
ROUND = {
    "commands": 10,
    "kills": 1,
    "full disks": 1,
    "read-only folders": 1,
    "races": 2,
    "app": 1,
    "damaged files": 2,
}


@dataclass(frozen=True)
class Options:
    """Run random commands, kill them, fill their disk, race them and damage their files.

    Tracebacks, hangs, lost files and silently different results are defects. They are printed, and
    the exit code is 1. The same seed gives the same scenarios, but not the same timing of kills and
    races.
    """

    minutes: float = 5.0  # how long to run
    rounds: int | None = None  # or stop after this many rounds, of 10 commands and 1 kill each
    seed: int = 0  # seed of the scenarios
    out: Path | None = None  # write the counts and defects to this .json file


def main(arguments: list[str]) -> None:
    options = parse("chaos", arguments, lambda _: Options(), PROGRAM)
    check_positive("minutes", options.minutes)
    start = time.monotonic()
    end = start + 60 * options.minutes
    most = math.inf if options.rounds is None else options.rounds * sum(ROUND.values())
    # No training run here: its threads would not survive the forks.
    warm_up(JOBS[name].words(0) for name in ("sample", "perplexity", "analyze"))
    record = run(options.seed, lambda done: done < most and time.monotonic() < end)
    for name, counts in record["counts"].items():
        number, defects = sum(counts.values()), record["defects"].get(name, [])
        print(f"{name:18} {number:6,} run, {len(defects)} defects")
    if options.out is not None:
        about = {"config": {"seed": options.seed}, "duration": time.monotonic() - start}
        write_json(options.out, provenance() | about | record)
    if record["defects"]:
        shown = "\n".join(text for found in record["defects"].values() for text in found)
        raise RunError(f"defects were found:\n{shown}")


def run(seed: int, more: Callable[[int], bool]) -> dict[str, Any]:
    """Run rounds of scenarios while more(number of scenarios) holds.

    Returns the number of scenarios and their duration by the disturbed command, and the defects.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in ROUND}
    seconds = dict.fromkeys(ROUND, 0.0)
    defects: dict[str, list[str]] = {}
    names = [name for name, times in ROUND.items() for _ in range(times)]
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        os.environ |= {"CWDFM_CACHE": f"{root}/cache", "HF_HUB_OFFLINE": "1"}
        while more(total := sum(each.total() for each in counts.values())):
            name = names[total % len(names)]
            scenario, targets = SCENARIOS[name]
            target = targets[counts[name].total() % len(targets)]
            folder = Path(root, str(total), "at")
            folder.mkdir(parents=True)
            start = time.monotonic()
            if problem := scenario(random.Random(f"{seed}/{total}"), folder, target):
                defects.setdefault(name, []).append(f"{name} {seed}/{total}: {problem}")
            counts[name][target] += 1
            seconds[name] += time.monotonic() - start
            shutil.rmtree(folder.parent)
    found = {name: dict(each) for name, each in counts.items()}
    return {"counts": found, "defects": defects, "seconds": seconds}
