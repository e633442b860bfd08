"""Run the cases, save each result, and print a table. An interrupted run can resume.

The table shows the time of each implementation with its lower bound and the time relative to the
first implementation of the case.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cwdfm.errors import InputError
from cwdfm.files import check_writable, write_json
from cwdfm.provenance import provenance
from experiments.bench import pieces, sampling, training
from experiments.bench.bounds import Ceilings
from experiments.bench.measure import Case, Record, free, measure_ceilings
from experiments.bench.settings import Settings
from experiments.bench.subject import peer_version

Say = Callable[[str], object]
TRAINING, PATH = "training-uniform", "context-path"
HEAD = f"  {'':43} {'ms':>11} {'GB':>6} {'bound ms':>10} {'by':10} {'reached':>8} {'x first':>8}"
CASES: dict[str, Case] = {
    case.name: case for case in (*training.CASES, *sampling.CASES, *pieces.CASES)
}


def chosen(names: tuple[str, ...]) -> list[Case]:
    """The named cases in the order of the table; all if no name is given."""
    if unknown := [name for name in names if name not in CASES]:
        raise InputError(
            f"unknown case {', '.join(map(repr, unknown))}; choose from {', '.join(CASES)}"
        )
    return [case for name, case in CASES.items() if not names or name in names]


def key(settings: Settings) -> dict[str, Any]:
    """The settings that must be equal for all results in a table."""
    cuda = settings.device.type == "cuda"
    return {
        "scale": settings.scale,
        "device": torch.cuda.get_device_name(settings.device) if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "compile": settings.compiled and ("whole" if settings.whole else "by block"),
        "torch": torch.__version__,
        "flow_matching": peer_version(),
    }


@dataclass
class Results:
    """The results file: peak speeds, cases and the table."""

    path: Path
    settings: Settings
    ceilings: Ceilings | None = None
    records: dict[str, Record] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)  # date, revision and duration

    @classmethod
    def open(cls, path: Path, settings: Settings) -> "Results":
        """Read existing results; raises if they were measured with different settings."""
        results = cls(path, settings)
        if path.is_dir():
            raise InputError(f"{path} is a folder; choose a file such as results.json")
        if not path.exists():
            check_writable(path)
            return results
        try:
            data = json.loads(path.read_text())
            before, cases = data["settings"], data["cases"]
            results.ceilings = Ceilings(**data["ceilings"])
            results.records = {name: Record.from_json(cases[name]["record"]) for name in cases}
            results.made = {name: cases[name]["made"] for name in cases}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not a results file of this benchmark; choose a different --out"
            ) from error
        now = key(settings)
        if changed := sorted(k for k in now if before.get(k) != now[k]):
            raise InputError(
                f"{path} holds results with different settings ({', '.join(changed)}); choose a "
                f"different --out, or the same settings"
            )
        return results

    @property
    def in_order(self) -> dict[str, Record]:
        place = {name: number for number, name in enumerate(CASES)}
        names = sorted(self.records, key=lambda name: place.get(name, len(place)))
        return {name: self.records[name] for name in names}

    def put(self, case: Case, record: Record, seconds: float) -> None:
        here = provenance()
        self.records[case.name] = record
        self.made[case.name] = {"seconds": seconds} | {k: here[k] for k in ("date", "revision")}
        self.write()

    def write(self) -> None:
        assert self.ceilings is not None
        lines = lines_of(self.in_order, self.ceilings)
        cases = {
            name: {"record": asdict(record), "made": self.made[name]}
            for name, record in self.in_order.items()
        }
        write_json(
            self.path,
            {
                **provenance(),
                "settings": key(self.settings),
                "shapes": asdict(self.settings.shapes),
                "ceilings": asdict(self.ceilings),
                "cases": cases,
                "table": [asdict(line) for line in lines],
            },
        )

    def text(self, name: str) -> str:
        assert self.ceilings is not None
        lines = lines_of(self.records, self.ceilings)
        return text_of([line for line in lines if line.case == name], self.records[name].what)

    def summary(self, names: Sequence[str]) -> str:
        """One short line for each implementation of the named cases."""
        assert self.ceilings is not None
        lines = [line for line in lines_of(self.in_order, self.ceilings) if line.case in names]
        head = f"\n{'case':20} {'implementation':43} {'ms':>9} {'x first':>7} {'bound':>6}"
        return "\n".join([head, *map(_short, lines)])


def run(
    settings: Settings, cases: Sequence[Case], out: Path, *, again: bool = False, say: Say = print
) -> Results:
    """Measure the cases that are not in the file yet, or all cases with `again`.

    Prints the table case by case, with the duration of each measurement.
    """
    results = Results.open(out, settings)
    cuda = settings.device.type == "cuda"
    # Kernels and events use the current GPU.
    with torch.cuda.device(settings.device) if cuda else nullcontext():
        if results.ceilings is None:
            results.ceilings = measure_ceilings(settings)
            free(settings)
            results.write()
        say(_heading(results.ceilings, key(settings)["device"]))
        for number, case in enumerate(cases, start=1):
            kept = case.name in results.records and not again
            if not kept:
                start = time.perf_counter()
                record = case.measure(settings)
                results.put(case, record, time.perf_counter() - start)
            made = results.made[case.name]
            when = f", measured on {made['date']}" if kept else ""
            say(f"\n[{number}/{len(cases)}] {case.name}, {made['seconds']:.1f} s{when}")
            say(results.text(case.name))
    say(results.summary([case.name for case in cases]))
    return results


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
    note: str  # or why it failed


def lines_of(records: Mapping[str, Record], ceilings: Ceilings) -> list[Line]:
    # A micro-batch in training has as many tokens as the case of the path.
    training = records[TRAINING].ways.values() if TRAINING in records else ()
    step = next((each.facts.get("micro_batch_ms") for each in training), None)
    lines = []
    for case, record in records.items():
        first = next(iter(record.ways.values())).seconds
        for way, each in record.ways.items():
            if each.seconds is None:
                lines.append(Line(case, way, None, None, None, "", None, None, {}, each.note))
                continue
            bound, facts = each.work.seconds(ceilings), dict(each.facts)
            if case == PATH and step is not None:
                facts["share_of_training"] = 1e3 * each.seconds / step
            line = Line(
                case,
                way,
                ms=1e3 * each.seconds,
                memory_gb=each.memory_gb,
                bound_ms=1e3 * bound,
                limit=each.work.limit(ceilings),
                reached=bound / each.seconds,
                times_first=None if first is None else each.seconds / first,
                facts=facts,
                note=each.note,
            )
            lines.append(line)
    return lines


def text_of(lines: list[Line], what: str) -> str:
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


def _short(line: Line) -> str:
    if line.ms is None:
        return f"{line.case:20} {line.way:43} {line.note[:40]}"
    first = "" if line.times_first is None else f"{line.times_first:.2f}"
    reached = "" if line.reached is None else f"{100 * line.reached:.0f}%"
    return f"{line.case:20} {line.way:43} {_number(line.ms):>9} {first:>7} {reached:>6}"


def _heading(ceilings: Ceilings, device: str) -> str:
    return (
        f"{device}: {ceilings.flops / 1e12:,.3g} TFLOP/s in {ceilings.dtype} matrix products, "
        f"{ceilings.bytes / 1e12:,.3g} TB/s in copies"
    )


def _number(x: float) -> str:
    """At least three significant digits, without exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"
