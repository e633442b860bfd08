"""Sections of docs/results.md: the paper's tables and figures, from results/repro."""

import json
import shlex
from collections.abc import Collection, Iterator
from dataclasses import replace

from experiments.benchmarks.contents import claimed
from experiments.benchmarks.repro_costs import took
from experiments.catalog import EXPERIMENTS
from experiments.claims.judging import STORE
from experiments.experiment import Experiment, Plan, numbered
from experiments.listing import place
from experiments.scores import Context, TestLikelihood
from experiments.sweep import in_order
from experiments.table import Column, Row, Table, Value

LOST = {"71b471869d12": "71b471833dc3"}  # names of no commit, and those taken to be meant


def shown_in_repro() -> Iterator[tuple[Experiment, Plan, list[Table]]]:
    """The paper's tables and figures of which results/repro has most at small scale."""
    for experiment in EXPERIMENTS.values():
        plan = experiment.plan("small")
        tables = [done(found) for found in map(filled, plan.tables(STORE)) if _half(found)]
        if tables:
            yield experiment, plan, tables


def repro() -> list[tuple[str, str, str]]:
    """Names, places in the paper and sections: the paper's own in its order, then those beyond."""
    parts = []
    for experiment, plan, tables in sorted(shown_in_repro(), key=lambda each: place(each[0])):
        shown = "\n".join(each.markdown() for each in tables)
        for stem, figure in numbered(experiment.name, plan.figures(STORE)):
            shown += f"\n![{figure.title}](figures/{stem}.png)\n"
        title = experiment.title[:1].upper() + experiment.title[1:]
        section = (
            f"## {title}, at small scale\n\n"
            f"{_in_paper(experiment)}`python -m experiments run {experiment.name} --scale small`: "
            f"{plan.progress(STORE)} are done.{took(plan)}{_remark(experiment, plan)}\n\n"
            f"{claimed(experiment.name)}{shown}".rstrip()
        )
        parts.append((experiment.name, experiment.paper, section))
    return parts


def left_out(shown: Collection[str]) -> list[str]:
    """A paragraph on the experiments of which there is too little to show, if there are any."""
    told = [
        f"`{name}` ({experiment.plan('small').progress(STORE)})"
        for name, experiment in EXPERIMENTS.items()
        if name not in shown
    ]
    return [f"Not half done at small scale, and not shown: {', '.join(told)}."] if told else []


def _in_paper(experiment: Experiment) -> str:
    """Which of the paper's tables and figures it is."""
    return (
        f"**{experiment.paper} of the paper.** " if experiment.paper else "**Beyond the paper.** "
    )


def _remark(experiment: Experiment, plan: Plan) -> str:
    """By which models claims are judged, and what test perplexities count in."""
    if experiment.name.startswith("steps-text-"):
        source = experiment.name.removeprefix("steps-text-")
        return (
            f" Of the claims, the numbers are those of a [longer "
            f"training](#text-at-small-scale-{source}-source), and both decide together."
        )
    for job in plan.jobs:
        if isinstance(job, TestLikelihood) and (done := STORE.result(job)) is not None:
            length = job.model.recipe.length
            if done["result"]["tokens"] == job.rows * length:
                return (
                    " The end tokens that fill up the corpus's last window, of which today's code "
                    f"takes no account, count in: fewer than {length} of {job.rows * length:,}."
                )
        if isinstance(job, Context):
            recipe = job.model.recipe
            return (
                f" Of a flow with a {recipe.source} source and {recipe.steps:,} steps of "
                f"{recipe.batch_size}, as in the main table. The claims are judged by a [longer "
                f"training](#text-at-small-scale-{recipe.source}-source)."
            )
    return ""


def origins() -> str:
    """By what the jobs were done, and what their records leave open."""
    paths = list(STORE.folder.glob("*/result.json"))
    told = [json.loads(path.read_text())["provenance"] for path in paths]
    plans = [experiment.plan("small") for experiment in EXPERIMENTS.values()]
    made = {job.name for job in in_order(job for plan in plans for job in plan.jobs)}
    kept = sum(path.parent.name in made for path in paths)
    scripts = sum(shlex.split(each["command"])[1].endswith(".py") for each in told)
    later = sum("revision_told" in each for each in told)
    dirty = sum((each["revision"] or "").endswith("-dirty") for each in told)
    unknown = sum(each["revision"] is None for each in told)
    parts = [
        "## Where results come from\n\n"
        "Above each table of `python -m experiments run` stands the command that makes its jobs, "
        "`python -m experiments run NAME --scale small`; not all of them were done by it. A "
        "job's folder is named by a checksum of its settings alone (and a version of its kind), "
        "whatever command does it: of "
        f"{len(paths):,} results here {kept:,} are of jobs that `python -m experiments run` makes today. "
        f"{scripts} of them record one of several scripts outside the repository, which hand the "
        "jobs of several experiments to `experiments.sweep.work`, as `python -m experiments run` does; "
        f"{len(paths) - scripts:,} record `python -m experiments run` itself.",
        f"The revision of {later} was written in afterwards, for code that was copied without git "
        f"(`revision_told`); {dirty} had changes that were not committed (`-dirty`), and of "
        f"{unknown} none is known.",
    ]
    for lost, meant in LOST.items():
        dates = sorted(each["date"] for each in told if each["revision"] == lost)
        parts.append(
            f"{len(dates)}, of {dates[0][:16]} to {dates[-1][:16]}, name `{lost}`, as do other "
            "results of that hour, and no commit of the repository has that name. "
            f"`{meant}`, made a few minutes before them, begins with the same seven digits and is "
            "taken to be meant. What was committed from then on until the last of them changes, of "
            "the package, the command line of `python -m experiments run` alone."
        )
    return " ".join(parts)


def filled(found: Table) -> Table:
    """A table without its blank columns, which are told below it."""
    blank = [
        column
        for i, column in enumerate(found.columns)
        if all(row.ours[i].value is None for row in found.rows)
    ]
    if not blank or len(blank) == len(found.columns):
        return found

    def kept(columns: tuple[Column, ...], values: tuple[Value, ...]) -> tuple[Value, ...]:
        pairs = zip(columns, values, strict=bool(values))
        return tuple(value for column, value in pairs if column not in blank)

    rows = [
        Row(row.labels, kept(found.columns, row.ours), kept(found.paper, row.paper))
        for row in found.rows
    ]
    told = f"Not done yet: {'; '.join(column.name for column in blank)}."
    return replace(
        found,
        columns=tuple(c for c in found.columns if c not in blank),
        rows=tuple(rows),
        paper=tuple(c for c in found.paper if c not in blank),
        notes=(*found.notes, told),
    )


def _half(found: Table) -> bool:
    """Whether half of the cells have a number; the data's own do not count."""
    cells = [value.value for row in found.rows if "data" not in row.labels for value in row.ours]
    return bool(cells) and sum(value is not None for value in cells) >= 0.5 * len(cells)


def done(found: Table) -> Table:
    """A table without its blank rows, which are told below it."""
    blank = [row for row in found.rows if all(value.value is None for value in row.ours)]
    if not blank:
        return found
    named: dict[tuple[str, ...], list[str]] = {}  # rows that differ in their last label alone
    for row in blank:
        *others, last = filter(None, row.labels)
        named.setdefault(tuple(others), []).append(last)
    told = "; ".join(" ".join((*others, ", ".join(each))) for others, each in named.items())
    rows = tuple(row for row in found.rows if row not in blank)
    return replace(found, rows=rows, notes=(*found.notes, f"Not done yet: {told}."))
