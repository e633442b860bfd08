"""Tables of the speed of text generation: the record of `experiments.studies.language_speed`."""

from typing import Any

from experiments.table import Table, make_table

Record = dict[str, Any]
CACHES = {"none": "no cache", "prefix": "prefix", "dual": "dual", "prompt": "prompt"}
PEERS = ("transformers", "cwdfm")


def _published(row: Record) -> list[float | None]:
    """Tokens per second of the published algorithm, speedups over it, and fractions of bounds."""
    rate, bound = row["tokens_per_second"], row["bound"]
    values: list[float | None] = [rate["published"]]
    for divisor in (dict.fromkeys(CACHES, rate["published"]), bound):
        values += [rate[name] / divisor[name] if name in rate else None for name in CACHES]
    return values


def llada(rows: list[Record]) -> Table:
    """Speedups over LLaDA's published algorithm."""
    lines = [((f"{row['prompt']:,}", str(row["batch"])), _published(row)) for row in rows]
    columns = {"published, tokens/s ↑": 1}
    columns |= {f"{name}, speedup ↑": 2 for name in CACHES.values()}
    columns |= {f"{name}, of the bound ↑": 2 for name in CACHES.values()}
    return make_table("LLaDA-8B's shape, random weights", "prompt, batch", columns, lines)


def weights(rows: list[Record]) -> Table:
    """The cost of a step with and without a weight."""
    lines = [(str(row["batch"]), row["ms"].values()) for row in rows]
    columns = {f"{'Euler' if name == 'none' else name}, ms ↓": 2 for name in rows[0]["ms"]}
    return make_table("A cached step of LLaDA-8B's shape", "batch", columns, lines)


def gemma(rows: list[Record]) -> Table:
    """DiffusionGemma beside the implementation of transformers."""
    costs = [(key, name) for key in ("ms", "memory_gb") for name in PEERS]
    lines = [(str(row["batch"]), [row[name][key] for key, name in costs]) for row in rows]
    columns = [f"{name}, {'ms' if key == 'ms' else 'GB'} ↓" for key, name in costs]
    return make_table("A step of DiffusionGemma's shape, 6 layers", "batch", columns, lines)


def language_speed(record: Record) -> list[Table]:
    """A table for every case that was measured."""
    cases = {"llada": llada, "weights": weights, "gemma": gemma}
    return [
        make(record[name]) for name, make in cases.items() if isinstance(record.get(name), list)
    ]


TABLES = {"language_speed": language_speed}
