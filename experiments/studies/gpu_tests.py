"""Run the tests that need a GPU and record their outcomes.

python -m experiments.studies.gpu_tests --out gpu_tests.json -n 8

Other options, such as `-n 8`, are passed to pytest.
"""

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from experiments.studies.command import save, study_parser


def files() -> list[str]:
    """Test files that mention a GPU. Others may import packages that are not installed here."""
    found = sorted(Path("tests").rglob("test_*.py"))
    return [str(path) for path in found if re.search(r"\bgpu\b|\bCOMPILED\b", path.read_text())]


def outcomes(report: Path) -> tuple[Counter[str], dict[str, str]]:
    """The number of passed, failed and skipped tests of a JUnit report, and reasons of failures."""
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        failure = kinds.get("failure", kinds.get("error"))
        if failure is not None:
            name = f"{case.get('classname')}.{case.get('name')}"
            failed[name] = (failure.get("message") or failure.tag).splitlines()[0]
        counts[
            "failed" if failure is not None else "skipped" if "skipped" in kinds else "passed"
        ] += 1
    return counts, failed


def main() -> int:
    parser = study_parser(__doc__)
    options, rest = parser.parse_known_args()
    if not torch.cuda.is_available():
        print("no GPU found: all of these tests would be skipped", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = pytest.main(["-m", "gpu", *files(), f"--junitxml={report}", *rest])
        if not report.exists():  # pytest has printed the reason
            return int(code)
        counts, failed = outcomes(report)
    save(options.out, config={}, exit_code=int(code), outcomes=counts, failed=failed)
    print(f"{dict(counts)}; wrote {options.out}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
