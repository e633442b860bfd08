"""Run the tests that need a GPU, and record how they went.

python -m experiments.studies.gpu_tests --out results/gpu_tests.json -n 8
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from cwdfm.files import write_json
from cwdfm.provenance import provenance


def files() -> list[str]:
    """Those that speak of GPUs: others may import what this machine lacks."""
    found = sorted(Path("tests").rglob("test_*.py"))
    return [str(path) for path in found if re.search(r"\bgpu\b|\bCOMPILED\b", path.read_text())]


def outcomes(report: Path) -> tuple[Counter[str], dict[str, str]]:
    """How many tests passed, failed or were skipped by a JUnit report, and why those failed."""
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        wrong = kinds.get("failure", kinds.get("error"))
        if wrong is not None:
            name = f"{case.get('classname')}.{case.get('name')}"
            failed[name] = (wrong.get("message") or wrong.tag).splitlines()[0]
        counts[
            "failed" if wrong is not None else "skipped" if "skipped" in kinds else "passed"
        ] += 1
    return counts, failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the tests that need a GPU; others go to pytest."
    )
    parser.add_argument("--out", type=Path, required=True)
    options, rest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("there is no GPU here; these tests would all be skipped", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = pytest.main(["-m", "gpu", *files(), f"--junitxml={report}", *rest])
        if not report.exists():  # pytest has said why
            return int(code)
        counts, failed = outcomes(report)
    record = {"config": {}, "exit_code": int(code), "outcomes": counts, "failed": failed}
    write_json(options.out, provenance() | record)
    print(f"{dict(counts)}; written: {options.out}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
