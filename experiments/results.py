"""Recorded results: packs of JSON lines under results/, compressed with xz.

A pack `results/NAME.jsonl.xz` holds one record per line, `{"name": ..., "record": ...}`.

- `cells/KIND` holds the finished cells of one kind (`train`, `sample`, `text`, ...). A record has
  the cell's description (`job`), its `result`, its duration in `seconds` and its `provenance`
  (command, revision, versions, hardware).
- `studies` holds one record per study of `experiments.studies`.
- `bench` holds the records of `python -m experiments bench`, oldest first.

The tables derived from these packs are the CSV files next to them (see `experiments.report`).
"""

import json
import lzma
from argparse import ArgumentParser
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError
from cwdfm.files import replacing, write_json
from experiments.store import Store
from experiments.tasks.base import Result, Task

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
Records = dict[str, Any]


def read(name: str, folder: Path = RESULTS) -> Records:
    """The records of a pack by name; empty if there is no such pack."""
    path = _path(name, folder)
    if not path.exists():
        return {}
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        entries = map(json.loads, lines)
        return {entry["name"]: entry["record"] for entry in entries}


def write(name: str, records: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write a pack and return its path. Equal records give equal bytes."""
    lines = (json.dumps({"name": key, "record": value}) + "\n" for key, value in records.items())
    path = _path(name, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    return path


def _path(name: str, folder: Path) -> Path:
    return folder / f"{name}.jsonl.xz"


def record(name: str) -> Any:
    """The record of a study; None if there is none."""
    return _cached("studies").get(name)


@cache
def _cached(pack: str) -> Records:
    return read(pack)


def add(pack: str, name: str, content: Any, folder: Path = RESULTS) -> Path:
    """Add a record to a pack, or replace the record of that name."""
    return write(pack, read(pack, folder) | {name: content}, folder)


def collect(run: Path, folder: Path = RESULTS) -> list[str]:
    """Pack the finished cells of a run folder and return their names.

    They replace cells with the same names in the pack.
    """
    found: dict[str, Records] = {}
    folders = run / "jobs" if (run / "jobs").is_dir() else run
    for path in sorted(folders.glob("*/result.json")):
        name = path.parent.name  # KIND-CHECKSUM
        found.setdefault(name.rpartition("-")[0], {})[name] = json.loads(path.read_text())
    for kind, cells in found.items():
        known = read(f"cells/{kind}", folder)
        write(f"cells/{kind}", dict(sorted((known | cells).items())), folder)
    return [name for cells in found.values() for name in cells]


def restore(run: Path, folder: Path = RESULTS) -> int:
    """Unpack the cells into a run folder, so that runs there do not repeat them."""
    cells = [path.name.partition(".")[0] for path in (folder / "cells").glob("*.jsonl.xz")]
    found = {name: each for kind in cells for name, each in read(f"cells/{kind}", folder).items()}
    for name, each in found.items():
        inputs = isinstance(each, str)  # the fingerprint of a corpus or evaluator
        path = run / "jobs" / (f"{name}.json" if inputs else f"{name}/result.json")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, each)
    return len(found)


def restore_command(arguments: list[str]) -> None:
    """`python -m experiments restore DIR`."""
    parser = ArgumentParser("python -m experiments restore", description=restore.__doc__)
    parser.add_argument("folder", type=Path, help="the --out of `python -m experiments run`")
    folder = parser.parse_args(arguments).folder
    print(f"{folder}: {restore(folder)} cells")


def collect_command(arguments: list[str]) -> None:
    """`python -m experiments collect PATH...`."""
    parser = ArgumentParser("python -m experiments collect", description="Add to results/.")
    kinds = "run folders, or JSON files of studies or of the benchmark"
    parser.add_argument("paths", type=Path, nargs="+", help=kinds)
    for path in parser.parse_args(arguments).paths:
        if path.is_dir():
            print(f"{path}: {len(collect(path))} cells")
        elif path.suffix == ".json" and path.is_file():
            content = json.loads(path.read_text())
            pack = "bench" if "ceilings" in content else "studies"
            print(f"{path} -> {add(pack, path.stem, content)}")
        else:
            raise InputError(f"{path} is neither a folder nor a JSON file")


class Recorded(Store):
    """The packed cells, used like the store of a run folder."""

    def __init__(self) -> None:
        super().__init__(RESULTS / "cells")

    def record(self, task: Task) -> Result | None:
        found: Result | None = _cached(f"cells/{task.kind}").get(task.name)
        return found
