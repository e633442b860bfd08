"""What the jobs in results/repro took: for docs/results.md, and for `python -m experiments run` itself."""

import json
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from itertools import chain

from experiments.bench.settings import Shapes
from experiments.benchmarks.speed_measured import fact
from experiments.catalog import EXPERIMENTS
from experiments.claims.judging import STORE, read
from experiments.experiment import Plan
from experiments.job import Job
from experiments.jobs import Train
from experiments.measured import Measured
from experiments.sweep import in_order

SLACK = 2.0  # seconds by which jobs of one process may seem to overlap: dates are of whole seconds
PARTS = {"train": "training", "sample": "sampling", "updates": "sampling"}  # others are scores


@dataclass(frozen=True)
class Span:
    """When a job was done, and whether on a machine with a GPU."""

    seconds: float
    end: float
    gpu: str | None

    @property
    def start(self) -> float:
        return self.end - self.seconds + SLACK


@cache
def spans() -> dict[str, Span]:
    """Of all jobs with a result, by name; of earlier runs, and of other jobs, by name and date.

    What those lasted is in results/repro_runs.json. Of earlier runs that are not there yet the date
    alone is on record: they are taken to have lasted as long as the last, so that what was under
    way beside them is not charged with their share.
    """
    found = {}
    for path in STORE.folder.glob("*/result.json"):
        record, name = json.loads(path.read_text()), path.parent.name
        told = record["provenance"]
        runs = {name: told["date"]} | {f"{name} {date}": date for date in record.get("earlier", [])}
        for run, date in runs.items():
            end = datetime.fromisoformat(date).timestamp()
            found[run] = Span(record["seconds"], end, told["hardware"]["gpu"])
    for gpu, gone in read("repro_runs")["runs"].items():
        for run, seconds in gone.items():
            end = datetime.fromisoformat(run.split()[1]).timestamp()
            found[run] = Span(seconds, end, gpu)
    return found


def at_once(some: Iterable[Span], every: Iterable[Span]) -> int:
    """How many of all GPU jobs were under way at a time, at most, while one of some was."""
    order = [span for span in every if span.gpu is not None and span.start < span.end]
    starts, ends = sorted(span.start for span in order), sorted(span.end for span in order)
    most = 1
    for span in some:
        if span.gpu is not None:
            first, last = (bisect_left(starts, time) for time in (span.start, span.end))
            times = starts[first:last]
            most = max([most, *(bisect_right(starts, t) - bisect_right(ends, t) for t in times)])
    return most


def shares(spans: Mapping[str, Span]) -> dict[str, float]:
    """Seconds of the GPU that each job had: those in which n were under way count 1 / n for each.

    What else was under way and left no result, as a run that was cut off, is not known.
    """
    found = {name: 0.0 for name, span in spans.items() if span.gpu is not None}
    changes = sorted(
        change
        for name in found
        for span in (spans[name],)
        for change in ((span.end - span.seconds, name), (span.end, name))
    )
    under_way: set[str] = set()
    last = 0.0
    for time, name in changes:
        for other in under_way:
            found[other] += (time - last) / len(under_way)
        last = time
        under_way ^= {name}  # it begins, or ends
    return found


@cache
def _uses() -> Mapping[Job, int]:
    """In how many experiments each job is."""
    plans = [experiment.plan("small") for experiment in EXPERIMENTS.values()]
    return Counter(chain.from_iterable(in_order(plan.jobs) for plan in plans))


def took(plan: Plan) -> str:
    """What those of its jobs took that are done: a sentence, or nothing."""
    done = {job: spans()[job.name] for job in in_order(plan.jobs) if job.name in spans()}
    on_gpu = {job: span for job, span in done.items() if span.gpu is not None}
    if not on_gpu:
        return ""
    parts = dict.fromkeys(("training", "sampling", "scores"), 0.0)
    had = shares(spans())
    for job in on_gpu:
        parts[PARTS.get(job.kind, "scores")] += had[job.name]
    told = ", ".join(f"{part} {_minutes(found)}" for part, found in parts.items() if found)
    said = f"They took {_minutes(sum(parts.values()))} GPU minutes ({told})"
    rest = sum(span.seconds for job, span in done.items() if job not in on_gpu)
    said += f" and {_minutes(rest)} CPU minutes" if rest else ""
    shared = sum(had[job.name] for job in on_gpu if _uses()[job] > 1)
    if shared:
        said += f"; {_minutes(shared)} GPU minutes are of jobs that other experiments need too"
    most = at_once(on_gpu.values(), spans().values())
    if most > 1:
        clocks = _minutes(sum(span.seconds for span in on_gpu.values()))
        said += f". Up to {most} jobs had the GPU at a time; by their own clocks, {clocks} minutes"
    return f" {said}."


def measured() -> Measured:
    """The summary that lies in the package."""
    runs: dict[str, dict[str, list[float]]] = {}
    had = shares(spans())
    for job in _uses():
        if isinstance(job, Train) and job.name in had:
            models = runs.setdefault(job.corpus, {})
            models.setdefault(job.recipe.model, []).append(had[job.name])
    whole = {}
    for name, experiment in EXPERIMENTS.items():
        jobs = in_order(experiment.plan("small").jobs)
        if all(job.name in spans() for job in jobs):
            whole[name] = round(sum(had.get(job.name, 0.0) for job in jobs) / 60, 2)
    gpu = " or ".join(sorted({span.gpu for span in spans().values() if span.gpu is not None}))
    medians = {
        corpus: {model: round(statistics.median(found) / 60, 1) for model, found in models.items()}
        for corpus, models in runs.items()
    }
    most = at_once(spans().values(), spans().values())
    return Measured(gpu, most, medians, whole, step())


def step() -> float:
    """Of the dearest solver: every proposal is needed for Neighbor weights, uniform source."""
    shapes = Shapes()
    drawn = shapes.sample_batch * shapes.length
    return round(1000 * fact("neighbor-uniform", 1, "ms") / drawn, 2)


def measured_file() -> str:
    """As JSON."""
    return json.dumps(asdict(measured()), indent=2, sort_keys=True) + "\n"


def _minutes(seconds: float) -> str:
    """With a digit behind the point where there are few."""
    minutes = seconds / 60
    if minutes < 0.05:
        return "less than 0.1"
    return f"{minutes:,.1f}" if minutes < 9.95 else f"{minutes:,.0f}"
