"""`python -m experiments chaos --minutes M`: inject faults at random and count what breaks."""

import os
import random
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
from experiments.chaos.scenarios import SCENARIOS

# Scenarios per round, about in proportion to the figures that a full run should reach.
ROUND = {"commands": 10, "kills": 1, "full disks": 1, "races": 2, "damaged models": 2}


@dataclass(frozen=True)
class Options:
    """Run random commands, kill them, fill their disk, race them and damage their files.

    Tracebacks, hangs, lost files and silently different results are defects: they are printed, and
    the exit code is 1. A seed repeats the same scenarios, though not the timing of kills and races.
    """

    minutes: float  # how long to run
    seed: int = 0  # seed of the scenarios
    out: Path | None = None  # write the counts and defects to this .json file


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = parse("chaos", arguments, lambda missing: Options(missing))
    check_positive("minutes", options.minutes)
    end = time.monotonic() + 60 * options.minutes
    record = run(options.seed, lambda _: time.monotonic() < end)
    for name, count in record["counts"].items():
        print(f"{name:15} {count:6,} run, {len(record['defects'].get(name, []))} defects")
    if options.out is not None:
        write_json(options.out, provenance() | {"config": {"seed": options.seed}} | record)
    if record["defects"]:
        shown = "\n".join(text for found in record["defects"].values() for text in found)
        raise RunError(f"defects were found:\n{shown}")


def run(seed: int, more: Callable[[int], bool]) -> dict[str, Any]:
    """Run rounds of scenarios while more(number of scenarios) holds; counts and defects by kind."""
    counts: Counter[str] = Counter()
    defects: dict[str, list[str]] = {}
    names = [name for name, times in ROUND.items() for _ in range(times)]
    with tempfile.TemporaryDirectory() as root:
        os.environ |= {"CWDFM_CACHE": f"{root}/cache", "HF_HUB_OFFLINE": "1"}
        while more(total := counts.total()):
            name = names[total % len(names)]
            folder = Path(root, str(total), "at")
            folder.mkdir(parents=True)
            if problem := SCENARIOS[name](random.Random(f"{seed}/{total}"), folder):
                defects.setdefault(name, []).append(f"{name} {seed}/{total}: {problem}")
            counts[name] += 1
    return {"counts": dict(counts), "defects": defects}
