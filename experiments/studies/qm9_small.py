"""Score the samples that the models in the box gave on a GPU.

    python -m experiments.studies.qm9_small --samples SAMPLES.tgz --out results/qm9_small.json

The archive holds 2,048 SMILES a file, named source-solver-steps.smi, each drawn by

    cwdfm sample MODEL --out FILE --n 2048 --batch-size 2048 --steps STEPS --solver SOLVER

with seed 0 and the solver's defaults (radius 1, scale 4, beta 6) from the float32 weights, of which
the box holds float16 copies. Training's own record is in the models' config.json.
"""

import argparse
import tarfile
from pathlib import Path
from typing import Any

import cwdfm
from cwdfm import data
from cwdfm.files import write_json
from cwdfm.metrics.molecule import CanonicalSet, score_molecules
from cwdfm.provenance import provenance

SAMPLES = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description="Score samples of the models in the box.")
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    training = CanonicalSet(data.load("qm9").texts("train"))
    rows = []
    with tarfile.open(options.samples) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is None:
                continue
            # An empty line is a sample too: one that ended at once.
            texts = file.read().decode().split("\n")[:SAMPLES]
            source, solver, steps = Path(member.name).stem.split("-")
            row: dict[str, Any] = {"source": source, "solver": solver, "steps": int(steps)}
            rows.append(row | score_molecules(texts, training).to_json())
    rows.sort(key=lambda row: (row["source"], row["solver"], row["steps"]))
    for row in rows:
        valid, novel = row["valid"]["mean"], row["novel"]["mean"]
        print(f"{row['source']:8} {row['solver']:9} {row['steps']:4} {valid:7.1f} {novel:7.1f}")
    training_records = {name: cwdfm.load(name).card for name in cwdfm.box()}
    config = {"samples": SAMPLES, "seed": 0, "radius": 1, "scale": 4.0, "beta": 6.0}
    write_json(
        options.out,
        provenance() | {"config": config, "trainings": training_records, "rows": rows},
    )


if __name__ == "__main__":
    main()
