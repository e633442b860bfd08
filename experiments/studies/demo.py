"""How long `make demo` takes once everything is installed.

    python -m experiments.studies.demo --out results/demo.json

With an empty cache, so that preparing QM9 is part of it, as on a newcomer's machine.
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
