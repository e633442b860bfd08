"""A longer training on text: solvers by number of steps, and uncertainty against context.

    cwdfm prepare novels.tar.xz --tokenizer gpt2 --length 512 --out NOVELS
    python -m experiments.studies.text_small train --source mask --data NOVELS --work DIR --steps N
    python -m experiments.studies.text_small context --source mask --data NOVELS --work DIR
    python -m experiments.studies.text_small sample --source mask --work DIR
    python -m experiments.studies.text_small evaluate --eval-model FILE.gguf --data NOVELS --work DIR
    python -m experiments.studies.text_small collect --work DIR
    python -m experiments.studies.text_small score --source mask --work DIR --out FILE

All commands except `score` need a GPU; `score` needs mauve-text. Existing samples are kept. The
evaluator LM gives perplexities and the features of MAUVE. Held-out windows are scored in the same
way. Both sources can share a folder.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cwdfm import data
from cwdfm.cli import analyze, perplexity, sample, train
from cwdfm.files import write_json
from cwdfm.metrics.evaluator import EvaluatorLM
from cwdfm.metrics.mauve import mauve_score
from cwdfm.metrics.perplexity import generative_perplexity
from cwdfm.metrics.text import text_statistics
from cwdfm.provenance import provenance
from cwdfm.sample_file import read_samples

STEPS = (64, 1024, 256, 128, 512)  # most informative first
SOLVERS: dict[str, list[str]] = {
    "euler": [],
    "neighbor": ["--radius", "1", "--scale", "5"],
    "entropy": ["--beta", "6"],
}
NUCLEUS = 0.9  # of the paper, in addition to plain draws


def cells(source: str) -> list[tuple[str, int, float]]:
    """Solver, steps and nucleus of every set of samples."""
    plain = [(solver, steps, 1.0) for steps in STEPS for solver in SOLVERS]
    if source == "uniform":  # top-p would need the logits of every coordinate there
        return plain
    cut = [(s, steps, NUCLEUS) for steps in STEPS[:3] for s in ("euler", "neighbor")]
    return plain[:9] + cut + plain[9:]


def run_training(options: argparse.Namespace) -> None:
    flags = ["--source", options.source, "--data", options.data, "--steps", str(options.steps)]
    flags += ["--masked-only"] if options.source == "mask" else ["--no-masked-only"]
    every = ["--checkpoint-every", str(options.steps), "--validate-every", str(options.every)]
    out = ["--out", str(options.work / options.source)]
    train.main(["text-small", *flags, *every, *out, *options.more.split()])


def run_sampling(options: argparse.Namespace) -> None:
    model = str(options.work / options.source / "model")
    for solver, steps, top_p in cells(options.source):
        cut = "" if top_p == 1 else f"-p{top_p}"
        out = options.work / "samples" / f"{options.source}-{solver}-{steps}{cut}.jsonl"
        if out.exists():
            continue
        flags = ["--n", str(options.n), "--steps", str(steps), "--solver", solver]
        flags += [*SOLVERS[solver], "--top-p", str(top_p), "--precision", "bfloat16"]
        start = time.perf_counter()
        sample.main([model, *flags, "--batch-size", str(options.n), "--out", str(out), "--force"])
        print(f"{out.stem}: {time.perf_counter() - start:.1f} s", flush=True)


def run_context(options: argparse.Namespace) -> None:
    model = str(options.work / options.source / "model")
    shown = options.work / f"context-{options.source}"
    rows = ["--rows", str(options.rows), "--data", options.data]
    analyze.main(["context", model, *rows, "--out", str(shown), "--force"])
    bound = options.work / f"bound-{options.source}.json"
    perplexity.main([model, *rows, "--out", str(bound), "--force"])


def run_evaluation(options: argparse.Namespace) -> None:
    evaluator = EvaluatorLM(str(options.eval_model), dtype=options.dtype).load()
    held_out = data.load(options.data)
    size = min(options.n, len(held_out.valid) // 2)
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
        value = generative_perplexity(found, evaluator)
        statistics = text_statistics(torch.from_numpy(tokens[name]))
        rows[name] = {"perplexity": value.to_json(), "statistics": statistics.to_json()}
        features[name] = evaluator.features(found)
        print(f"{name:24} perplexity {value}  {statistics}", flush=True)
    for group in ("data", "mask", "uniform"):
        part = {name: f for name, f in features.items() if name.startswith(group)}
        np.savez_compressed(options.work / f"features-{group}.npz", **part)
    write_json(options.work / "scores.json", provenance() | {"rows": rows})


def score(options: argparse.Namespace) -> None:
    source = options.source
    scores = json.loads((options.work / "scores.json").read_text())
    heads = of_source(source, json.loads((options.work / "heads.json").read_text()))
    files = [np.load(path) for path in sorted(options.work.glob("features-*.npz"))]
    features = {name: file[name] for file in files for name in file.files}
    rows = []
    for name, row in of_source(source, scores["rows"]).items():
        if name == "data-b":
            continue  # the reference of MAUVE
        found = mauve_score(features[name], features["data-b"])
        scored = row["perplexity"]
        made_by = {"features": scored.get("evaluator", scored.get("judge"))}
        rows.append({"name": name, **row, "mauve": found.to_json() | made_by})
        print(f"{name:24} MAUVE {found}", flush=True)
    made = {"config": heads, "judging": {k: v for k, v in scores.items() if k != "rows"}}
    write_json(options.out, provenance() | made | {"rows": rows})


def of_source(source: str, found: dict[str, Any]) -> dict[str, Any]:
    """The entries of one source, and those of the data."""
    return {
        name: value
        for name, value in found.items()
        if name.startswith((f"{source}-", "data-")) or name.endswith(f"-{source}")
    }


def collect(options: argparse.Namespace) -> None:
    """Pack the tokens of all samples, and their metadata, into two files."""
    heads: dict[str, Any] = {}
    tokens: dict[str, Any] = {}
    for path in sorted((options.work / "samples").glob("*.jsonl")):
        file = read_samples(path)
        heads[path.stem] = file.head | {"examples": file.texts[:2]}
        del heads[path.stem]["model"]  # stored once, below
        tokens[path.stem] = np.array(file.tokens, dtype=np.uint16)
    np.savez_compressed(options.work / "tokens.npz", **tokens)
    for source in ("mask", "uniform"):
        folder = options.work / source
        if (folder / "metrics.jsonl").exists():
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            heads[f"training-{source}"] = [json.loads(line) for line in lines]
            heads[f"recipe-{source}"] = json.loads((folder / "recipe.json").read_text())
            for name in (f"bound-{source}", f"context-{source}/context"):
                path = options.work / f"{name}.json"
                heads[name.split("/")[0]] = json.loads(path.read_text()) if path.exists() else None
    write_json(options.work / "heads.json", heads)


COMMANDS = {
    "train": run_training,
    "context": run_context,
    "sample": run_sampling,
    "evaluate": run_evaluation,
    "collect": collect,
    "score": score,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--source", choices=("mask", "uniform"), default="mask")
    parser.add_argument("--data")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--more", default="")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--eval-model", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="output of score")
    options = parser.parse_args()
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
