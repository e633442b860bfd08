"""Time to import the package and to start commands.

    python -m experiments.studies.startup --out startup.json

Each line runs in a fresh process, several times; the fastest counts. Targets: `import cwdfm` takes
less than 2 s and `cwdfm --help` less than 0.5 s of CPU time, which other processes hardly affect.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from cwdfm.files import write_json
from cwdfm.provenance import provenance

REPEATS = 3
LINES = {
    "import cwdfm": ["-c", "import cwdfm"],
    "cwdfm --help": ["-m", "cwdfm", "--help"],
    "import torch": ["-c", "import torch"],
    "cwdfm.Euler()": ["-c", "import cwdfm; cwdfm.Euler()"],
}
TARGETS = {"import cwdfm": 2.0, "cwdfm --help": 0.5}


def seconds(arguments: list[str]) -> tuple[float, float]:
    """CPU and wall-clock time of one process."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure start-up times.")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = {}
    for name, arguments in LINES.items():
        cpu, wall = zip(*(seconds(arguments) for _ in range(REPEATS)), strict=True)
        rows[name] = {"cpu": min(cpu), "wall": min(wall)}
        print(f"{name:20} {min(cpu):6.2f} s CPU {min(wall):6.2f} s")
    claims = {f"{name} < {most} s": rows[name]["cpu"] < most for name, most in TARGETS.items()}
    write_json(
        out, provenance() | {"config": {"repeats": REPEATS}, "seconds": rows, "claims": claims}
    )
    sys.exit(not all(claims.values()))


if __name__ == "__main__":
    main()
