"""What `python -m experiments bench` measured, from results/bench, and how the page on speed writes numbers."""

import json
from pathlib import Path

from experiments.benchmarks.markdown import Result

FOLDER = Path(__file__).parents[2] / "results" / "bench"
VOCAB = 50_257  # of the networks that were measured


def newest() -> dict[str, tuple[Result, list[Result]]]:
    """Of every case, the file that measured it last and its lines there."""
    found: dict[str, tuple[Result, list[Result]]] = {}
    files = [json.loads(path.read_text()) for path in FOLDER.glob("*.json")]
    for result in sorted(files, key=lambda result: str(result["date"])):
        for case in result["cases"]:
            lines = [line for line in result["table"] if line["case"] == case]
            found[case] = (result, lines)
    return found


def fact(case: str, way: int, name: str) -> float:
    """A number of one way of a case."""
    line = newest()[case][1][way]
    return float(line[name] if name in line else line["facts"][name])


def number(x: float | None) -> str:
    """Three digits that count, or all before the point."""
    if x is None:
        return ""
    return f"{x:,.0f}" if round(x, 1) >= 100 else f"{x:#.3g}"  # of 100 that would be "100."


def share(x: float | None) -> str:
    """As a percentage, with digits where it is small."""
    if x is None:
        return ""
    return f"{100 * x:.0f}%" if x >= 0.01 else f"{100 * x:.2g}%"
