"""How long runs on a GPU lasted that results tell no more: done again, or of jobs since left.

    python -m benchmarks.repro_runs OLD/jobs ... NEW/jobs --out results/repro_runs.json

What a job is charged with depends on what had the GPU beside it. A job that is done again keeps the
date of its earlier runs alone, and of one that no experiment needs any more nothing is kept. Both
are in folders of earlier revisions.
"""

import argparse
import json
from pathlib import Path

from cwdfm.provenance import provenance, write_json


def gone(folders: list[Path]) -> dict[str, dict[str, float]]:
    """Seconds of runs that the last folder does not have, by GPU, and by name and date."""
    *_, last = every = [_runs(folder) for folder in folders]
    found: dict[str, dict[str, float]] = {}
    for run, (name, gpu) in sorted({k: v for runs in every for k, v in runs.items()}.items()):
        if gpu is not None and run not in last:
            date, seconds = run
            found.setdefault(gpu, {})[f"{name} {date}"] = seconds
    return found


def _runs(folder: Path) -> dict[tuple[str, float], tuple[str, str | None]]:
    """Names and GPUs of a folder's runs, by date and seconds: a job may have got another name."""
    found = {}
    for path in folder.glob("*/result.json"):
        record = json.loads(path.read_text())
        told = record["provenance"]
        found[told["date"], record["seconds"]] = path.parent.name, told["hardware"]["gpu"]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_json(options.out, provenance() | {"config": {}, "runs": gone(options.folders)})
