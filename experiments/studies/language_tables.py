"""Tables of the speed of text generation: the record of `experiments.studies.language_speed`."""

from typing import Any

from experiments.table import Table, Value, make_table

Record = dict[str, Any]
CACHES = {"none": "no cache", "prefix": "prefix", "dual": "dual"}
PEERS = ("transformers", "cwdfm")


def _published(row: Record) -> list[Value]:
    """Tokens per second of the published algorithm, speedups over it, and fractions of bounds."""
    rate, bound = row["tokens_per_second"], row["bound"]
    values = [Value(rate["published"], None, 1)]
    for divisor in (dict.fromkeys(CACHES, rate["published"]), bound):
        ratios = (rate[name] / divisor[name] if name in rate else None for name in CACHES)
        values += [Value(ratio, None, 2) for ratio in ratios]
    return values


def language_speed(record: Record) -> list[Table]:
    """Speedups over LLaDA's published algorithm, cost of weights, and DiffusionGemma."""
    llada = [
        ((f"{row['prompt']:,}", str(row["batch"])), _published(row)) for row in record["llada"]
    ]
    speedups = tuple(f"{name}, speedup ↑" for name in CACHES.values())
    reached = tuple(f"{name}, of the bound ↑" for name in CACHES.values())
    weights = [
        ((str(row["batch"]),), [Value(ms, None, 2) for ms in row["ms"].values()])
        for row in record["weights"]
    ]
    names = tuple(record["weights"][0]["ms"])
    solvers = tuple(f"{'Euler' if name == 'none' else name}, ms ↓" for name in names)
    gemma = [
        (
            (str(row["batch"]),),
            [Value(row[name][key], None, 1) for key in ("ms", "memory_gb") for name in PEERS],
        )
        for row in record["gemma"]
    ]
    costs = tuple(f"{name}, {unit} ↓" for unit in ("ms", "GB") for name in PEERS)
    published = ("published, tokens/s ↑", *speedups, *reached)
    return [
        make_table("LLaDA-8B's shape, random weights", "prompt, batch", published, llada),
        make_table("A cached step of LLaDA-8B's shape", "batch", solvers, weights),
        make_table("A step of DiffusionGemma's shape, 6 layers", "batch", costs, gemma),
    ]


TABLES = {"language_speed": language_speed}
