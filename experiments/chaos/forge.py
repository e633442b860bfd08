"""Forged files: every node of a JSON document deleted, or replaced by a value it must not have."""

import copy
from collections.abc import Iterator
from typing import Any

# Wrong types, sizes that would exhaust memory, paths that leave the folder.
WRONG: tuple[Any, ...] = (
    None, True, -1, 10**30, 1.5, float("nan"), "", "x" * 1000, "../../etc/passwd", "/dev/zero",
    [], [[]], {}, {"class": "os.system"},
)  # fmt: skip


def forgeries(document: Any, values: tuple[Any, ...] = WRONG) -> Iterator[tuple[str, Any]]:
    """Copies of a JSON document with one change each, and a description of the change."""
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
    """The path of each node below this one; of a list, only of its first and last item."""
    if isinstance(node, dict):
        keys: list[Any] = list(node)
    else:
        keys = sorted({0, len(node) - 1}) if isinstance(node, list) and node else []
    for key in keys:
        yield (key,)
        for rest in _paths(node[key]):
            yield (key, *rest)
