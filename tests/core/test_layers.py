"""Modules import only from their own layer or from lower ones."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cwdfm"

# From the lowest layer up. Parts of one layer must not import each other. A module may have a layer
# different from that of its package.
LAYERS: list[set[str]] = [
    {"errors", "version"},
    {"files"},
    {"provenance", "device", "cache", "hub"},
    {"config", "distributed"},
    {"ops"},
    {"schedule", "source", "data"},
    {"sample_file"},
    {"weight"},
    {"path", "model"},
    {"loss", "guidance"},
    {"likelihood.bound"},
    {"likelihood.elbo", "solver"},
    {"postprocess"},
    {"method"},
    {"baselines"},
    {"solver_config"},
    {"metrics", "language", "recommendation", "trained"},
    {"generation"},
    {"likelihood.dataset"},
    {"pretrained", "report"},
    {"integrations", "train"},
    {"api", "cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(names: tuple[str, ...]) -> str:
    """The part that the module cwdfm.<names> belongs to."""
    module = ".".join(names[:2])
    return module if module in LEVEL else names[0]


def statements(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements below a node, and whether they are inside a function.

    Expressions, which make up most of a tree, contain none.
    """
    inside = inside or isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        children = getattr(tree, name, [])
        for child in children if isinstance(children, list) else []:
            if isinstance(child, ast.stmt):
                yield child, inside
            yield from statements(child, inside)


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports, `from cwdfm.x import y` and `import cwdfm.x` alike."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"relative import in line {node.lineno}"
        return [node.module or ""]
    return []


def test_imports_point_downwards() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = part_of(path.relative_to(PACKAGE).with_suffix("").parts)
        if here == "__init__" or path.name == "__init__.py":
            continue
        assert here in LEVEL, f"{here} has no layer: add it to LAYERS in {__file__}"
        for node, _ in statements(ast.parse(path.read_text())):
            for name in imported(node):
                root, *rest = name.split(".")
                if root != "cwdfm":
                    continue
                there = part_of(tuple(rest)) if rest else "cwdfm"
                if not rest or (there != here and LEVEL[there] >= LEVEL[here]):
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, wrong


# Optional dependencies, imported inside the functions that need them.
OPTIONAL = {"rdkit", "matplotlib", "PIL", "tyro", "triton"}

# Modules that are imported only inside functions.
LOCAL_MODULES = {
    "triton_adaptive_norm",
    "triton_attention",
    "triton_decoder",
    "triton_draw",
    "triton_softmax",
    "triton_random",
    "triton_reveal",
    "triton_reveal_few",
}


def test_core_imports_only_required_dependencies() -> None:
    required = {"torch", "numpy", "numba", "safetensors", "filelock"}
    allowed = required | {"cwdfm"} | sys.stdlib_module_names
    for path in sorted(PACKAGE.rglob("*.py")):
        for node, local in statements(ast.parse(path.read_text())):
            for name in imported(node):
                inside = local or path.stem in LOCAL_MODULES
                assert inside or name.split(".")[-1] not in LOCAL_MODULES, f"{path.name}: {name}"
                fits = allowed | OPTIONAL if inside else allowed
                assert name.split(".")[0] in fits, f"{path.name} imports {name}"


def test_no_test_module_imports_another() -> None:
    """Helpers that several test modules share are in tests/support."""
    tests = Path(__file__).parents[1]
    wrong = []
    for path in sorted(tests.rglob("*.py")):
        for node, _ in statements(ast.parse(path.read_text())):
            names = imported(node)
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                root, *parts = name.split(".")
                if root == "tests" and "support" not in parts[:1]:
                    wrong.append(f"{path.relative_to(tests)} imports {name}")
    assert not wrong, wrong
