"""The tables of the recorded studies, one function per record of `results/studies.jsonl.xz`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from cwdfm.config import from_config
from experiments.catalog.training import context_line
from experiments.cell import weight_label
from experiments.notes import weights_of
from experiments.solver_choice import SolverChoice
from experiments.studies import frontier_tables, language_tables
from experiments.studies.molecule_tables import (
    best,
    causes,
    endings,
    evaluation_time,
    finetune,
    guidance,
    limits,
    moses,
    scaffolds,
    searched,
    seeds,
    solver_table,
)
from experiments.table import Table, Value, make_table

Record = dict[str, Any]
CONTEXT = {
    "neighbors": "revealed neighbors within 8",
    "distance": "distance to the nearest revealed token (last row: or more)",
}


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
            found.append((key, (labels, values(row))))
        else:
            found.append(((0.0, 0, 0), (("data", "", ""), values(row))))
    rows = [row for _, row in sorted(found, key=lambda pair: pair[0])]
    columns = ("MAUVE ↑", "gen. PPL ↓", "entropy, bits ↑")
    title = f"Longer training on text, {source} source"
    tables = [make_table(title, "solver, top-p, steps", columns, rows)]
    for kind, label in CONTEXT.items():
        curve = config[f"context-{source}"][kind]
        points = [
            (str(x), [Value(curve[n][i], curve[f"{n}_error"][i], 2) for n in ("entropy", "nll")])
            for i, x in enumerate(curve["bins"])
        ]
        title = f"Masked tokens by {label}, {source} source"
        tables.append(make_table(title, label, ("entropy, nats", "NLL, nats"), points))
    return tables


def describe(row: Record) -> str:
    """A short description of the training of a row, without the corpus."""
    seed = f", seed {row['seed']}" if row["seed"] else ""
    if row["method"] == "bd3lm":
        return f"block {row['block']} of BD3LM{seed}"
    alone = " of masked tokens" if row["masked_only"] else ""
    path = f", context path{_weights(row, 'path')}" if row["path"] == "context" else ""
    scaled = _weights(row, "loss") if row["loss"] == "sce" else ""
    return f"{row['source']} source, {row['loss']}{scaled}{alone}{path}{seed}"


def describe_sampler(sample: Record) -> str:
    """A solver with the settings it uses, and its number of steps."""
    choice = from_config(sample["choice"], {"SolverChoice": SolverChoice})
    settings = [one for each in weights_of([choice]).values() for one in each]
    return ", ".join([choice.solver, *settings, f"{sample['steps']:,} steps"])


def _weights(row: Record, of: str) -> str:
    """The weights of the loss or path, if they differ from those of the paper's tables."""
    cell = context_line(row["source"], "").cell(row["corpus"], "small")
    usual = asdict(cell.train().recipe)
    own, expected = (weight_label(x[f"{of}_radius"], x[f"{of}_scale"]) for x in (row, usual))
    return "" if own == expected else f" ({own})"


def run_scatter(record: Record) -> list[Table]:
    losses, samples = [], []
    for row in record["rows"]:
        low, high = min(row["losses"]), max(row["losses"])
        training = describe(row)
        losses.append(((row["corpus"], training), (len(row["losses"]), low, high, high - low)))
        for sample in row["samples"]:
            runs = zip(sample["perplexities"], sample["entropies"], strict=True)
            for run, (ppl, bits) in enumerate(runs, start=1):
                if ppl is not None:
                    samples.append(((training, describe_sampler(sample), str(run)), (ppl, bits)))
    title = "Validation losses of repeated training runs"
    columns = {"runs": 1, "lowest loss": 4, "highest loss": 4, "difference": 4}
    found = [make_table(title, "corpus, training", columns, losses)]
    title, labels = "Samples of repeated training runs, text", "training, sampler, run"
    columns = {"gen. PPL ↓": 1, "entropy, bits ↑": 2}
    return [*found, make_table(title, labels, columns, samples)]


def exact_target(record: Record) -> list[Table]:
    """Total variation to the exact distribution, by number of steps."""
    steps = sorted({row["steps"] for row in record["rows"]})
    found = {(r["source"], r["solver"], r["steps"]): r["total_variation"] for r in record["rows"]}
    keys = dict.fromkeys((source, solver) for source, solver, _ in found)
    rows = [(key, [found[*key, k] for k in steps]) for key in keys]
    columns = {f"{k} steps ↓": 4 for k in steps}
    return [make_table("Total variation to an exact target", "source, solver", columns, rows)]


