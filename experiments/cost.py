"""What jobs that are yet to be done cost: trainings, which is what takes most of the time."""

from collections import Counter
from collections.abc import Iterable

from experiments.job import Job
from experiments.jobs import Corpus, Sample, Train
from experiments.measured import measured
from experiments.scale import Scale
from experiments.scores import Updates

DAY = 24 * 60  # minutes
# Of a run, by the paper: 4.5 days and 30 minutes on eight H100s.
PAPER: dict[Corpus, float] = {"text": 8 * 4.5 * DAY, "molecules": 8 * 30}
ON_H200 = 12 * DAY  # of a run on text, by docs/speed.md


def trainings(todo: Iterable[Job]) -> str:
    """How many of the jobs are trainings."""
    runs = Counter(job.corpus for job in todo if isinstance(job, Train))
    told = [f"{count} on {corpus}" for corpus, count in sorted(runs.items())]
    return f"trainings among them: {', '.join(told) or 'none'}"


def cost(todo: Iterable[Job], scale: Scale) -> str:
    """What to expect of these jobs, with the arithmetic; nothing of none."""
    order = list(todo)
    if not order:
        return ""
    if scale == "smoke":
        return "on one CPU core a minute or less for an experiment, a few minutes for all together"
    counts = Counter((j.corpus, j.recipe.model) for j in order if isinstance(j, Train))
    if not counts:
        return f"no training is to be done here; {_rest(order, scale)}"
    parts, known = [], []
    for (corpus, model), count in sorted(counts.items()):
        runs = f"{count} training{'s' if count > 1 else ''} on {corpus}"
        each = _each(corpus, model, scale)
        if each is None:
            parts.append(f"{runs}, of a kind that was not measured")
            continue
        known.append(count * each)
        told = f"{runs} x {gpu_time(each)} = {gpu_time(known[-1])}"
        if scale == "paper" and corpus == "text":
            told += f" (about {gpu_time(count * ON_H200)} on H200s, by docs/speed.md)"
        parts.append(told)
    if len(known) > 1:
        parts.append(f"together {gpu_time(sum(known))}")
    return f"{', '.join(parts)}; {_by(scale)}; {_rest(order, scale)}"


def _rest(order: Iterable[Job], scale: Scale) -> str:
    """What comes on top of trainings: known of sampling by the paper's network."""
    drawn = [j for j in order if isinstance(j, Sample | Updates)]
    tokens = sum(j.n * j.steps * j.model.recipe.length for j in drawn)
    if scale != "paper" or not tokens:
        return "what other jobs take is not known beforehand"
    most = gpu_time(tokens * measured().step / 60e6)
    return f"sampling takes at most {most} more on H200s, by docs/speed.md; scores come on top"


def gpu_time(minutes: float) -> str:
    """In a unit that suits it."""
    for unit, size in (("days", DAY), ("hours", 60)):
        if minutes >= 2 * size:
            return f"{_short(minutes / size)} GPU {unit}"
    return f"{_short(minutes)} GPU minutes"


def _each(corpus: Corpus, model: str, scale: Scale) -> float | None:
    """Minutes of a run."""
    return PAPER[corpus] if scale == "paper" else measured().runs.get(corpus, {}).get(model)


def _by(scale: Scale) -> str:
    """Whose times these are."""
    if scale == "paper":
        return "by the paper's times on H100s"
    found = measured()
    return (
        f"by median runs of our own on an {found.gpu} that up to {found.at_once} jobs shared "
        f"(--workers {found.at_once}; one after another they take longer; single runs differ, so "
        f"`python -m experiments list` may have less for all jobs of an experiment)"
    )


def _short(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")
