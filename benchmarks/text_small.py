"""Text at small scale: does the Neighbor-weighted solver beat Euler at many steps, lose at few?

    cwdfm prepare novels.tar.xz --tokenizer gpt2 --length 512 --out NOVELS
    python -m benchmarks.text_small train --source mask --data NOVELS --work DIR --steps STEPS
    python -m benchmarks.text_small sample --source mask --work DIR
    python -m benchmarks.text_small judge --judge FILE.gguf --data NOVELS --work DIR
    python -m benchmarks.text_small score --work DIR --out results/text_small.json

The first three verbs after `prepare` want a GPU; `score` wants mauve-text and does without one. A
judge reads every sample for perplexity and for MAUVE's features; the data's own row are held-out
windows in the samples' place.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cwdfm import data
from cwdfm.cli import analyze, perplexity, sample, train
from cwdfm.metric import Judge, generative_perplexity, mauve_score, text_statistics
from cwdfm.provenance import provenance, write_json
from cwdfm.sample_file import read_samples

STEPS = (64, 128, 256, 512, 1024)
FEW = (64, 256, 1024)  # where every step reads the vocabulary at every masked token
SOLVERS: dict[str, list[str]] = {
    "euler": [],
    "neighbor": ["--radius", "1", "--scale", "5"],
    "entropy": ["--beta", "6"],
}
REFERENCE = 256


def plan(source: str) -> dict[str, tuple[int, ...]]:
    """The step counts of each solver."""
    dear = {"mask": ("entropy",), "uniform": ("neighbor", "entropy")}[source]
    return {solver: FEW if solver in dear else STEPS for solver in SOLVERS}


def run_training(options: argparse.Namespace) -> None:
    flags = ["--source", options.source, "--data", options.data, "--steps", str(options.steps)]
    flags += ["--masked-only"] if options.source == "mask" else ["--no-masked-only"]
    every = ["--checkpoint-every", str(options.steps), "--validate-every", str(options.every)]
    out = ["--out", str(options.work / options.source)]
    train.main(["text-small", *flags, *every, *out, *options.more.split()])


def run_sampling(options: argparse.Namespace) -> None:
    model = str(options.work / options.source / "model")
    for solver, counts in plan(options.source).items():
        for steps in counts[: options.cells]:
            out = options.work / "samples" / f"{options.source}-{solver}-{steps}.jsonl"
            flags = ["--n", str(options.n), "--steps", str(steps), "--solver", solver]
            flags += [*SOLVERS[solver], "--precision", "bfloat16", "--out", str(out), "--force"]
            sample.main([model, *flags])
    shown = options.work / f"context-{options.source}"
    rows = ["--rows", str(options.rows), "--data", options.data]
    analyze.main(["context", model, *rows, "--out", str(shown), "--force"])
    bound = options.work / f"bound-{options.source}.json"
    perplexity.main([model, *rows, "--out", str(bound), "--force"])


def run_judging(options: argparse.Namespace) -> None:
    judge = Judge(str(options.judge), dtype=options.dtype).load()
    held_out = data.load(options.data)
    size = min(REFERENCE, len(held_out.valid) // 2)
    windows = {"data-a": held_out.valid[:size], "data-b": held_out.valid[size : 2 * size]}
    texts = {
        name: [held_out.tokenizer.decode(row) for row in rows.tolist()]
        for name, rows in windows.items()
    }
    tokens = {name: rows.astype(np.int64) for name, rows in windows.items()}
    for path in sorted((options.work / "samples").glob("*.jsonl")):
        file = read_samples(path)
        texts[path.stem], tokens[path.stem] = file.texts, np.array(file.tokens)
    rows: dict[str, Any] = {}
    features: dict[str, Any] = {}
    for name, found in texts.items():
        value = generative_perplexity(found, judge)
        statistics = text_statistics(torch.from_numpy(tokens[name]))
        rows[name] = {"perplexity": value.to_json(), "statistics": statistics.to_json()}
        features[name] = judge.features(found)
        print(f"{name:24} perplexity {value}  {statistics}", flush=True)
    np.savez_compressed(options.work / "features.npz", **features)
    write_json(options.work / "judged.json", provenance() | {"rows": rows})


def score(options: argparse.Namespace) -> None:
    judged = json.loads((options.work / "judged.json").read_text())
    heads = json.loads((options.work / "heads.json").read_text())
    features = np.load(options.work / "features.npz")
    rows = []
    for name, row in judged["rows"].items():
        if name == "data-b":
            continue  # what all others are compared with
        found = mauve_score(features[name], features["data-b"])
        rows.append({"name": name, **row, "mauve": found.to_json()})
        print(f"{name:24} MAUVE {found}", flush=True)
    made = {"config": heads, "judging": {k: v for k, v in judged.items() if k != "rows"}}
    write_json(options.out, provenance() | made | {"rows": rows})


def collect(options: argparse.Namespace) -> None:
    """Everything but the samples' tokens in one file, to travel."""
    heads: dict[str, Any] = {}
    for path in sorted((options.work / "samples").glob("*.jsonl")):
        file = read_samples(path)
        heads[path.stem] = file.head | {"examples": file.texts[:2]}
    for source in ("mask", "uniform"):
        folder = options.work / source
        if (folder / "metrics.jsonl").exists():
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            heads[f"training-{source}"] = [json.loads(line) for line in lines]
            heads[f"recipe-{source}"] = json.loads((folder / "recipe.json").read_text())
            bound = options.work / f"bound-{source}.json"
            heads[f"bound-{source}"] = json.loads(bound.read_text())
    write_json(options.work / "heads.json", heads)


VERBS = {
    "train": run_training,
    "sample": run_sampling,
    "judge": run_judging,
    "collect": collect,
    "score": score,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--source", choices=("mask", "uniform"), default="mask")
    parser.add_argument("--data")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--more", default="")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--cells", type=int, default=len(STEPS))
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    VERBS[options.verb](options)


if __name__ == "__main__":
    main()
