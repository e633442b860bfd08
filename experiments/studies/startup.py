"""Measure the time to import the package, to start commands, and to run the demo.

    python -m experiments.studies.startup --out startup.json

Each line runs several times in a fresh process, and the fastest run counts. The demo runs once.
Targets: `import cwdfm` takes less than 2 s and `cwdfm --help` less than 0.5 s of CPU time, which
other processes hardly affect, and the demo less than 2 minutes.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.studies.command import save, study_parser

REPEATS = 3
LINES = {
    "import cwdfm": ["-c", "import cwdfm"],
    "cwdfm --help": ["-m", "cwdfm", "--help"],
    "import torch": ["-c", "import torch"],
    "cwdfm.Euler()": ["-c", "import cwdfm; cwdfm.Euler()"],
}
DEMO = "cwdfm demo"
TARGETS = {"import cwdfm": ("cpu", 2.0), "cwdfm --help": ("cpu", 0.5), DEMO: ("wall", 120.0)}


def seconds(arguments: list[str]) -> tuple[float, float]:
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


def main() -> None:
    out = study_parser(__doc__).parse_args().out
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        demo = ["-m", "cwdfm", "demo", "--out", str(Path(folder, "demo"))]
        for name, arguments in {**LINES, DEMO: demo}.items():
            repeats = 1 if name == DEMO else REPEATS
            cpu, wall = zip(*(seconds(arguments) for _ in range(repeats)), strict=True)
            rows[name] = {"cpu": min(cpu), "wall": min(wall)}
            print(f"{name:20} {min(cpu):6.2f} s CPU {min(wall):6.2f} s", flush=True)
    claims = {
        f"{name}: {clock} < {limit} s": rows[name][clock] < limit
        for name, (clock, limit) in TARGETS.items()
    }
    config = {"repeats": REPEATS, "cores": os.cpu_count()}
    save(out, config=config, seconds=rows, claims=claims)
    sys.exit(not all(claims.values()))


if __name__ == "__main__":
    main()
