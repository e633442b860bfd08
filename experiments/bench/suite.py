"""Measure cases one after the other and save each, so that an interrupted run can resume."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cwdfm.errors import InputError
from cwdfm.files import check_writable, write_json
from cwdfm.provenance import provenance
from experiments.bench import ceilings, table
from experiments.bench.case import Case, Record, free
from experiments.bench.cases import CASES
from experiments.bench.ceilings import Ceilings
from experiments.bench.settings import Settings

Say = Callable[[str], object]


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
        now = settings.key()
        if changed := sorted(k for k in now if before.get(k) != now[k]):
            raise InputError(
                f"{path} holds results with different settings ({', '.join(changed)}); choose a "
                f"different --out, or the same settings"
            )
        return results

    @property
    def in_order(self) -> dict[str, Record]:
        """The records in the order of the table."""
        place = {name: number for number, name in enumerate(CASES)}
        names = sorted(self.records, key=lambda name: place.get(name, len(place)))
        return {name: self.records[name] for name in names}

    def put(self, case: Case, record: Record, seconds: float) -> None:
        """Save the record of a case."""
        here = provenance()
        self.records[case.name] = record
        self.made[case.name] = {
            "seconds": seconds,
            "date": here["date"],
            "revision": here["revision"],
        }
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        assert self.ceilings is not None
        lines = table.lines(self.in_order, self.ceilings)
        cases = {
            name: {"record": asdict(record), "made": self.made[name]}
            for name, record in self.in_order.items()
        }
        write_json(
            self.path,
            {
                **provenance(),
                "settings": self.settings.key(),
                "shapes": asdict(self.settings.shapes),
                "ceilings": asdict(self.ceilings),
                "cases": cases,
                "table": [asdict(line) for line in lines],
            },
        )

    def text(self, name: str) -> str:
        """The lines of one case."""
        assert self.ceilings is not None
        lines = table.lines(self.records, self.ceilings)
        return table.text([line for line in lines if line.case == name], self.records[name].what)


def run(
    settings: Settings, cases: Sequence[Case], out: Path, *, again: bool = False, say: Say = print
) -> Results:
    """Measure the cases that are not in the file yet, or all with `again`.

    Prints the table case by case, with the duration of each measurement.
    """
    results = Results.open(out, settings)
    with _current(settings.device):
        if results.ceilings is None:
            results.ceilings = ceilings.measure(settings)
            free(settings)
            results.write()
        say(table.heading(results.ceilings, settings.key()["device"]))
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
    return results


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Make the device the current GPU, which kernels and events use."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield
