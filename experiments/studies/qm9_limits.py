"""Changes of the training recipe of small QM9 models, one at a time.

    python -m experiments.studies.qm9_limits run --work DIR     # on a GPU
    python -m experiments.studies.qm9_limits score --work DIR --out qm9_limits.json

`run` trains all CELLS at once, each in a separate process, and draws 1,024 samples of each with
Euler and with Neighbor weights in 128 steps. Trainings stop at the time limit, and the scores
record the step they reached. `score` needs RDKit. results/samples/qm9_limits.tgz holds the samples
of the recorded run.
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
    "uniform, no EMA": ["--ema", "0"],
    "uniform, dropout 0.1": ["--dropout", "0.1"],
    "uniform, 17M": ["--model", "17m", "--learning-rate", "7e-4"],
    "mask, learned positions, first token given": MASK,
    "mask, rotary positions only": ["--source", "mask", "--masked-only"],
    "mask, loss on all tokens": [flag for flag in MASK if flag != "--masked-only"],
}
SOLVERS = ("euler", "neighbor")


def cwdfm(*arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "cwdfm.cli.main", *arguments]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def stop(processes: "list[subprocess.Popen[bytes]]", seconds: float) -> None:
    """Wait for the trainings; after the time limit ask them to save and stop."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(1)
    for process in processes:
        process.terminate()
    finish(processes, 128 + signal.SIGTERM)


def finish(processes: "list[subprocess.Popen[bytes]]", *expected: int) -> None:
    """Wait for the processes and exit if one of them failed; 0 and `expected` are successes."""
    codes = [process.wait() for process in processes]
    if not {*codes} <= {0, *expected}:
        raise SystemExit("a process failed; its output is above")


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
    facts = {"config": file.head["model"]["config"], "base": BASE, "training": made}
    write_json(out, provenance() | facts | {"rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--data", default="qm9")
    running.add_argument("--work", type=Path, required=True)
    running.add_argument("--steps", type=int, default=2500)
    running.add_argument("--samples", type=int, default=1024)
    running.add_argument("--seconds", type=float, default=400, help="time limit of the training")
    scoring = commands.add_parser("score")
    scoring.add_argument("--work", type=Path, required=True)
    scoring.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "run":
        run(options.data, options.work, options.steps, options.samples, options.seconds)
    else:
        score(options.work, options.out)


if __name__ == "__main__":
    main()
