"""Train models on MOSES on one GPU in a few short calls, and sample from them.

Prepare the data once, where RDKit and molsets are installed:

    cwdfm prepare moses --length 56 --condition logp qed --out moses.npz
    cwdfm prepare moses --length 56 --representation selfies --out moses-selfies.npz

Then run these on the machine with the GPU, which needs neither, as often as necessary:

    python -m experiments.studies.moses train RUN ... --data DATA.npz ... --work W --minutes 9
    python -m experiments.studies.moses sample RUN ... --work W --minutes 5
    python -m experiments.studies.moses pack RUN ... --work W --out DIR

`train` starts all named runs at the same time, because one small network does not fill a GPU. Each
run uses the data of its representation (SMILES or SELFIES). It stops them after `--minutes`, and the
same command resumes them. `--tokens` is the number of tokens that the network of each run reads in training, so
that methods are compared at equal cost. `sample` draws 30,000 molecules with each setting of a run,
and skips those that exist. `pack` writes the weights (bfloat16) and the samples of the runs as parts
of at most 15 MiB, which `unpack --parts DIR --out DIR` joins; it needs the package selfies to decode
SELFIES. Score the samples where RDKit is installed:

    cwdfm eval DIR/samples/*.jsonl --data moses --out REPORT

`--scale smoke` uses a tiny network, few steps and few samples, to rehearse all of this on a CPU.
"""

import argparse
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import cwdfm
from cwdfm.baselines.autoregressive import LeftToRight
from cwdfm.data.dataset import TokenData
from cwdfm.data.smiles import SelfiesTokenizer, SmilesTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError, NotInstalled
from cwdfm.files import replacing
from cwdfm.provenance import provenance
from cwdfm.sample_file import SampleFile, read_samples, write_samples

PART = 15 * 2**20  # bytes per file
LENGTH, BATCH = 56, 2048
SCORED = 30_000  # samples
COMMON = "--batch-size 2048 --weight-decay 0.01 --elbo-rows 256 --previews 0 --compile --seed 0"
COMMON += " --learning-rate 1e-3 --min-learning-rate 1e-5 --warmup 500 --ema 0.999"
SMOKE = "--model debug --batch-size 16 --warmup 1 --log-every 2 --checkpoint-every 2 --no-compile"
SMOKE += " --validate-every 1000 --elbo-rows 0 --previews 0 --validation-rows 2"


def setting(solver: Any = None, steps: int = 64, **options: Any) -> dict[str, Any]:
    """The arguments of `cwdfm.generate`."""
    return {"solver": solver, "steps": steps, **options}


EXACT = cwdfm.Euler(hazard="integrated")
UNLIKELY = cwdfm.Gibbs(EXACT, tokens=4, select="unlikely", begin=0.3)
GROWN = cwdfm.FirstHitting(cwdfm.Neighbor(1, 8.0, "cut"))
RESAMPLE = cwdfm.Resample(40)

MASK = "--source mask --masked-only"
UNIFORM_SETTINGS = {
    "euler-64": setting(EXACT, grid="kappa"),
    "gibbs-64": setting(UNLIKELY, grid="kappa"),
    "gibbs-64-resample": setting(UNLIKELY, grid="kappa", resample=RESAMPLE),
    "gibbs-256-resample": setting(UNLIKELY, 256, grid="kappa", resample=RESAMPLE),
}
MASK_SETTINGS = {
    "first-hitting": setting(cwdfm.FirstHitting(), LENGTH),
    "grown": setting(GROWN, LENGTH),
    "grown-resample": setting(GROWN, LENGTH, resample=RESAMPLE),
}
SMALL_SETTINGS = {name: UNIFORM_SETTINGS[name] for name in ("euler-64", "gibbs-64-resample")}
ANCESTRAL = {"ancestral-64": setting(), "ancestral-256": setting(steps=256)}
# Settings with this ending draw more samples, and only the first valid ones are scored.
VALID, EXTRA = "-valid", 1.15
WARMER = {
    f"tokens-{temperature}{VALID}": setting(LeftToRight(temperature=temperature), LENGTH)
    for temperature in (1.0, 1.05, 1.1)
}


@dataclass(frozen=True)
class Run:
    """A training run and how to sample from it.

    - `options` of `cwdfm train moses-small`.
    - `settings`: arguments of `cwdfm.generate`.
    - `representation` of the data.
    - `reads`: how often the network reads each training sequence in a step.
    """

    options: str
    settings: dict[str, dict[str, Any]]
    representation: str = SmilesTokenizer.kind
    reads: int = 1


