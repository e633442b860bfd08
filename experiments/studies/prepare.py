"""Time and memory of preparing a text corpus.

    python -m experiments.studies.prepare --corpus novels.tar.xz --out prepare.json

Each measurement runs in a separate process. Memory is the peak resident set of the process and of
its largest worker. It should not depend on the number of documents.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cwdfm.files import write_json
from cwdfm.provenance import provenance
from experiments.studies.timing import check_targets

MEASURE = """
import json, resource, sys, time
from cwdfm.data import CORPORA, find_corpus, prepare
corpus, out, workers, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if __name__ == "__main__":
    start = time.perf_counter()
    made = prepare(
        find_corpus(corpus), "gpt2", 512, out, workers=workers, limit=limit or None
    )
    seconds = time.perf_counter() - start
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = [resource.getrusage(w).ru_maxrss / 1024 for w in who]
    rows = len(made.train) + len(made.valid)
    print(json.dumps({"seconds": seconds, "rows": rows, "peak_mib": peak, "report": made.report}))
"""


def measure(corpus: str, workers: int, limit: int = 0) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        script = Path(folder) / "measure.py"
        script.write_text(MEASURE)
        words = [corpus, f"{folder}/out", str(workers), str(limit)]
        done = subprocess.run(
            [sys.executable, str(script), *words], check=True, capture_output=True, text=True
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"workers": workers, "limit": limit, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    start = time.perf_counter()
    cases = [measure(options.corpus, 2), measure(options.corpus, 1), measure(options.corpus, 1, 50)]
    whole, half = (sum(c["peak_mib"]) for c in cases[1:])
    config = {"corpus": Path(options.corpus).name, "tokenizer": "gpt2", "length": 512}
    result = provenance() | {
        "config": config,
        "cases": cases,
        "memory_whole_over_half": whole / half,
    }
    write_json(options.out, result)
    for case in cases:
        print({k: v for k, v in case.items() if k != "report"})
    print(f"total: {time.perf_counter() - start:.0f} s")
    check_targets(
        {
            "2 workers take under 2 minutes": cases[0]["seconds"] < 120,
            "twice the documents take at most 1.2 times the memory": whole / half < 1.2,
        }
    )


if __name__ == "__main__":
    main()
