"""Time of `cwdfm eval --data moses` for 10,000 molecules.

    python -m experiments.studies.evaluation_time --out evaluation_time.json

The samples are molecules of MOSES' training set, drawn at random: all of them are valid, so every
metric is computed for every one. The first run starts with an empty cache: it prepares MOSES and
the statistics of its test sets. The second one reads them. Target: the second takes less than three
minutes on two cores.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

from cwdfm.data.moses import MOSES
from cwdfm.data.readers import read_column
from cwdfm.provenance import package_version
from experiments.studies.command import save, study_parser
from experiments.studies.startup import seconds

RUNS = ("empty cache", "cached data")
TARGET = 180.0  # seconds, of the second run


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CWDFM_CACHE"] = str(Path(folder, "cache"))
        samples = Path(folder, "samples.smi")
        training = [row[1] for row in read_column(MOSES.path(MOSES.files[0][0]), MOSES.column)]
        molecules = random.Random(options.seed).sample(training, options.n)
        samples.write_text("\n".join(molecules) + "\n")
        for name in RUNS:
            report = str(Path(folder, name))
            line = ["-m", "cwdfm", "eval", str(samples), "--data", "moses", "--out", report]
            cpu, wall = seconds(line)
            rows[name] = {"cpu": cpu, "wall": wall}
            print(f"{name:12} {cpu:6.1f} s CPU {wall:6.1f} s", flush=True)
    versions = {name: package_version(name) for name in ("rdkit", "fcd_torch", "molsets")}
    config = {"n": options.n, "seed": options.seed, "cores": os.cpu_count(), "packages": versions}
    claims = {f"cached data: wall < {TARGET:g} s": rows[RUNS[1]]["wall"] < TARGET}
    save(options.out, config=config, seconds=rows, claims=claims)
    sys.exit(not all(claims.values()))


if __name__ == "__main__":
    main()