SMALL = "--source uniform --model 4m"
# With a given first token and windows that end with the sequence, neighbor weights reveal tokens
# almost from left to right, the order in which SMILES are easiest to predict. The sampler needs the
# predictions next to revealed tokens only, and NEAR gives them 20 times the weight of the others.
LEFT_TO_RIGHT = "--path context --path-scale 8 --path-boundary cut"
NEAR = "--loss sce --loss-radius 1 --loss-scale 3"
RUNS: dict[str, Run] = {
    "mask-grown": Run(f"{MASK} {LEFT_TO_RIGHT}", MASK_SETTINGS),
    "mask-grown-near": Run(f"--source mask {LEFT_TO_RIGHT} {NEAR}", MASK_SETTINGS),
    "mask-mixture": Run(MASK, MASK_SETTINGS),
    "uniform": Run("--source uniform", UNIFORM_SETTINGS),
    "uniform-conditions": Run("--source uniform --condition logp qed", UNIFORM_SETTINGS),
    "uniform-4m": Run(SMALL, SMALL_SETTINGS),
    "uniform-4m-selfies": Run(SMALL, SMALL_SETTINGS, SelfiesTokenizer.kind),
    "uniform-4m-conditions": Run(f"{SMALL} --condition logp qed", UNIFORM_SETTINGS),
    "ar": Run("--method ar", {"tokens": setting(steps=LENGTH), **WARMER}),
    "ar-dropout": Run("--method ar --dropout 0.2", {"tokens": setting(steps=LENGTH), **WARMER}),
    "mdlm": Run("--method mdlm", ANCESTRAL),
    "sedd": Run("--method sedd", {"analytic-64": setting(), "analytic-256": setting(steps=256)}),
    "bd3lm": Run("--method bd3lm --block 8", ANCESTRAL, reads=2),
}


def command(name: str, options: argparse.Namespace) -> list[str]:
    """The command that trains a run, or resumes it."""
    smoke = options.scale == "smoke"
    run = RUNS[name]
    steps = 6 if smoke else round(options.tokens / (run.reads * BATCH * LENGTH))
    chosen = merged(COMMON, run.options, SMOKE if smoke else "", f"--steps {steps}")
    data = options.files[run.representation]
    places = ["--data", str(data), "--out", str(options.work / name)]
    start = "from cwdfm.cli.main import main; main()"
    return [sys.executable, "-c", start, "train", "moses-small", *places, *chosen]


def merged(*texts: str) -> list[str]:
    """Merge options; the last of repeated ones counts."""
    found: dict[str, list[str]] = {}
    for text in texts:
        for option in text.replace(" --", "\n--").split("\n"):
            words = option.split()
            if words:
                found["--compile" if words[0] == "--no-compile" else words[0]] = words
    return [word for words in found.values() for word in words]


def train(options: argparse.Namespace) -> None:
    """Train all runs at the same time, for a limited number of minutes."""
    options.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    running = {}
    for name in options.runs:
        if (options.work / name / "model" / "config.json").exists():
            print(f"{name}: finished")
            continue
        with (options.work / f"{name}.log").open("a") as log:
            running[name] = subprocess.Popen(command(name, options), stdout=log, stderr=log)
    while any(each.poll() is None for each in running.values()):
        if time.monotonic() > end:
            for each in running.values():
                if each.poll() is None:
                    each.send_signal(signal.SIGTERM)  # writes a checkpoint
            break
        time.sleep(0.2)
    for name, process in running.items():
        code = process.wait()
        said = (options.work / f"{name}.log").read_text().replace("\r", "\n").splitlines()
        steps = [line for line in said if line.startswith("step ")]
        print(f"{name}: exit code {code}; {(steps or said or [''])[-1]}", flush=True)


