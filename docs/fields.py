"""Show the comments of dataclass fields in the API reference.

The fields of this library are described by a comment behind the field, or by the lines above it.
"""

from pathlib import Path
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Turn the comments of attributes into docstrings."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Find the comment of an attribute."""
        if attr.docstring or not attr.lineno or not isinstance(attr.filepath, Path):
            return
        lines = attr.filepath.read_text().splitlines()
        _, _, text = lines[(attr.endlineno or attr.lineno) - 1].partition("  # ")
        above, line = [], attr.lineno - 2
        while lines[line].lstrip().startswith("# "):
            above.insert(0, lines[line].strip().removeprefix("# "))
            line -= 1
        if found := text or " ".join(above):
            attr.docstring = griffe.Docstring(found, parent=attr)
