"""Trainings on molecules beside each other: with settings of our tables, and of a search."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from experiments import paper
from experiments.catalog.training import SOURCES
from experiments.catalog.tuned import LOSS, PATH, tuned_trainings
from experiments.cell import Cell, weights_told
from experiments.claims.judging import Missing, Pair, by_folds, by_seed, changes, no_worse, rows_of
from experiments.claims.on_molecules import NOVEL, VALID, Runs, short_of

BOTH = ("SCE", "SCE, context path")  # as tables call the two paths


def behind(pairs: list[Pair], before: str, after: str) -> tuple[dict[str, list[float]], str]:
    """What growths that are clearly smaller than the paper's count, and how far they are from it.

    `before` and `after` are names of the paper's rows, without the source.
    """
    short = {}
    for source, *ours in pairs:
        theirs = [by_folds(paper.molecules(f"{source}, {name}")[0]) for name in (before, after)]
        short[source] = short_of((ours[0], ours[1]), (theirs[0], theirs[1]))
    gains = {"valid, beside the paper's growth": [no_worse(-gap) for gap in short.values()]}
    far = [f"{gap:.0f} ({source})" for source, gap in short.items() if no_worse(-gap) < 0]
    told = (
        ". By the odds of being valid, the paper's growth is larger than ours by "
        f"{' and '.join(far)} standard errors"
    )
    return gains, told if far else ""


@dataclass(frozen=True)
class Compared:
    """Molecules of some trainings beside those of others, by source."""

    told: str
    gains: dict[str, list[float]]  # in valid and novel ones, by how many errors
    valid: list[Pair]

    @property
    def effect(self) -> str:
        """What changes, in a few words."""
        return f"{changes(self.valid)} valid"


def compared(runs: Runs, before: Mapping[str, Cell], after: Mapping[str, Cell]) -> Compared:
    """What changes from some cells to others; both by source."""
    pairs = {
        name: [(s, runs.mean(before[s], what), runs.mean(after[s], what)) for s in before]
        for what, name in ((VALID, "valid"), (NOVEL, "novel"))
    }
    return Compared(
        ", ".join(f"{changes(each)} {name}" for name, each in pairs.items()),
        {name: [b.above(a) for _, a, b in each] for name, each in pairs.items()},
        pairs["valid"],
    )


def by_search(before: str, after: str) -> Compared:
    """Two trainings with the settings that searches found best, which all runs must be there for.

    A context path is sampled with its own weights, as in the paper.
    """
    cells = tuned_trainings("molecules", "small")
    best: dict[tuple[str, str], Cell] = {}
    for source in SOURCES:
        loss, path = (weights_told(*of["molecules", source]) for of in (LOSS, PATH))
        best["CE", source] = cells[source, "CE", "", "Euler"]
        best[BOTH[0], source] = cells[source, BOTH[0], loss, "Euler"]
        best[BOTH[1], source] = cells[source, BOTH[1], path, "own"]
    runs = Runs(tuple(best.values()))
    if any(None in by_seed(cell, VALID) for cell in best.values()):
        raise Missing
    sides = [{s: best[training, s] for s in SOURCES} for training in (before, after)]
    found = compared(runs, *sides)
    return replace(found, told=f"({runs.told()}) {before} to {after}: {found.told}")


def searched(training: str) -> str:
    """What a search of r and s has found of valid molecules, as far as it is done."""
    told = []
    for source in SOURCES:
        rows = rows_of(f"sweep-training-{source}").items()
        found = {labels[1]: row[VALID].value for labels, row in rows if labels[0] == training}
        valid = {setting: value for setting, value in found.items() if value is not None}
        if len(valid) > 1:
            best = max(valid, key=lambda setting: valid[setting])
            told.append(
                f"{source} source, {len(valid)} of {len(found)} settings: "
                f"{min(valid.values()):.0f} to {valid[best]:.0f} valid, the most by {best}"
            )
    searches = "; ".join(told)
    return f". A search of r and s, one run each on a seed of its own: {searches}" if told else ""