def sample(options: argparse.Namespace) -> None:
    """Draw samples from all runs, for a limited number of minutes."""
    smoke = options.scale == "smoke"
    scored = options.n or (4 if smoke else SCORED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    end = time.monotonic() + 60 * options.minutes
    folder = options.work / "samples"
    folder.mkdir(exist_ok=True)
    for name in options.runs:
        trained = cwdfm.load(options.work / name, device)
        for label, arguments in RUNS[name].settings.items():
            path = folder / f"{name}-{label}-{options.seed}.jsonl"
            if path.exists() or time.monotonic() > end:
                print(f"{path.name}: {'exists' if path.exists() else 'no time left'}")
                continue
            if smoke and arguments["steps"] > LENGTH:
                arguments = arguments | {"steps": 4}
            n = round(EXTRA * scored) if label.endswith(VALID) else scored
            start = time.perf_counter()
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                out = trained.generate(n=n, seed=options.seed, **arguments)
            head = {
                "options": {
                    "model": name,
                    "solver": label,
                    "steps": arguments["steps"],
                    "seed": options.seed,
                },
                "arguments": {key: str(value) for key, value in arguments.items()},
                "evaluations": int(out.evaluations.sum()),
                "seconds": time.perf_counter() - start,
                "model": trained.card,
                "tokenizer": trained.tokenizer.kind,
                "provenance": provenance(),
            }
            tokens = out.tokens.tolist()
            write_samples(path, SampleFile(decoded(trained.tokenizer, tokens), tokens, head))
            print(f"{path.name}: {head['seconds']:.0f} s", flush=True)


def decoded(tokenizer: Tokenizer, rows: list[list[int]]) -> list[str]:
    """The texts of samples; empty if the package that decodes them is missing."""
    try:
        return [tokenizer.decode(row) for row in rows]
    except NotInstalled:
        return [""] * len(rows)


def pack(options: argparse.Namespace) -> None:
    """Write the weights, logs and samples of runs as files of at most PART bytes."""
    options.out.mkdir(parents=True, exist_ok=True)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz", preset=2) as archive:
        for name in options.runs:
            if options.weights:
                packed = options.work / "packed" / name
                cwdfm.load(options.work / name).save_pretrained(packed, torch.bfloat16)
                archive.add(packed, name)
            archive.add(options.work / name / "metrics.jsonl", f"{name}/metrics.jsonl")
            for path in sorted((options.work / "samples").glob(f"{name}-*.jsonl")):
                archive.add(path, f"samples/{path.name}")
    data = whole.getvalue()
    parts = [data[i : i + PART] for i in range(0, len(data), PART)]
    for i, part in enumerate(parts):
        with replacing(options.out / f"{options.name}.tar.xz.{i:02}") as path:
            Path(path).write_bytes(part)
    print(f"{len(data) / 2**20:.1f} MiB in {len(parts)} files")


def unpack(options: argparse.Namespace) -> None:
    """Join the parts of `pack`."""
    parts = sorted(options.parts.glob(f"{options.name}.tar.xz.*"))
    whole = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(fileobj=whole, mode="r:xz") as archive:
        archive.extractall(options.out, filter="data")
    for path in (options.out / "samples").glob("*.jsonl"):
        file = read_samples(path)
        if file.tokens and not any(file.texts):  # sampled where they could not be decoded
            tokenizer = cwdfm.load(options.out / file.options["model"]).tokenizer
            write_samples(path, replace(file, texts=decoded(tokenizer, file.tokens)))
    print(f"written: {options.out}")


def files(paths: list[Path]) -> dict[str, Path]:
    """Prepared data by their representation."""
    found = {}
    for path in paths:
        data = TokenData.load(path)
        if data.length != LENGTH:
            raise InputError(f"{path} must have sequences of {LENGTH} tokens, not {data.length}")
        found[data.tokenizer.kind] = path
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and sample models of MOSES.")
    parser.add_argument("action", choices=("train", "sample", "pack", "unpack"))
    parser.add_argument("runs", nargs="*", help=f"names of runs: {', '.join(RUNS)}")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--data", type=Path, nargs="+", help="moses.npz, moses-selfies.npz")
    parser.add_argument("--work", type=Path, help="folder of the runs")
    parser.add_argument("--out", type=Path, help="folder of the parts, or of what they contain")
    parser.add_argument("--parts", type=Path, help="folder with the parts to unpack")
    parser.add_argument("--name", default="moses", help="name of the parts")
    parser.add_argument("--no-weights", dest="weights", action="store_false", help="pack samples")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument(
        "--tokens", type=float, default=5e8, help="tokens read in training, per run"
    )
    parser.add_argument("--n", type=int, default=0, help="samples; 0 for the scale's number")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := [name for name in options.runs if name not in RUNS]:
        parser.error(f"unknown runs {', '.join(unknown)}; choose from {', '.join(RUNS)}")
    required = {"train": ("data", "work"), "sample": ("work",), "pack": ("work", "out")}
    for name in required.get(options.action, ("parts", "out")):
        if getattr(options, name) is None:
            parser.error(f"{options.action} requires --{name}")
    if options.action == "train":
        options.files = files(options.data)
        kinds = {RUNS[name].representation for name in options.runs}
        if missing := kinds - options.files.keys():
            parser.error(f"--data has no file with the representation {', '.join(missing)}")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    {"train": train, "sample": sample, "pack": pack, "unpack": unpack}[options.action](options)


if __name__ == "__main__":
    main()
