"""`python -m experiments report`: write the tables of the recorded results.

Pages in docs/results (and docs/speed.md) are written by hand, except for the tables between

    <!-- results: NAME -->
    <!-- end -->

where NAME is an experiment of the catalog, a study of `experiments.studies.tables`, `bench`, or
`projection`. This command fills these blocks from results/ and writes the same tables, in full
precision and with their provenance, to results/PAGE.csv.
"""

import csv
import io
import re
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from experiments.bench.bounds import Job as PaperRun
from experiments.bench.bounds import project
from experiments.bench.training import COMPILED, THEIRS
from experiments.catalog import EXPERIMENTS
from experiments.experiment import numbered, write_file
from experiments.results import RESULTS, ROOT, Recorded, read, record
from experiments.studies.frontier_tables import FIGURES
from experiments.studies.tables import TABLES
from experiments.table import Row, Table, Value, make_table
from experiments.tasks.base import in_order

BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
STORE = Recorded()
VOCAB = 50_257
MANY = 12  # maximum number of missing rows that a note lists
NOT_RUN = "Not run yet.\n"
RENAMED = {  # methods in older records of the benchmark
    "flow_matching's path, all logits in memory": THEIRS,
    "the same with head and loss compiled": COMPILED,
}
ORIGIN = ("command", "revision", "hardware")


def pages() -> list[Path]:
    return [*sorted((ROOT / "docs" / "results").glob("*.md")), ROOT / "docs" / "speed.md"]


def names_in(text: str) -> list[str]:
    return [name for _, name, _ in BLOCK.findall(text)]


@cache
def tables(name: str) -> list[Table]:
    """The tables of an experiment, a study or the benchmark, without empty rows and columns."""
    if name == "bench":
        return [bench()]
    if name == "projection":
        return [projection()]
    if name in TABLES:
        return TABLES[name](made) if (made := record(name)) else []
    if name not in EXPERIMENTS:
        raise InputError(f"unknown results {name!r}; see `python -m experiments list`")
    found = EXPERIMENTS[name].plan("small").tables(STORE)
    return [
        recorded_part(table)
        for table in found
        if any(_known(row) for row in table.rows if row.labels[0] != "data")
    ]


def recorded_part(table: Table) -> Table:
    """Remove rows and columns that have no values yet; a note lists them."""
    empty = [
        i for i in range(len(table.columns)) if all(r.ours[i].value is None for r in table.rows)
    ]
    kept = [i for i in range(len(table.columns)) if i not in empty]
    missing = [table.columns[i].name for i in empty]
    unknown = [" ".join(filter(None, row.labels)) for row in table.rows if not _known(row)]
    missing += unknown if len(unknown) <= MANY else [f"{len(unknown)} of {len(table.rows)} rows"]
    if not missing:
        return table
    names = {table.columns[i] for i in empty}
    paper = [i for i, column in enumerate(table.paper) if column not in names]
    rows = tuple(
        Row(
            row.labels,
            tuple(row.ours[i] for i in kept),
            tuple(row.paper[i] for i in paper) if row.paper else (),
        )
        for row in table.rows
        if _known(row)
    )
    return replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        paper=tuple(table.paper[i] for i in paper),
        rows=rows,
        notes=(*table.notes, f"Not measured yet: {'; '.join(missing)}."),
    )


def _known(row: Row) -> bool:
    return any(value.value is not None for value in row.ours)


def bench() -> Table:
    newest: dict[tuple[str, str], tuple[Mapping[str, Any], str]] = {}
    for entry in sorted(read("bench").values(), key=lambda entry: str(entry["date"])):
        for line in entry["table"]:
            if line["ms"] is not None:
                way = RENAMED.get(line["way"], line["way"])
                newest[line["case"], way] = line, entry["date"][:10]
    rows = []
    for (case, method), (line, date) in sorted(newest.items(), key=lambda item: item[0][0]):
        sizes = [line[name] for name in ("ms", "memory_gb", "bound_ms")]
        values = [Value(x, None, _digits(x)) for x in sizes]
        reached = 100 * line["reached"] if line["reached"] else None
        rows.append(((case, method, date), (*values, reached, line["times_first"])))
    columns = {"ms ↓": 1, "GB ↓": 1, "bound, ms": 1, "bound / time, % ↑": 1, "relative time": 2}
    return make_table("Benchmark, H200", "case, method, date", columns, rows)


