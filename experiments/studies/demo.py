"""Duration of `make demo` after installation.

    python -m experiments.studies.demo --out demo.json

The cache is empty at the start, so the preparation of QM9 is included.
"""

import argparse
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from cwdfm.cli import demo
from cwdfm.files import write_json
from cwdfm.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        os.environ["CWDFM_CACHE"] = f"{folder}/cache"
        start = time.perf_counter()
        demo.main(["--out", f"{folder}/demo"])
        seconds = time.perf_counter() - start
        scores = json.loads(Path(folder, "demo", "scores.json").read_text())
    config = {"cores": os.cpu_count()}
    write_json(options.out, provenance() | {"config": config, "seconds": seconds, "scores": scores})


if __name__ == "__main__":
    main()