def dropout_positions(record: Record) -> list[Table]:
    """Losses in both modes if the target of each masked token is its position."""
    rows = [
        (
            (row["positions"], f"{row['dropout']:g}", str(row["seed"])),
            (row["training"], row["evaluation"]),
        )
        for row in record["rows"]
    ]
    title, labels = "Positions as targets, masked input", "positions, dropout, seed"
    columns = {"training mode, nats ↓": 2, "evaluation mode, nats ↓": 2}
    return [make_table(title, labels, columns, rows)]


def context_path(record: Record) -> list[Table]:
    rows = [
        (n, [t and 1e3 * t for t in (row["buckets"], row.get("naive"))])
        for n, row in record["seconds"].items()
    ]
    columns = ("buckets, ms ↓", "naive loop, ms ↓")
    found = [make_table("Algorithm 1 on a CPU", "length", columns, rows)]
    if "growth_by_run" in record:
        title = "Time at length 8,192 over that at 1,024"
        ratios = [(str(n), (x,)) for n, x in enumerate(record["growth_by_run"], start=1)]
        found.append(make_table(title, "run", {"ratio ↓": 2}, ratios))
    return found


def sampling_step(record: Record) -> list[Table]:
    """A sampling step on a CPU, against flow_matching."""
    rows = [
        (
            name,
            (
                1e3 * row["seconds_a_step"],
                row["peak_bytes"] / 2**20,
                row["times_faster"],
                row.get("times_less_memory"),
            ),
        )
        for name, row in record["cases"].items()
    ]
    columns = {"ms per step ↓": 0, "peak MiB ↓": 0, "speedup ↑": 1, "memory ratio ↑": 1}
    return [make_table("Sampling step at 50,257 tokens on a CPU", "case", columns, rows)]


def elbo_variance(record: Record) -> list[Table]:
    """Two estimators of the likelihood bound."""
    names = ("rmse", "mean_standard_error", "coverage_two_standard_errors")
    rows = [(name, [row[each] for each in names]) for name, row in record["rows"].items()]
    columns = {"RMS error ↓": 4, "reported error": 4, "coverage": 4}
    return [make_table("Integrating the likelihood bound", "uniform in", columns, rows)]


def prepare(record: Record) -> list[Table]:
    rows = [
        (
            (str(case["workers"]), str(case["limit"] or "all")),
            (case["rows"], case["seconds"], max(case["peak_mib"])),
        )
        for case in record["cases"]
    ]
    columns = {"windows": 1, "seconds ↓": 1, "peak MiB ↓": 0}
    return [make_table("Preparing text", "workers, documents", columns, rows)]


def startup(record: Record) -> list[Table]:
    rows = [(name, (spent["cpu"], spent["wall"])) for name, spent in record["seconds"].items()]
    title = f"Start-up and the demo, {record['config']['cores']} cores"
    return [make_table(title, "command", {"CPU seconds ↓": 2, "seconds ↓": 2}, rows)]


def replay_cost(record: Record) -> list[Table]:
    costs = record["milliseconds_per_step"].items()
    rows = [(color, (spent["TaskDuration"],)) for color, spent in costs]
    megabytes = record["recording_bytes"] / 1e6
    notes = (f"A recording of 1,024 tokens and 1,024 steps takes {megabytes:.2f} MB.",)
    return [make_table("Replay of two recordings", "color by", ("ms per step ↓",), rows, notes)]


def cpu_sampling(record: Record) -> list[Table]:
    """Samples of bundled models, against a plain PyTorch loop."""
    ways = ("cwdfm", "plain, compiled", "plain, eager")
    rows = []
    for row in record["rows"]:
        spent = [row["seconds"][name]["wall"] for name in ways]
        used = row["evaluations"]["cwdfm"] / row["evaluations"]["plain"]
        rows.append((row["model"], (*spent, row["speedup"]["wall"], used)))
    seconds = [f"{name}, s ↓" for name in ways]
    columns = dict.fromkeys([*seconds, "speedup over compiled ↑", "evaluations / steps"], 2)
    return [make_table("Sampling on two CPU cores", "model", columns, rows)]


def cache_change(record: Record) -> list[Table]:
    names = ("equal_tokens", "equal_sequences", "valid", "tokens_per_forward")
    seed = record["config"]["seed"]
    rows = []
    for row in record["rows"]:
        cache = row["cache"] if row["seed"] == seed else "none, another seed"
        rows.append(((row["solver"], cache), [row[name] for name in names]))
    columns = {"equal tokens ↑": 3, "equal molecules ↑": 3, "valid ↑": 3}
    columns["tokens / evaluation ↑"] = 2
    return [make_table("Samples with approximate caches", "solver, cache", columns, rows)]