def _digits(x: float | None) -> int:
    """The number of decimals that gives three significant digits."""
    return 0 if not x or x >= 100 else 1 if x >= 10 else 2 if x >= 1 else 4


def tokens_per_second() -> float:
    """The training speed of the paper's text model in the latest benchmark."""
    lines = [line for entry in read("bench").values() for line in entry["table"]]
    ours = [line for line in lines if (line["case"], line["way"]) == ("training-uniform", "cwdfm")]
    return float(ours[-1]["facts"]["tokens_per_second"])


def projection() -> Table:
    """The paper's training run on OpenWebText, projected from the speed of one GPU."""
    run = PaperRun(sum(p.numel() for p in DiT(preset("base", VOCAB)).parameters()))
    rows = []
    for gpus in (1, 8, 64):
        p = project(run, gpus, tokens_per_second(), 64 * 1024)
        seconds = [1e3 * x for x in (p.compute, p.exchange, p.waited)]
        rows.append((str(gpus), (p.hours / 24, p.gpu_hours, *seconds)))
    columns = {"days": 1, "GPU hours": 0}
    columns |= {"compute, ms": 1, "all-reduce, ms": 1, "exposed all-reduce, ms": 1}
    return make_table("The paper's run, projected", "GPUs", columns, rows)


@cache
def origin(name: str) -> tuple[str, str, str]:
    """The command, revisions and hardware of the results called `name`."""
    if name in ("bench", "projection"):
        found = list(read("bench").values())
        return "python -m experiments bench --out FILE", *_origins(found)
    if name in TABLES:
        made = record(name)
        if made is None:
            return "", "", ""
        rows = [r for r in made.get("rows", []) if isinstance(r, dict) and "hardware" in r]
        earlier = made.get("commands", [])  # if several commands contributed to the result
        return made["command"], *_origins([made, *rows, *earlier])
    cells = in_order(EXPERIMENTS[name].plan("small").tasks)
    results = [result for cell in cells if (result := STORE.record(cell)) is not None]
    command = f"python -m experiments run {name} --scale small"
    return command, *_origins(result["provenance"] for result in results)


def _origins(entries: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The distinct revisions and machines of records."""
    records = list(entries)
    revisions = {entry["revision"] or "unknown" for entry in records}
    machines = {entry["hardware"]["gpu"] or entry["hardware"]["cpu"] for entry in records}
    return " ".join(sorted(revisions)), "; ".join(sorted(machines))


def fill(text: str) -> str:
    def block(match: re.Match[str]) -> str:
        content = "\n".join(table.markdown() for table in tables(match[2])) or NOT_RUN
        return f"{match[1]}{content}{match[3]}"

    return BLOCK.sub(block, text)


def to_csv(names: Iterable[str]) -> str:
    """The tables of a page as one CSV: a column `table`, labels, values, spreads, provenance."""
    rows: list[dict[str, str]] = []
    for name in names:
        for table in tables(name):
            lines = csv.DictReader(io.StringIO(table.csv()))
            made = dict(zip(ORIGIN, origin(name), strict=True))
            rows += [{"results": name, "table": table.title, **line, **made} for line in lines]
    fields = dict.fromkeys(field for row in rows for field in row if field not in ORIGIN)
    spreads = {f for f in fields if f.endswith(", spread") and not any(row.get(f) for row in rows)}
    out = io.StringIO()
    shown = [*(field for field in fields if field not in spreads), *ORIGIN]
    writer = csv.DictWriter(out, shown, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def draw(folder: Path = ROOT / "docs" / "figures") -> None:
    """Draw the figures of all experiments and studies."""
    drawn = {
        experiment.name: experiment.plan("small").figures(STORE)
        for experiment in EXPERIMENTS.values()
    }
    known = read("studies")
    drawn |= {name: make(known[name]) for name, make in FIGURES.items() if name in known}
    for name, curves in drawn.items():
        for stem, figure in numbered(name, curves):
            if not figure.blank:
                write_file(folder / f"{stem}.png", figure.render(["png"])["png"])


def main(arguments: list[str]) -> None:
    """Fill in the pages and write the CSV files; with `--figures`, also draw the figures."""
    parser = ArgumentParser("python -m experiments report", description=main.__doc__)
    parser.add_argument("--figures", action="store_true", help="draw docs/figures again")
    options = parser.parse_args(arguments)
    for path in pages():
        text = path.read_text()
        path.write_text(fill(text))
        (RESULTS / f"{path.stem}.csv").write_text(to_csv(names_in(text)))
    if options.figures:
        draw()
