"""The tables of the recorded studies, one function per record of `results/studies.jsonl.xz`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.studies.molecule_tables import (
    best,
    causes,
    endings,
    finetune,
    limits,
    searched,
    solver_table,
)
from experiments.studies.run_scatter import describe, describe_sampler
from experiments.table import Column, Row, Table, Value

Record = dict[str, Any]
CONTEXT = {
    "neighbors": "revealed neighbors within 8",
    "distance": "distance to the nearest revealed token (last row: or more)",
}


def numbers(row: Record, digits: dict[str, int]) -> tuple[Value, ...]:
    """The values of some keys, with the number of digits to show."""
    return tuple(Value(row.get(name), None, shown) for name, shown in digits.items())


def text_small(record: Record) -> list[Table]:
    """Solvers against steps, and the uncertainty of masked tokens against their context."""
    config = record["config"]
    source = next(name for name in config if name.startswith("training-")).partition("-")[2]
    order = ["euler", "neighbor", "entropy"]

    def values(row: Record) -> tuple[Value, ...]:
        perplexity, entropy = row["perplexity"]["perplexity"], row["statistics"]["entropy"]
        return (
            Value(row["mauve"]["mauve"], row["mauve"]["std"], 3),
            Value(perplexity["value"], perplexity["fold_std"]),
            Value(entropy["value"], entropy["fold_std"], 2),
        )

    found = []
    for row in record["rows"]:
        if row["name"] in config:
            options = config[row["name"]]["options"]
            key = (-options["top_p"], order.index(options["solver"]), options["steps"])
            nucleus = f"{options['top_p']:g}"
            labels = options["solver"].capitalize(), nucleus, str(options["steps"])
            found.append((key, Row(labels, values(row))))
        else:
            found.append(((0.0, 0, 0), Row(("data", "", ""), values(row))))
    rows = tuple(row for _, row in sorted(found, key=lambda pair: pair[0]))
    columns = (Column("MAUVE", True), Column("gen. PPL", False), Column("entropy, bits", True))
    title = f"Longer training on text, {source} source"
    tables = [Table(title, ("solver", "top-p", "steps"), columns, rows)]
    for kind, label in CONTEXT.items():
        curve = config[f"context-{source}"][kind]
        points = tuple(
            Row(
                (str(bin_),),
                tuple(Value(curve[n][i], curve[f"{n}_error"][i], 2) for n in ("entropy", "nll")),
            )
            for i, bin_ in enumerate(curve["bins"])
        )
        names = (Column("entropy, nats"), Column("NLL, nats"))
        tables.append(Table(f"Masked tokens by {label}, {source} source", (label,), names, points))
    return tables


def run_scatter(record: Record) -> list[Table]:
    """Repeated runs of the same training."""
    losses, samples = [], []
    for row in record["rows"]:
        low, high = min(row["losses"]), max(row["losses"])
        values = (Value(len(row["losses"])), *(Value(x, None, 4) for x in (low, high, high - low)))
        losses.append(Row((row["corpus"], describe(row)), values))
        for sample in row["samples"]:
            for run, (ppl, bits) in enumerate(
                zip(sample["perplexities"], sample["entropies"], strict=True), start=1
            ):
                if ppl is not None:
                    labels = describe(row), describe_sampler(sample), str(run)
                    samples.append(Row(labels, (Value(ppl), Value(bits, None, 2))))
    names = ("runs", "lowest loss", "highest loss", "difference")
    scores = (Column("gen. PPL", False), Column("entropy, bits", True))
    return [
        Table(
            "Validation losses of repeated trainings",
            ("corpus", "training"),
            tuple(map(Column, names)),
            tuple(losses),
        ),
        Table(
            "Samples of repeated trainings, text",
            ("training", "sampler", "run"),
            scores,
            tuple(samples),
        ),
    ]


def exact_target(record: Record) -> list[Table]:
    """Total variation to the exact distribution, by number of steps."""
    steps = sorted({row["steps"] for row in record["rows"]})
    found = {(r["source"], r["solver"], r["steps"]): r["total_variation"] for r in record["rows"]}
    rows = tuple(
        Row(key, tuple(Value(found[*key, k], None, 4) for k in steps))
        for key in dict.fromkeys((source, solver) for source, solver, _ in found)
    )
    columns = tuple(Column(f"{k} steps", False) for k in steps)
    return [Table("Total variation to an exact target", ("source", "solver"), columns, rows)]


def context_path(record: Record) -> list[Table]:
    """Algorithm 1 by sequence length."""
    rows = tuple(
        Row((n,), tuple(Value(t and 1e3 * t) for t in (row["buckets"], row.get("naive"))))
        for n, row in record["seconds"].items()
    )
    columns = (Column("buckets, ms", False), Column("naive loop, ms", False))
    return [Table("Algorithm 1 on a CPU", ("length",), columns, rows)]


def sampling_step(record: Record) -> list[Table]:
    """A sampling step on a CPU, against flow_matching."""
    rows = tuple(
        Row(
            (name,),
            (
                Value(1e3 * row["seconds_a_step"], None, 0),
                Value(row["peak_bytes"] / 2**20, None, 0),
                *numbers(row, {"times_faster": 1, "times_less_memory": 1}),
            ),
        )
        for name, row in record["cases"].items()
    )
    columns = (
        Column("ms per step", False),
        Column("peak MiB", False),
        Column("speedup", True),
        Column("memory ratio", True),
    )
    return [Table("Sampling step at 50,257 tokens on a CPU", ("case",), columns, rows)]


def elbo_variance(record: Record) -> list[Table]:
    """Two ways to integrate the likelihood bound."""
    digits = {"rmse": 4, "mean_standard_error": 4, "coverage_two_standard_errors": 4}
    rows = tuple(Row((name,), numbers(row, digits)) for name, row in record["rows"].items())
    columns = (Column("RMS error", False), Column("reported error"), Column("coverage"))
    return [Table("Integrating the likelihood bound", ("uniform in",), columns, rows)]


def prepare(record: Record) -> list[Table]:
    """Tokenizing and packing a corpus."""
    rows = tuple(
        Row(
            (str(case["workers"]), str(case["limit"] or "all")),
            (Value(case["rows"]), Value(case["seconds"]), Value(max(case["peak_mib"]), None, 0)),
        )
        for case in record["cases"]
    )
    columns = (Column("windows"), Column("seconds", False), Column("peak MiB", False))
    return [Table("Preparing text", ("workers", "documents"), columns, rows)]


def demo(record: Record) -> list[Table]:
    """Duration of the demo."""
    row = Row((str(record["config"]["cores"]),), (Value(record["seconds"], None, 0),))
    return [Table("Duration of `make demo`", ("cores",), (Column("seconds", False),), (row,))]


def gpu_tests(record: Record) -> list[Table]:
    """Outcomes of the tests that need a GPU."""
    names = ("passed", "failed", "skipped")
    row = Row((record["date"][:10],), tuple(Value(record["outcomes"].get(n, 0)) for n in names))
    return [Table("Tests on a GPU", ("date",), tuple(map(Column, names)), (row,))]


def profile(record: Record) -> list[Table]:
    """Milliseconds per step by kind of kernel."""
    work = record["work"]
    kinds = dict.fromkeys(kind for part in work.values() for kind in part["kinds"])
    rows = [
        Row((kind,), tuple(Value(part["kinds"].get(kind), None, 2) for part in work.values()))
        for kind in kinds
    ]
    rows.append(
        Row(("all kernels",), tuple(Value(part["busy_ms"], None, 2) for part in work.values()))
    )
    columns = tuple(Column(f"{name}, ms") for name in work)
    return [Table("Time per step by kind of kernel", ("kernel",), columns, tuple(rows))]


TITLES = {
    "qm9_search": "Counted jumps",
    "qm9_refine": "Refinement",
    "qm9_mend": "Resampling, settings",
    "qm9_best": "Resampling, chosen settings",
    "qm9_best_spelled": "8 randomized SMILES, chosen settings",
    "qm9_best_spelled24": "24 randomized SMILES, first run",
    "qm9_best_spelled24_again": "24 randomized SMILES, second run",
    "qm9_best_spelled24_hot": "24 randomized SMILES, third run",
    "qm9_best_spelled24_seed1": "24 randomized SMILES, fourth run",
}
TABLES: dict[str, Callable[[Record], list[Table]]] = {
    "qm9_small": solver_table,
    "qm9_limits": limits,
    "qm9_causes": causes,
    "qm9_endings": endings,
    **{name: partial(searched, title) for name, title in TITLES.items()},
    "qm9_spelled": partial(best, "8 randomized SMILES, search", (850, 900, 950)),
    "qm9_spelled24": partial(best, "24 randomized SMILES, search", (970, 980, 990)),
    "qm9_spelled24_long": partial(
        best, "24 randomized SMILES, 16,000 training steps", (970, 980, 990)
    ),
    "qm9_spelled24_hot": partial(
        best, "24 randomized SMILES, higher temperatures", (970, 980, 990)
    ),
    "finetune": finetune,
    "text_small_mask": text_small,
    "text_small_uniform": text_small,
    "run_scatter": run_scatter,
    "exact_target": exact_target,
    "context_path": context_path,
    "sampling_step": sampling_step,
    "elbo_variance": elbo_variance,
    "prepare": prepare,
    "demo": demo,
    "gpu_tests": gpu_tests,
    "profile": profile,
}
