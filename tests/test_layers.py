"""Data flows one way: a module imports only from its own layer or from lower ones."""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "cwdfm"

# From the ground up; parts on one line may not import each other.
LAYERS: list[set[str]] = [
    {"errors", "provenance"},
    {"random"},
    {"schedule", "source", "categorical"},
    {"times", "weight"},
    {"path", "model"},
    {"loss", "solver"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_downwards() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = part_of(path)
        if here == "__init__":
            continue
        assert here in LEVEL, f"{here} has no layer: give it one in {__file__}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cwdfm"):
                there = (node.module or "").split(".")[1]
                if there != here and LEVEL[there] >= LEVEL[here]:
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {node.module}")
    assert not wrong, wrong


def test_core_imports_torch_and_numpy_only() -> None:
    allowed = {"torch", "numpy", "numba", "cwdfm"} | sys.stdlib_module_names
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
