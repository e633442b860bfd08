"""Forge files: delete or replace each node of a JSON document by a wrong value, one at a time."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cwdfm.cache import content_digest
from cwdfm.data.dataset import _checksum

# Wrong types, sizes that would exhaust memory, and paths outside the folder.
WRONG: tuple[Any, ...] = (
    None, True, -1, 10**30, 1.5, float("nan"), "", "x" * 1000, "../../etc/passwd", "/dev/zero",
    [], [[]], {}, {"class": "os.system"},
)  # fmt: skip


def forgeries(document: Any, values: tuple[Any, ...] = WRONG) -> Iterator[tuple[str, Any]]:
    """Yield copies of a JSON document with one change each, and a description of the change."""
    for path in _paths(document):
        *above, last = path
        for value in (..., *values):
            forged = copy.deepcopy(document)
            parent = forged
            for key in above:
                parent = parent[key]
            if value is ...:
                del parent[last]
            else:
                parent[last] = value
            yield f"{'.'.join(map(str, path))} = {value!r:.40}", forged


def _paths(node: Any) -> Iterator[tuple[Any, ...]]:
    """The path of each node below this one; for a list, of its first and last item only."""
    if isinstance(node, dict):
        keys: list[Any] = list(node)
    else:
        keys = sorted({0, len(node) - 1}) if isinstance(node, list) and node else []
    for key in keys:
        yield (key,)
        for rest in _paths(node[key]):
            yield (key, *rest)


def read_document(path: Path) -> Any:
    """The JSON document in a file: the metadata of a `.npz` file, a list of JSON lines."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            return json.loads(str(found["metadata"]))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())


def write_document(path: Path, document: Any) -> None:
    """Write a forged document, with the checksums that a forger would also write."""
    if path.suffix == ".jsonl":
        lines = document if isinstance(document, list) else [document]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return
    if path.suffix == ".npz":
        with np.load(path) as found:
            arrays: dict[Any, Any] = {"train": found["train"], "valid": found["valid"]}
        document.pop("sha256", None)
        document["sha256"] = _checksum(document, arrays)
        np.savez(path, metadata=np.array(json.dumps(document)), **arrays)
        return
    document = json.loads(json.dumps(document))
    if path.name == "config.json" and isinstance(document.get("sha256"), dict):
        rest = {name: value for name, value in document.items() if name != "sha256"}
        document["sha256"]["config"] = content_digest(rest)
    if document.get("magic") == "cwdfm.text":
        document.pop("checksum", None)
        document["checksum"] = content_digest(document)
    path.write_text(json.dumps(document))
