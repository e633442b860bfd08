"""Score samples of the bundled models.

    python -m experiments.studies.qm9_small --samples SAMPLES.tgz --out qm9_small.json

The archive (results/samples/qm9_small.tgz) holds files SOURCE-SOLVER-STEPS.smi of 2,048 SMILES,
each drawn on a GPU by

    cwdfm sample MODEL --out FILE --n 2048 --batch-size 2048 --steps STEPS --solver SOLVER

with seed 0 and the default weights (radius 1, scale 4, beta 6) from the float32 weights; the
package has float16 copies. The record of the training is in the models' config.json.
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
    parser = argparse.ArgumentParser(description="Score samples of the bundled models.")
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
            # An empty line is a sample that ended immediately.
            texts = file.read().decode().split("\n")[:SAMPLES]
            source, solver, steps = Path(member.name).stem.split("-")
            row: dict[str, Any] = {"source": source, "solver": solver, "steps": int(steps)}
            rows.append(row | score_molecules(texts, training).to_json())
    rows.sort(key=lambda row: (row["source"], row["solver"], row["steps"]))
    for row in rows:
        valid, novel = row["valid"]["mean"], row["novel"]["mean"]
        print(f"{row['source']:8} {row['solver']:9} {row['steps']:4} {valid:7.1f} {novel:7.1f}")
    training_records = {name: cwdfm.load(name).card for name in cwdfm.bundled_models()}
    config = {"samples": SAMPLES, "seed": 0, "radius": 1, "scale": 4.0, "beta": 6.0}
    write_json(
        options.out,
        provenance() | {"config": config, "trainings": training_records, "rows": rows},
    )


if __name__ == "__main__":
    main()
