"""Molecules that contain the scaffolds of approved drugs, drawn with `moses-uniform-small`.

    python -m experiments.studies.scaffolds --out scaffolds.json --samples DIR
    cwdfm eval DIR/*.jsonl --data none --no-distribution --out REPORT

Every file in DIR is written by `cwdfm sample`; repeat the command to resume. The second
command draws the molecules with their scaffolds highlighted. The settings were chosen with two of
the scaffolds and another seed, by the number of evaluations per accepted molecule.
"""

import sys
from pathlib import Path
from typing import Any

from cwdfm.cli import sample
from cwdfm.data.fragments import Scaffold
from cwdfm.data.properties import PROPERTIES
from cwdfm.data.smiles import canonical, parse
from cwdfm.metrics.filters import passes_filters
from cwdfm.sample_file import read_samples
from experiments.studies.command import save, study_parser

MODEL = "moses-uniform-small"
SETTINGS = "--solver euler --grid kappa --steps 16 --resample 10"
# A drug that contains the scaffold, and the scaffold.
SCAFFOLDS = {
    "sumatriptan": "c1ccc2[nH]ccc2c1",  # indole
    "omeprazole": "c1ccc2[nH]cnc2c1",  # benzimidazole
    "ciprofloxacin": "O=c1cc[nH]c2ccccc12",  # 4-quinolone
    "theophylline": "O=c1[nH]c(=O)c2[nH]cnc2[nH]1",  # xanthine
    "aripiprazole": "c1ccc(N2CCNCC2)cc1",  # phenylpiperazine
    "erlotinib": "c1ccc(Nc2ncnc3ccccc23)cc1",  # 4-anilinoquinazoline
    "celecoxib": "c1ccc(-c2ccnn2-c2ccccc2)cc1",  # 1,5-diphenylpyrazole
    "diazepam": "O=C1CN=C(c2ccccc2)c2ccccc2N1",  # 5-phenyl-1,4-benzodiazepin-2-one
    "clopidogrel": "c1cc2c(s1)CCNC2",  # tetrahydrothienopyridine
    "imatinib": "c1ccc(Nc2nccc(-c3cccnc3)n2)cc1",  # phenylaminopyrimidine
}


def measure(path: Path, fragment: Scaffold) -> dict[str, Any]:
    """Counts and cost of the samples in a file, and properties of the distinct ones."""
    file = read_samples(path)
    molecules = [canonical(text) for text in file.texts]
    kept = {m for m, text in zip(molecules, file.texts, strict=True) if fragment.accepts(text)}
    distinct = [parse(smiles) for smiles in sorted(filter(None, kept))]
    means = {
        name: sum(map(of, distinct)) / len(distinct) for name, of in PROPERTIES.items() if distinct
    }
    return {
        "samples": len(file.texts),
        "valid": sum(m is not None for m in molecules),
        "with_scaffold": sum(map(fragment.accepts, file.texts)),
        "distinct": len(distinct),
        "evaluations": file.head["evaluations"] / len(file.texts),
        "filters": sum(map(passes_filters, distinct)) / max(1, len(distinct)),
        "properties": means,
        "texts": file.texts,
    }


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--samples", type=Path, required=True, help="a folder of sample files")
    parser.add_argument("--n", type=int, default=100, help="samples per scaffold")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = {"model": MODEL, "settings": SETTINGS, "n": options.n, "seed": options.seed}
    rows = []
    for drug, smiles in SCAFFOLDS.items():
        path = options.samples / f"{drug}.jsonl"
        words = f"{MODEL} --n {options.n} --seed {options.seed} {SETTINGS}".split()
        if not path.exists():
            sample.main([*words, "--scaffold", smiles, "--out", str(path)])
        rows.append({"drug": drug, "scaffold": smiles} | measure(path, Scaffold(smiles)))
        shown = ("valid", "with_scaffold", "distinct", "evaluations")
        print(drug, ", ".join(f"{name} {rows[-1][name]:g}" for name in shown), flush=True)
        save(options.out, config=config, rows=rows)
    n = options.n
    claims = {
        "valid >= 95%": all(row["valid"] >= 0.95 * n for row in rows),
        "valid ones contain the scaffold": all(r["with_scaffold"] == r["valid"] for r in rows),
        "distinct >= 50%": all(row["distinct"] >= 0.5 * n for row in rows),
    }
    save(options.out, config=config, claims=claims, rows=rows)
    sys.exit(not all(claims.values()))


if __name__ == "__main__":
    main()
