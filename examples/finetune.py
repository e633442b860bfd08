"""Fine-tune a bundled model on 2,000 molecules, on a CPU (docs/finetune.md).

    python examples/finetune.py --out results/finetune.json

The data is 2,000 molecules of QM9 with an aromatic ring, which one in six of its molecules has. The
script scores samples before and after fine-tuning, including the fraction with such a ring.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cwdfm
from cwdfm import data
from cwdfm.cli import sample, train
from cwdfm.cli.main import exit_on_error
from cwdfm.data.smiles import CanonicalSet, parse
from cwdfm.errors import MAX_SAMPLES, check_integer
from cwdfm.files import check_output_file, write_json
from cwdfm.metrics.molecule import score_molecules
from cwdfm.provenance import provenance
from cwdfm.sample_file import read_samples

MOLECULES, MODEL = 2000, "qm9-uniform-small"


def main(arguments: list[str]) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--steps", type=int, default=300, help="steps of fine-tuning")
    options = parser.parse_args(arguments)
    check_integer("--samples", options.samples, most=MAX_SAMPLES)
    check_integer("--steps", options.steps)
    check_output_file(options.out, force=True)
    qm9 = data.load("qm9")
    own = [text for text in qm9.texts("train") if aromatic(text)][:MOLECULES]
    flags = ["--solver", "neighbor", "--n", str(options.samples), "--steps", "64"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my.smi").write_text("\n".join(own) + "\n")
        start = time.perf_counter()
        tuned = ["finetune", "--init", MODEL, "--data", str(folder / "my.smi")]
        tuned += ["--out", str(folder / "run"), "--steps", str(options.steps)]
        train.main(tuned, keeps=False)  # timed, so it must not resume
        seconds = time.perf_counter() - start
        rows = []
        for label, model in (("before", MODEL), ("after", str(folder / "run"))):
            out = folder / f"{label}.smi"
            sample.main([model, "--out", str(out), *flags])
            rows.append({"model": label} | score(read_samples(out).texts, qm9, own))
        card = cwdfm.load(folder / "run").card
    for row in rows:
        print({key: value for key, value in row.items() if key != "scores"}, row["scores"]["valid"])
    config = {"model": MODEL, "molecules": len(own), "sampler": flags, "recipe": card["config"]}
    result = {"config": config, "training_seconds": seconds, "rows": rows}
    write_json(options.out, provenance() | result)


def aromatic(smiles: str) -> bool:
    """Whether a molecule has an aromatic atom."""
    molecule = parse(smiles)
    return molecule is not None and any(atom.GetIsAromatic() for atom in molecule.GetAtoms())


def score(texts: list[str], qm9: data.TokenData, own: list[str]) -> dict[str, Any]:
    """Score samples, and compute the fractions of aromatic and copied molecules."""
    known = CanonicalSet(qm9.texts("train"))
    valid = [text for text in (cwdfm.data.canonical(text) for text in texts) if text is not None]
    return {
        "scores": score_molecules(texts, known, fold_size=len(texts)).to_json(),
        "aromatic_share": sum(map(aromatic, valid)) / max(1, len(valid)),
        "copied_share": sum(text in set(own) for text in valid) / max(1, len(valid)),
    }


if __name__ == "__main__":
    with exit_on_error(resumable=False):
        main(sys.argv[1:])
