"""The list of experiments: which of the paper's tables and figures they are, and what they cost."""

import re

from experiments import paper
from experiments.catalog import EXPERIMENTS
from experiments.experiment import Experiment
from experiments.measured import measured

UNKNOWN = "not measured"

# The paper's tables and figures that no job makes, and what they are.
NO_EXPERIMENTS = {
    paper.figure("example"): "a drawn example",
    paper.table("hyperparams"): "the training settings: `cwdfm train owt-paper --help`, "
    "`cwdfm train qm9-paper --help`",
}
_WIDE = max(map(len, EXPERIMENTS))  # letters of the longest name


def listed() -> str:
    """A line each: name, GPU minutes at small scale, place in the paper, subject."""
    found = measured()
    own = sorted((e for e in EXPERIMENTS.values() if e.paper), key=place)
    beyond = [e for e in EXPERIMENTS.values() if not e.paper]
    return "\n".join(
        [
            f"{'name':{_WIDE + 2}} {'GPU minutes':>{len(UNKNOWN)}}  {'in the paper':16} subject",
            "",
            "the paper's tables and figures:",
            *(f"{_head(e)}  {e.paper:16} {_subject(e)}" for e in own),
            "",
            "beyond the paper: controls and causes:",
            *(f"{_head(e)}  {_subject(e)}" for e in beyond),
            "",
            f"  {'all':{_WIDE}} {'':{len(UNKNOWN)}}  all of them",
            "",
            "The paper's own may be named by their numbers there: figure-4, table-5. Two are no "
            "experiments:",
            *(f"{number} is {what}." for number, what in NO_EXPERIMENTS.items()),
            "GPU minutes: what all jobs of an experiment took at small scale, also those that "
            "others need too,",
            f"of an {found.gpu} that up to {found.at_once} jobs had at a time "
            f"(--workers {found.at_once}), each of n for 1/n of it; one after another",
            "they take longer. Not measured: not all done yet.",
        ]
    )


def of_the_paper(word: str) -> list[str]:
    """The experiments of a table or figure by its number there: figure-4, fig4, "Table 5"."""
    return [e.name for e in EXPERIMENTS.values() if _numbered(word, e.paper)]


def no_experiment(word: str) -> str:
    """What a table or figure is that no job makes, by its number; nothing of others."""
    told = (f"{n} is {what}" for n, what in NO_EXPERIMENTS.items() if _numbered(word, n))
    return next(told, "")


def last_of(word: str) -> str:
    """The last of the paper's tables, if a word asks for one by its number, or of its figures."""
    asked = _asked(word)
    if asked is None:
        return ""
    return f"Table {len(paper.TABLES)}" if asked[1] == "tab" else f"Figure {len(paper.FIGURES)}"


def _asked(word: str) -> re.Match[str] | None:
    """Whether it is tables or figures of the paper that a word asks for, and its number."""
    return re.fullmatch(r"(tab|fig)[a-z]*[ -]?(\d+)", word.lower())


def _numbered(word: str, place: str) -> bool:
    """Whether a place in the paper, such as "Figures 2 and 6", is what a word (fig2) asks for."""
    asked = _asked(word)
    if asked is None or not place.lower().startswith(asked[1]):
        return False
    return asked[2] in re.findall(r"\d+", place)


def _head(experiment: Experiment) -> str:
    minutes = measured().experiments.get(experiment.name)
    told = UNKNOWN if minutes is None else f"{minutes:,.0f}"
    return f"  {experiment.name:{_WIDE}} {told:>{len(UNKNOWN)}}"


def place(experiment: Experiment) -> tuple[bool, bool, int]:
    """The paper's tables first, in their order, then its figures, then what is beyond it."""
    first = next(iter(re.findall(r"\d+", experiment.paper)), "0")
    return not experiment.paper, experiment.paper.startswith("Figure"), int(first)


def _subject(experiment: Experiment) -> str:
    """What it is about; table or figure, the heading above or the paper's number says."""
    kind, colon, subject = experiment.title.partition(": ")
    return subject if colon else kind
