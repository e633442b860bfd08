"""Data flows one way: a module imports only from its own layer or from lower ones."""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cwdfm"

# From the ground up; parts on one line may not import each other. A module of a part may have a
# layer of its own.
LAYERS: list[set[str]] = [
    {"errors", "version"},
    {"files"},
    {"provenance", "device", "cache"},
    {"config", "distributed", "sample_file"},
    {"ops"},
    {"schedule", "source", "data"},
    {"weight"},
    {"path", "model"},
    {"loss"},
    {"likelihood.bound"},
    {"likelihood.elbo", "solver"},
    {"postprocess"},
    {"method"},
    {"baselines"},
    {"solver_config"},
    {"metrics"},
    {"pretrained"},
    {"generation", "report"},
    {"likelihood.dataset"},
    {"train"},
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(names: tuple[str, ...]) -> str:
    """The part that the module cwdfm.<names> belongs to."""
    module = ".".join(names[:2])
    return module if module in LEVEL else names[0]


def test_imports_point_downwards() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = part_of(path.relative_to(PACKAGE).with_suffix("").parts)
        if here == "__init__" or path.name == "__init__.py":
            continue
        assert here in LEVEL, f"{here} has no layer: give it one in {__file__}"
        for node in ast.walk(ast.parse(path.read_text())):
            for module in (name for name in imported(node) if name.split(".")[0] == "cwdfm"):
                there = part_of(tuple(module.split(".")[1:]) or ("__init__",))
                if there != here and LEVEL.get(there, len(LAYERS)) >= LEVEL[here]:
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not wrong, wrong


# Extras: imported inside the functions that need them, so that the core works without.
OPTIONAL = {"rdkit", "matplotlib", "PIL", "tyro", "triton"}

# Modules that are themselves imported only inside functions.
LOCAL_MODULES = {
    "triton_adaptive_norm",
    "triton_draw",
    "triton_head",
    "triton_softmax",
    "triton_random",
    "triton_reveal",
    "triton_reveal_few",
    "triton_reveal_start",
    "triton_rotary",
    "triton_short_attention",
}


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_core_imports_only_required_dependencies() -> None:
    required = {"torch", "numpy", "numba", "safetensors", "filelock"}
    allowed = required | {"cwdfm"} | sys.stdlib_module_names
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        local = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            for name in imported(node):
                inside = id(node) in local or path.stem in LOCAL_MODULES
                assert inside or name.split(".")[-1] not in LOCAL_MODULES, f"{path.name}: {name}"
                fits = allowed | OPTIONAL if inside else allowed
                assert name.split(".")[0] in fits, f"{path.name} imports {name}"
