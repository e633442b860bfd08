"""`benchmarks/share_gpu.sh`, with stand-ins for Python and for NVIDIA's control program."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "share_gpu.sh"
CONTROL = """#!/bin/sh
echo control "${1-$(cat)}" >> "$CALLS"
"""
PYTHON = """#!/bin/sh
echo python "$@" >> "$CALLS"
case "$*" in *--dry-run) exit $FIRST ;; esac
exit $LATER
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    found = tmp_path / "tools"
    found.mkdir()
    for name, text in (("python", PYTHON), ("nvidia-cuda-mps-control", CONTROL)):
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    return found


def shared(tools: Path, *arguments: str, first: int = 0, later: int = 0) -> tuple[int, list[str]]:
    """The exit code, and what was called: exits of the dry run and of the workers are given."""
    calls = tools / "calls"
    set_here = {"CALLS": str(calls), "FIRST": str(first), "LATER": str(later)}
    found = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"} | set_here
    ended = subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, env=found)
    return ended.returncode, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("later", "code"), [(0, 0), (124, 0), (1, 1), (2, 2)])
def test_workers_begin_when_a_dry_run_has_passed(
    tools: Path, tmp_path: Path, later: int, code: int
) -> None:
    asked = ["losses", "--out", str(tmp_path / "out")]
    ended, calls = shared(tools, "2", "100", *asked, later=later)
    line = f"python -m cwdfm repro {' '.join(asked)}"
    assert ended == code
    assert calls[:2] == [f"{line} --dry-run", "control -d"]
    assert calls[2:4] == [f"{line} --wait 3 --limit 90"] * 2
    assert calls[4:] == ["control quit"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "worker-1.log",
        "worker-2.log",
    ]


def test_what_is_refused_ends_it_before_any_worker_begins(tools: Path, tmp_path: Path) -> None:
    asked = ["losses", "--out", str(tmp_path / "out"), "--only", "tran"]
    ended, calls = shared(tools, "2", "100", *asked, first=2)
    assert ended == 2
    assert calls == [f"python -m cwdfm repro {' '.join(asked)} --dry-run"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", [("2", "losses", "--out", "x"), ("two", "9", "losses"), ()])
def test_wrong_numbers_are_refused(tools: Path, given: tuple[str, ...]) -> None:
    assert shared(tools, *given) == (2, [])
