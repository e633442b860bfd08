"""Differences between repeated runs of the same training: one recipe and seed, several runs.

    python -m experiments.studies.run_scatter OLD/results ... NEW/results --out run_scatter.json

Sums on a GPU have no fixed order, so equal seeds do not give equal runs. The runs are compared by
their last validation loss, runs on text also by the scores of their samples. The arguments are
results/ folders of several revisions, oldest first.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cwdfm.config import from_config
from cwdfm.files import write_json
from cwdfm.provenance import provenance
from cwdfm.solver_config import SolverChoice
from experiments.catalog.training import context_line
from experiments.cell import weight_label
from experiments.notes import weights_of
from experiments.results import read
from experiments.tasks.base import Corpus

WEIGHTS = ("loss_radius", "loss_scale", "path_radius", "path_scale")
FIELDS = ("method", "block", "source", "loss", "masked_only", "path", *WEIGHTS, "seed")
DRAWN = ("choice", "steps", "n", "at")  # the sampler, without its seed
SCORES = {"perplexities": ("perplexity", "perplexity"), "entropies": ("statistics", "entropy")}
Record = dict[str, Any]


def last_validation(record: Record) -> float:
    """The last validation loss of a run."""
    losses = [m["validation_loss"] for m in record["result"]["metrics"] if "validation_loss" in m]
    return float(losses[-1])


def training(job: Record) -> str:
    """A key for what is trained: the corpus and the recipe."""
    recipe = dict(job["recipe"])
    if recipe["loss"] == "bregman" and recipe["masked_only"]:
        recipe["loss"] = "nelbo"  # the same loss there, see cwdfm.Bregman
    return json.dumps([job["corpus"], recipe])


def compare(folders: list[Path]) -> list[dict[str, Any]]:
    """One row for each recipe that was trained several times."""
    runs: dict[str, dict[str, Record]] = defaultdict(dict)  # by recipe, and by date
    for record in records(folders, "train"):
        runs[training(record["job"])][record["provenance"]["date"]] = record
    samples = sampled(folders)
    rows = []
    for recipe, found in runs.items():
        if len(found) == 1:
            continue
        dates = sorted(found)
        origins = [found[date]["provenance"] for date in dates]
        job = found[dates[0]]["job"]
        rows.append(
            {
                "corpus": job["corpus"],
                **{name: job["recipe"][name] for name in FIELDS},
                "steps": job["recipe"]["steps"],
                "losses": [last_validation(found[date]) for date in dates],
                "samples": [
                    json.loads(how)
                    | {what: [by_run.get(d) for d in dates] for what, by_run in each}
                    for how, each in sorted(samples[recipe].items())
                ],
                "revisions": [origin["revision"] for origin in origins],
                "dates": dates,
                "gpus": [origin["hardware"]["gpu"] for origin in origins],
            }
        )
    return sorted(rows, key=lambda row: [row[name] for name in ("corpus", *FIELDS)])


def describe(row: Record) -> str:
    """The training of a row, in a few words; the corpus is not included."""
    seed = f", seed {row['seed']}" if row["seed"] else ""
    if row["method"] == "bd3lm":
        return f"block {row['block']} of BD3LM{seed}"
    alone = " of masked tokens" if row["masked_only"] else ""
    path = f", context path{_weights(row, 'path')}" if row["path"] == "context" else ""
    scaled = _weights(row, "loss") if row["loss"] == "sce" else ""
    return f"{row['source']} source, {row['loss']}{scaled}{alone}{path}{seed}"


def describe_sampler(sample: Record) -> str:
    """A solver with the settings it uses, and its number of steps."""
    choice = from_config(sample["choice"], {"SolverChoice": SolverChoice})
    settings = [one for each in weights_of([choice]).values() for one in each]
    return ", ".join([choice.solver, *settings, f"{sample['steps']:,} steps"])


def _weights(row: Record, of: str) -> str:
    """The weights of the loss or path, if they differ from those of the paper's tables."""
    corpus: Corpus = row["corpus"]
    cell = context_line(row["source"], "").cell(corpus, "small")
    usual = asdict(cell.train().recipe)
    own, expected = (weight_label(x[f"{of}_radius"], x[f"{of}_scale"]) for x in (row, usual))
    return "" if own == expected else f" ({own})"


def sampled(folders: list[Path]) -> dict[str, dict[str, list[tuple[str, dict[str, float]]]]]:
    """Perplexity and entropy of the samples of each run, by recipe and sampler.

    Scores of one run with several sampling seeds are averaged (geometric mean).
    """
    runs: dict[str, set[str]] = defaultdict(set)  # dates of a job's runs
    for record in records(folders, "train"):
        runs[json.dumps(record["job"])].add(record["provenance"]["date"])
    scores: dict[tuple[str, str], dict[str, dict[str, Record]]] = {}  # by run, and by date
    for folder in folders:
        samples = {json.dumps(each["job"]): each for each in records([folder], "sample")}
        for record in records([folder], "text"):
            job = record["job"]["samples"]
            if (sample := samples.get(json.dumps(job))) is None:
                continue  # held-out text
            model, date = job["model"], sample["provenance"]["date"]
            named = list(sample.get("needs", {}).values())
            run = named[0] if named else max(d for d in runs[json.dumps(model)] if d <= date)
            key = training(model), json.dumps({name: job[name] for name in DRAWN})
            scored = scores.setdefault(key, defaultdict(dict))
            scored[run][record["provenance"]["date"]] = record["result"]
    found: dict[str, dict[str, list[tuple[str, dict[str, float]]]]] = defaultdict(dict)
    for (recipe, how), scored in scores.items():
        if len(scored) > 1:
            found[recipe][how] = [
                (what, {run: _mean(results.values(), *path) for run, results in scored.items()})
                for what, path in SCORES.items()
            ]
    return found


def _mean(results: Iterable[Record], group: str, name: str) -> float:
    return statistics.geometric_mean(result[group][name]["value"] for result in results)


def records(folders: list[Path], kind: str) -> Iterator[Record]:
    """All recorded cells of one kind."""
    for folder in folders:
        yield from read(f"cells/{kind}", folder).values()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_json(options.out, provenance() | {"config": {}, "rows": compare(options.folders)})