def gpu_tests(record: Record) -> list[Table]:
    names = ("passed", "failed", "skipped")
    row = record["date"][:10], [record["outcomes"].get(name, 0) for name in names]
    return [make_table("Tests on a GPU", "date", names, [row])]


def chaos(record: Record) -> list[Table]:
    rows = [
        (name, (sum(counts.values()), len(record["defects"].get(name, []))))
        for name, counts in record["counts"].items()
    ]
    title = f"Faults injected into commands, seed {record['config']['seed']}"
    return [make_table(title, "fault", ("commands", "defects ↓"), rows)]


def api_calls(record: Record) -> list[Table]:
    outcomes = record["outcomes"]
    values = [outcomes.get("refused", 0), outcomes.get("valid", 0), len(record["defects"])]
    row = str(record["config"]["seed"]), values
    columns = ("raised InputError", "valid result", "defects ↓")
    return [make_table("Calls of the Python API with random arguments", "seed", columns, [row])]


def mutations(record: Record) -> list[Table]:
    outcomes: dict[str, list[bool]] = {}
    for mutant in record["mutants"]:
        package = mutant["module"].removesuffix(".py").split("/")[1]
        outcomes.setdefault(package, []).append(mutant["outcome"] != "survived")
    rows = [(name, (len(killed), sum(killed))) for name, killed in sorted(outcomes.items())]
    rows.append(("all", (len(record["mutants"]), sum(map(sum, outcomes.values())))))
    title = f"Mutants, seed {record['config']['seed']}"
    return [make_table(title, "package", ("mutants", "killed ↑"), rows)]


def profile(record: Record) -> list[Table]:
    work = record["work"]
    renamed = {"optimiser": "optimizer", "all else": "other"}  # in older records
    kinds = dict.fromkeys(kind for part in work.values() for kind in part["kinds"])
    rows = [
        (renamed.get(kind, kind), [part["kinds"].get(kind) for part in work.values()])
        for kind in kinds
    ]
    rows.append(("all kernels", [part["busy_ms"] for part in work.values()]))
    columns = {f"{name}, ms": 2 for name in work}
    return [make_table("Time per step by kind of kernel", "kernel", columns, rows)]


SPELLED = "24 randomized SMILES"
TITLES = {
    "qm9_search": "Counted jumps",
    "qm9_refine": "Refinement",
    "qm9_mend": "Resampling, settings",
    "qm9_best": "Resampling, chosen settings",
    "qm9_best_spelled": "8 randomized SMILES, chosen settings",
    "qm9_best_spelled24": f"{SPELLED}, first run",
    "qm9_best_spelled24_again": f"{SPELLED}, second run",
    "qm9_best_spelled24_hot": f"{SPELLED}, third run",
    "qm9_best_spelled24_seed1": f"{SPELLED}, fourth run",
}
TABLES: dict[str, Callable[[Record], list[Table]]] = {
    "qm9_small": solver_table,
    "qm9_limits": limits,
    "qm9_causes": causes,
    "qm9_endings": endings,
    **{name: partial(searched, title) for name, title in TITLES.items()},
    "qm9_spelled": partial(best, "8 randomized SMILES, search", (850, 900, 950)),
    "qm9_spelled24": partial(best, f"{SPELLED}, search", (970, 980, 990)),
    "qm9_spelled24_long": partial(best, f"{SPELLED}, 16,000 training steps", (970, 980, 990)),
    "qm9_spelled24_hot": partial(best, f"{SPELLED}, higher temperatures", (970, 980, 990)),
    "qm9_best_seeds": seeds,
    "finetune": finetune,
    "moses": moses,
    "moses_dropout": partial(moses, title="Dropout and rejection"),
    "scaffolds": scaffolds,
    "predictor_guidance": partial(guidance, "Guidance by a predictor, MOSES"),
    "classifier_free": partial(guidance, "Classifier-free guidance, MOSES"),
    "evaluation_time": evaluation_time,
    "text_small_mask": text_small,
    "text_small_uniform": text_small,
    "run_scatter": run_scatter,
    "exact_target": exact_target,
    "dropout_positions": dropout_positions,
    "context_path": context_path,
    "sampling_step": sampling_step,
    "elbo_variance": elbo_variance,
    "prepare": prepare,
    "startup": startup,
    "replay_cost": replay_cost,
    "cpu_sampling": cpu_sampling,
    "cache_change": cache_change,
    "gpu_tests": gpu_tests,
    "chaos_3": chaos,
    "chaos_4": chaos,
    "chaos_5": chaos,
    "api_calls": api_calls,
    "mutations_1": mutations,
    "mutations_2": mutations,
    "mutations_3": mutations,
    "profile": profile,
    **frontier_tables.TABLES,
    **language_tables.TABLES,
}
