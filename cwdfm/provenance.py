"""Where a result comes from: the command, revision, versions and hardware that made it."""

import json
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

import torch

import cwdfm
from cwdfm.files import replacing


def provenance() -> dict[str, Any]:
    """What a results file must say about the run that wrote it."""
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": _revision(),
        "versions": {"cwdfm": cwdfm.__version__}
        | {name: _version(name) for name in ("torch", "numpy", "numba", "flow_matching")}
        | {"python": platform.python_version()},
        "hardware": {
            "cpu": _cpu(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def write_json(path: Path, data: object) -> None:
    """Write JSON: the old file or the whole new one, never a part, also after a loss of power."""
    with replacing(path) as part, part.open("w") as file:
        file.write(json.dumps(data, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


@cache  # asked once: the code that runs is the one that was read at the start
def _revision() -> str | None:
    """The git commit of the code, marked if the tree differs from it.

    Outside a checkout what CWDFM_REVISION says, for code that was copied; None without.
    """
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("CWDFM_REVISION")
    return commit.stdout.strip()


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
