"""What limits a small model of QM9: one change at a time, at equal steps.

    python -m experiments.studies.qm9_limits run --work DIR     # on a GPU, all cells at once
    python -m experiments.studies.qm9_limits score --work DIR --out results/qm9_limits.json

`run` trains every cell of CELLS in a process of its own, all side by side, and draws 1,024 samples
of each with Euler and with Neighbor weights at 128 steps; when time is up, trainings save and stop
where they are, and the row says at which step. `score` counts molecules, and needs RDKit
where `run` does not. results/qm9_limits.tgz holds what a `run` left in DIR.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cwdfm import data
from cwdfm.files import write_json
from cwdfm.metrics.molecule import CanonicalSet, score_molecules
from cwdfm.provenance import provenance
from cwdfm.sample_file import read_samples

BASE = ["--ema", "0.998", "--warmup", "300", "--no-compile", "--dropout", "0"]
BASE += ["--previews", "0", "--validate-every", "500", "--log-every", "100"]
MASK = ["--source", "mask", "--masked-only", "--learned-positions", "--fix-first"]
CELLS: dict[str, list[str]] = {
    "uniform": [],
    "uniform, learning rate 3e-4": ["--learning-rate", "3e-4"],
    "uniform, learning rate 3e-3": ["--learning-rate", "3e-3"],
    "uniform, no averaging": ["--ema", "0"],
    "uniform, dropout 0.1": ["--dropout", "0.1"],
    "uniform, 17M": ["--model", "17m", "--learning-rate", "7e-4"],
    "mask, positions known": MASK,
    "mask, rotary alone": ["--source", "mask", "--masked-only"],
    "mask, loss on all tokens": [flag for flag in MASK if flag != "--masked-only"],
}
SOLVERS = ("euler", "neighbor")


def cwdfm(*arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "cwdfm.cli.main", *arguments]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def stop(processes: "list[subprocess.Popen[bytes]]", seconds: float) -> None:
    """Let trainings end, or have them save and stop when their time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(1)
    for process in processes:
        process.terminate()
    finish(processes, 128 + signal.SIGTERM)


def finish(processes: "list[subprocess.Popen[bytes]]", *right: int) -> None:
    """Wait for the processes; any exit code but the `right` ones, of which 0 is one, ends all."""
    codes = [process.wait() for process in processes]
    if not {*codes} <= {0, *right}:
        raise SystemExit("a process failed; see above")


def run(source: str, work: Path, steps: int, samples: int, seconds: float) -> None:
    start = time.perf_counter()
    trainings = []
    for number, flags in enumerate(CELLS.values()):
        out = str(work / f"run-{number}")
        fixed = ["--data", source, "--steps", str(steps), "--checkpoint-every", str(steps)]
        trainings.append(cwdfm("train", "qm9-small", "--out", out, *fixed, *BASE, *flags))
    stop(trainings, seconds)
    middle = time.perf_counter()
    drawing = []
    for number in range(len(CELLS)):
        for solver in SOLVERS:
            out = str(work / f"{number}-{solver}.jsonl")
            flags = ["--n", str(samples), "--steps", "128", "--solver", solver, "--out", out]
            drawing.append(cwdfm("sample", str(work / f"run-{number}"), *flags))
        if len(drawing) >= 6:
            finish(drawing)
            drawing = []
    finish(drawing)
    print(f"training {middle - start:.0f} s, sampling {time.perf_counter() - middle:.0f} s")


def score(work: Path, out: Path) -> None:
    training = CanonicalSet(data.load("qm9").texts("train"))
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(CELLS):
        for solver in SOLVERS:
            file = read_samples(work / f"{number}-{solver}.jsonl")
            scores = score_molecules(file.texts, training, fold_size=len(file.texts))
            row = {"cell": name, "solver": solver, "flags": CELLS[name], **scores.to_json()}
            log = (work / f"run-{number}" / "metrics.jsonl").read_text().splitlines()
            last = [record for record in map(json.loads, log) if "elbo" in record][-1]
            made = json.loads((work / f"run-{number}" / "recipe.json").read_text())["training"]
            row["training"] = made["command"]
            row |= {"steps": file.head["model"]["steps"], "validation": last}
            rows.append(row)
            print(f"{name:32} {solver:9} {scores}")
    facts = {"config": file.head["model"]["recipe"], "base": BASE, "training": made}
    write_json(out, provenance() | facts | {"rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    first = verbs.add_parser("run")
    first.add_argument("--data", default="qm9")
    first.add_argument("--work", type=Path, required=True)
    first.add_argument("--steps", type=int, default=2500)
    first.add_argument("--samples", type=int, default=1024)
    first.add_argument("--seconds", type=float, default=400, help="for training; then it stops")
    second = verbs.add_parser("score")
    second.add_argument("--work", type=Path, required=True)
    second.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "run":
        run(options.data, options.work, options.steps, options.samples, options.seconds)
    else:
        score(options.work, options.out)


if __name__ == "__main__":
    main()
