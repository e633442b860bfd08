"""Provenance of results: the command, revision, versions and hardware that produced them."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cwdfm.version import __version__


def provenance() -> dict[str, Any]:
    """Command, date, git revision, package versions and hardware of this process."""
    import torch  # takes seconds, and other functions of this module do not need it

    return {
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "versions": {"cwdfm": __version__}
        | {name: package_version(name) for name in ("torch", "numpy", "numba", "flow_matching")}
        | {"python": platform.python_version()},
        "hardware": {
            "cpu": _cpu(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


@cache
def package_version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed or has no metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache  # the code does not change while the process runs
def _revision() -> str | None:
    """The git commit of the code, with "-dirty" appended if the working tree differs from it.

    Outside a git checkout, as in a copy of the code, this is `$CWDFM_REVISION` or None.
    """
    try:
        line = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        folder = Path(__file__).parent
        shown = subprocess.check_output(line, cwd=folder, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("CWDFM_REVISION")
    return shown.strip()


@cache
def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
