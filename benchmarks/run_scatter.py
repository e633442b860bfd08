"""How far runs of the same training end apart: one recipe, one seed, several machines or days.

    python -m benchmarks.run_scatter OLD/jobs ... NEW/jobs --out results/run_scatter.json

Sums on a GPU are not added up in one order, so that equal seeds do not give equal runs.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from cwdfm.provenance import provenance, write_json

FIELDS = ("method", "block", "source", "loss")


def last_validation(record: dict[str, Any]) -> float:
    """The last validation loss of a run."""
    losses = [m["validation_loss"] for m in record["result"]["metrics"] if "validation_loss" in m]
    return float(losses[-1])


def training(job: dict[str, Any]) -> str:
    """What is trained: the corpus and the recipe, whatever it is called."""
    recipe = dict(job["recipe"])
    if recipe["loss"] == "bregman" and recipe["masked_only"]:
        recipe["loss"] = "nelbo"  # which it is: see cwdfm.Bregman
    return json.dumps([job["corpus"], recipe])


def compare(folders: list[Path]) -> list[dict[str, Any]]:
    """A row for each recipe of which the folders have several runs."""
    runs: dict[str, dict[str, Any]] = {}  # by recipe, and by date
    for folder in folders:
        for path in folder.glob("train-*/result.json"):
            record = json.loads(path.read_text())
            runs.setdefault(training(record["job"]), {})[record["provenance"]["date"]] = record
    rows = []
    for found in runs.values():
        if len(found) == 1:
            continue
        records = [found[date] for date in sorted(found)]
        origins = [record["provenance"] for record in records]
        job = records[0]["job"]
        rows.append(
            {
                "corpus": job["corpus"],
                **{name: job["recipe"][name] for name in FIELDS},
                "steps": job["recipe"]["steps"],
                "losses": [last_validation(record) for record in records],
                "revisions": [origin["revision"] for origin in origins],
                "dates": [origin["date"] for origin in origins],
                "gpus": [origin["hardware"]["gpu"] for origin in origins],
            }
        )
    return sorted(rows, key=lambda row: [row[name] for name in ("corpus", *FIELDS)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_json(options.out, provenance() | {"config": {}, "rows": compare(options.folders)})
