"""The list of experiments, with their cost and the table or figure of the paper they reproduce."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments import paper
from experiments.catalog import EXPERIMENTS, PENDING
from experiments.experiment import Experiment

UNKNOWN = "not measured"
COSTS = Path(__file__).with_name("costs.json")

# Tables and figures of the paper that need no experiment.
NO_EXPERIMENT = {
    "Figure 1": "an illustration",
    "Table 4": "the training settings: `cwdfm train owt-paper --help`, "
    "`cwdfm train qm9-paper --help`",
}
_WIDTH = max(map(len, EXPERIMENTS))


@dataclass(frozen=True)
class Costs:
    """Measured cost at small scale. Tasks that shared a GPU share its time equally."""

    gpu: str
    workers: int  # number of workers that shared the GPU
    minutes: dict[str, float]  # GPU minutes of each experiment


@cache
def costs() -> Costs:
    return Costs(**json.loads(COSTS.read_text()))


def list_experiments() -> str:
    """One line per experiment: name, GPU minutes at small scale, number in the paper, subject."""
    measured = costs()
    in_paper = sorted((e for e in EXPERIMENTS.values() if e.paper), key=paper_order)
    others = [e for e in EXPERIMENTS.values() if not e.paper]
    return "\n".join(
        [
            f"{'name':{_WIDTH + 2}} {'GPU minutes':>{len(UNKNOWN)}}  {'in the paper':16} subject",
            "",
            "tables and figures of the paper:",
            *(f"{_head(e)}  {e.paper:16} {e.title}" for e in in_paper),
            "",
            "further experiments:",
            *(f"{_head(e)}  {e.title}" for e in others),
            "",
            f"  {'all':{_WIDTH}} {'':{len(UNKNOWN)}}  all of them",
            "",
            "The paper's tables and figures can be named by number: figure-4, table-5.",
            *(f"{number} is {reason}." for number, reason in NO_EXPERIMENT.items()),
            "GPU minutes are measured at small scale and include tasks that experiments share.",
            "~ is an estimate for one H200 without other work.",
            "Experiments without results, the most informative per minute first:",
            f"{', '.join(PENDING)}.",
            f"{measured.workers} workers shared one {measured.gpu} (--workers {measured.workers}).",
        ]
    )


def by_paper_number(word: str) -> list[str]:
    """The experiments of a table or figure of the paper: figure-4, fig4, "Table 5"."""
    return [e.name for e in EXPERIMENTS.values() if _matches(word, e.paper)]


def explain_missing(word: str) -> str:
    """Why a table or figure of the paper has no experiment; empty if it has one."""
    reasons = (
        f"{name} is {reason}" for name, reason in NO_EXPERIMENT.items() if _matches(word, name)
    )
    return next(reasons, "")


def last_in_paper(word: str) -> str:
    """The last table or figure of the paper, if `word` is the number of one, such as "fig2"."""
    match = _parse(word)
    if match is None:
        return ""
    return f"Table {paper.TABLES}" if match[1] == "tab" else f"Figure {paper.FIGURES}"


def _parse(word: str) -> re.Match[str] | None:
    return re.fullmatch(r"(tab|fig)[a-z]*[ -]?(\d+)", word.lower())


def _matches(word: str, location: str) -> bool:
    """Whether a word such as "fig2" matches a location such as "Figures 2 and 6"."""
    match = _parse(word)
    if match is None or not location.lower().startswith(match[1]):
        return False
    return match[2] in re.findall(r"\d+", location)


def _head(experiment: Experiment) -> str:
    minutes = costs().minutes.get(experiment.name)
    estimated = f"~{experiment.estimate}" if experiment.estimate else UNKNOWN
    text = estimated if minutes is None else f"{minutes:,.0f}"
    return f"  {experiment.name:{_WIDTH}} {text:>{len(UNKNOWN)}}"


def paper_order(experiment: Experiment) -> tuple[bool, bool, int]:
    """Sort key: tables of the paper, its figures, further experiments."""
    first = next(iter(re.findall(r"\d+", experiment.paper)), "0")
    return not experiment.paper, experiment.paper.startswith("Figure"), int(first)
