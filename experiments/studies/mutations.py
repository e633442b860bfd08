"""Mutation audit: whether the tests notice small changes of the code.

    git clone . audit && cd audit
    python -m experiments.studies.mutations --seed 2 --count 25 --out mutations_2.json

Each mutant changes one operator, comparison or constant of a random statement in the working tree,
so run this in a clone. Then the tests that mention the changed module run, the most specific files
first, and the other tests of its folders, until one fails. The golden samples are left out, since
they notice every change. A mutant that survives is a missing test, or it behaves like the original.
Finished mutants are kept in the output file; repeat the command to resume.
"""

import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.studies.command import save, study_parser

# The audited folders and modules, with the folders of their tests.
TESTS = {
    "schedule source weight path loss solver postprocess likelihood recommendation": "core",
    "method baselines": "core baselines cli train",
    "guidance": "guidance",
    "language": "language integrations",
    "pretrained": "model language",
    "metrics": "metrics",
    "data": "data",
    "model": "model language",
    "ops": "ops core",
    "train": "train",
}
# Triton kernels run in an interpreter here; `pytest -m gpu` is their test.
EXCLUDED = ("triton_", "cuda_graph")
COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def replacement(node: ast.AST) -> ast.expr | None:
    """The expression that replaces a node, or None if no rule applies."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in COMPARE:
            return ast.Compare(left, [COMPARE[type(op)]()], right)
        case ast.BinOp(left, op, right) if type(op) in BINARY:
            return ast.BinOp(left, BINARY[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.Invert() | ast.USub(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
    return None


def mutants(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Line, old and new code, and the mutated text of every mutant of a module."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    starts = [sum(len(line.encode()) for line in lines[:i]) for i in range(len(lines))]
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, ast.FunctionDef):
            continue
        body = [node for part in statement.body for node in ast.walk(part)]
        raised = {id(n) for node in body if isinstance(node, ast.Raise) for n in ast.walk(node)}
        for node in body:
            new = replacement(node)
            if new is None or id(node) in raised or not isinstance(node, ast.expr):
                continue
            old, code = ast.get_source_segment(text, node) or "", f"({ast.unparse(new)})"
            first = starts[node.lineno - 1] + node.col_offset
            raw = text.encode()
            changed = raw[:first] + code.encode() + raw[first + len(old.encode()) :]
            yield node.lineno, old, code, changed.decode()


def modules() -> Iterator[tuple[Path, list[Path]]]:
    """The audited modules, each with the files that test it, most specific first."""
    for names, folders in TESTS.items():
        files = [
            path
            for folder in folders.split()
            for path in sorted(Path("tests", folder).glob("test_*.py"))
            if path.stem != "test_golden"
        ]
        texts = {path: path.read_text() for path in files}
        for name in names.split():
            folder = Path("cwdfm", name)
            found = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
            for path in found:
                if path.stem == "__init__" or path.stem.startswith(EXCLUDED):
                    continue
                nodes = ast.parse(path.read_text()).body
                defined = [n.name for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)]
                words = [path.stem, *(word for word in defined if not word.startswith("_"))]
                mentions = {f: sum(texts[f].count(word) for word in words) for f in files}
                yield path, sorted(files, key=lambda f: (-mentions[f], str(f)))


def run_tests(files: list[Path], limit: float) -> str:
    """Return "survived", or "killed" if a test fails or `limit` seconds are not enough."""
    line = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu and not slow"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": "."}
    process = subprocess.Popen(
        [*line, *map(str, files)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "killed (timeout)"
    if process.returncode not in (0, 1, 2):  # 2: a module cannot be imported
        raise RuntimeError(output)
    return "survived" if process.returncode == 0 else "killed"


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600, help="seconds per mutant")
    options = parser.parse_args()
    tested = dict(modules())
    generator = random.Random(options.seed)
    found: list[dict[str, Any]] = []
    if options.out.exists():
        found = json.loads(options.out.read_text())["mutants"]
    config = {"seed": options.seed, "limit": options.limit}
    # A random module, then a random mutant of it: long modules are not audited more than short ones.
    chosen: list[tuple[Path, tuple[int, str, str, str]]] = []
    while len(chosen) < options.count:
        path = generator.choice(sorted(tested))
        choices = [each for each in mutants(path) if (path, each) not in chosen]
        if choices:
            chosen.append((path, generator.choice(choices)))
    for path, (line, old, new, text) in chosen[len(found) :]:
        original, start = path.read_text(), time.monotonic()
        try:
            path.write_text(text)
            outcome = run_tests(tested[path], options.limit)
        finally:
            path.write_text(original)
        row = {"module": str(path), "line": line, "old": old, "new": new, "outcome": outcome}
        found.append(row | {"seconds": round(time.monotonic() - start)})
        save(options.out, config=config, mutants=found)
        print(outcome, f"{path}:{line} {old!r} -> {new!r}", flush=True)
    survived = sum(row["outcome"] == "survived" for row in found)
    print(f"{len(found) - survived} of {len(found)} mutants were killed")


if __name__ == "__main__":
    main()
