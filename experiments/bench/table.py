"""The table: the time of each implementation with its lower bound and the reference time."""

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.bench.bounds import Work
from experiments.bench.case import Outcome, Record
from experiments.bench.ceilings import Ceilings

TRAINING, PATH = "training-uniform", "context-path"


@dataclass(frozen=True)
class Line:
    """One implementation of one case."""

    case: str
    way: str
    ms: float | None
    memory_gb: float | None
    bound_ms: float | None  # lower bound at peak speed
    limit: str  # arithmetic or memory
    reached: float | None  # bound / time
    times_first: float | None  # time / time of the first implementation
    facts: dict[str, float]
    note: str  # or the reason of a failure


def lines(records: Mapping[str, Record], ceilings: Ceilings) -> list[Line]:
    """The lines of all records."""
    return [
        _line(name, record, outcome, records, ceilings)
        for name, record in records.items()
        for outcome in record.outcomes
    ]


def _line(
    case: str,
    record: Record,
    outcome: Outcome,
    records: Mapping[str, Record],
    ceilings: Ceilings,
) -> Line:
    seconds, first = outcome.seconds, record.outcomes[0].seconds
    if seconds is None:
        return Line(case, outcome.name, None, None, None, "", None, None, {}, outcome.reason)
    work = Work(outcome.flops, outcome.bytes)
    bound = work.seconds(ceilings)
    facts = dict(outcome.facts)
    step = _micro_batch_ms(records)
    if case == PATH and step is not None:
        facts["share_of_training"] = 1e3 * seconds / step
    return Line(
        case=case,
        way=outcome.name,
        ms=1e3 * seconds,
        memory_gb=outcome.memory_gb,
        bound_ms=1e3 * bound,
        limit=work.limit(ceilings),
        reached=bound / seconds,
        times_first=None if first is None else seconds / first,
        facts=facts,
        note=outcome.note,
    )


def _micro_batch_ms(records: Mapping[str, Record]) -> float | None:
    """The time of a training micro-batch, which has as many tokens as the case of the path."""
    found = records.get(TRAINING)
    return None if found is None else found.outcomes[0].facts.get("micro_batch_ms")


HEAD = f"  {'':43} {'ms':>11} {'GB':>6} {'bound ms':>10} {'by':10} {'reached':>8} {'x first':>8}"


def text(lines: list[Line], what: str) -> str:
    """The lines of one case with a heading."""
    return "\n".join([what, HEAD, *(_text(line) for line in lines)])


def _text(line: Line) -> str:
    if line.ms is None or line.bound_ms is None or line.reached is None:
        return f"  {line.way:43} {line.note}"
    memory = "" if line.memory_gb is None else f"{line.memory_gb:.1f}"
    times = "" if line.times_first is None else f"{line.times_first:.2f}"
    facts = [f"{name} {_number(value)}" for name, value in line.facts.items()]
    more = "; ".join([*facts, *([line.note] if line.note else [])])
    return (
        f"  {line.way:43} {_number(line.ms):>11} {memory:>6} {_number(line.bound_ms):>10} "
        f"{line.limit:10} {f'{100 * line.reached:.3g}%':>8} {times:>8}  {more}"
    ).rstrip()


def heading(ceilings: Ceilings, device: str) -> str:
    """The device and its peak speeds."""
    return (
        f"{device}: {ceilings.flops / 1e12:,.3g} TFLOP/s in {ceilings.dtype} matrix products, "
        f"{ceilings.bytes / 1e12:,.3g} TB/s in copies"
    )


def _number(x: float) -> str:
    """At least three significant digits, without exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
