"""The outcomes of GPU tests."""

from pathlib import Path

from experiments.studies.gpu_tests import files, outcomes

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="good" />
<testcase classname="tests.a" name="left"><skipped message="no" /></testcase>
<testcase classname="tests.a" name="wrong"><failure message="assert 1 == 2&#10;more" /></testcase>
<testcase classname="tests.b" name="early"><error /></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    counts, failed = outcomes(tmp_path / "report.xml")
    assert counts == {"passed": 1, "skipped": 1, "failed": 2}
    assert failed == {"tests.a.wrong": "assert 1 == 2", "tests.b.early": "error"}


def test_gpu_tests_are_found() -> None:
    found = {Path(name).name for name in files()}
    assert {"test_gpu_parity.py", "test_prefetch.py", "test_bd3lm.py"} <= found
    assert "test_parity.py" not in found
