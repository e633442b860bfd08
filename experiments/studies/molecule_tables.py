"""The tables of the studies on molecules."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.table import Table, Value, make_table

Record = dict[str, Any]
COUNTS = ("valid of 1,024 ↑", "unique ↑", "novel ↑")
RENAMED = {"mend": "resample_rounds"}  # fields of settings in older records
# Labels of the recorded studies, and those that the tables show.
LABELS = {
    "as here": "library defaults",
    "no last step: masks are left out": "no last step, masks dropped",
    "text behind the end token counts": "end tokens ignored",
    "as here, up to the first end": "up to the first end token",
    "text behind the end counts": "end tokens ignored",
    "what is not framed as in training does not": "only sequences of the training form",
    "uniform, no averaging": "uniform, no EMA",
    "mask, positions known": "mask, learned positions, first token given",
    "mask, rotary alone": "mask, rotary positions only",
}


def label(text: str) -> str:
    return LABELS.get(text, text)


def counts(row: Record) -> list[float]:
    """Valid, unique and novel molecules: means over folds."""
    found = (row[name] for name in ("valid", "unique", "novel"))
    return [x["mean"] if isinstance(x, dict) else x for x in found]


def solver_table(record: Record) -> list[Table]:
    order = ["Euler", "Neighbor", "Entropy"]
    rows = [((r["source"], r["solver"].capitalize(), str(r["steps"])), r) for r in record["rows"]]
    rows.sort(key=lambda row: (row[0][0] == "mask", order.index(row[0][1]), int(row[0][2])))
    made = [(labels, counts(row)) for labels, row in rows]
    return [make_table("Bundled models, QM9", "source, solver, steps", COUNTS, made)]


def limits(record: Record) -> list[Table]:
    """Results of changing one thing in the training recipe at a time."""
    columns = {"training steps": 1, "bound, nats/token ↓": 3} | dict.fromkeys(COUNTS, 1)
    rows = [
        (
            (label(row["cell"]), row["solver"].capitalize()),
            (row["steps"], row["validation"]["elbo"], *counts(row)),
        )
        for row in record["rows"]
    ]
    return [make_table("Training recipe of small models, QM9", "change, solver", columns, rows)]


def causes(record: Record) -> list[Table]:
    """Results of changing one thing in the sampler at a time."""
    rows = [((label(row["change"]), row["solver"]), counts(row)) for row in record["rows"]]
    return [make_table("Implementation choices of the sampler", "change, solver", COUNTS, rows)]


def endings(record: Record) -> list[Table]:
    rows = [
        ((*row["labels"], label(row["reading"])), (100 * row["empty"], *counts(row)))
        for row in record["rows"]
    ]
    labels, columns = "loss, solver, steps, decoding", ("empty, %", *COUNTS)
    return [make_table("Decoding of sequences", labels, columns, rows)]


def setting_of(row: Record) -> Record:
    """The setting of a recorded row, with the present names of its fields."""
    return {RENAMED.get(name, name): value for name, value in row["setting"].items()}


def postprocessing(setting: Record) -> str:
    """Describe the refinement, resampling and rejection of a sampler."""
    parts = []
    if setting.get("rounds"):
        parts.append(
            f"refine {setting['rounds']} rounds, share {setting['share']:g}, "
            f"temperature {setting['cold']:g}"
        )
    if setting.get("resample_rounds"):
        parts.append(
            f"resample: noise {setting['noise']:g}, trust {setting['trust']:g}, "
            f"temperature {setting['again']:g}"
        )
    if setting.get("accept"):
        noise = f" at noise {setting['glance']:g}" if setting.get("glance") else ""
        parts.append(f"reject below {setting['accept']:g}{noise}")
    return "; ".join(parts)


def sampler(row: Record) -> tuple[str, ...]:
    """The labels of a sampler: model, solver, steps, temperature, post-processing."""
    setting = setting_of(row)
    beta = f", beta = {setting['beta']:g}" if setting["solver"].startswith("entropy") else ""
    solver = setting["solver"].capitalize() + beta
    temperature = f"{setting['temperature']:g}"
    return row["model"], solver, str(setting["steps"]), temperature, postprocessing(setting)


SAMPLER = "model, solver, steps, temperature, post-processing"


def searched(title: str, record: Record) -> list[Table]:
    """Every sampler of a search."""
    rows = sorted(record["rows"], key=lambda row: (row["model"], *_order(setting_of(row))))
    made = [(sampler(row), (row.get("evaluations"), *counts(row))) for row in rows]
    return [make_table(title, SAMPLER, ("evaluations ↓", *COUNTS), made)]


def _order(setting: Record) -> tuple[Any, ...]:
    sampler = ("solver", "beta", "temperature", "steps", "rounds")
    names = (*sampler, "resample_rounds", "noise", "trust", "again")
    return tuple(setting.get(name, 0) for name in names)


def best(title: str, thresholds: Sequence[int], record: Record) -> list[Table]:
    """For each model and threshold of valid molecules, the sampler with the most novel ones.

    Rejection is applied to recorded samples: only those above a threshold of plausibility are kept.
    Evaluations include rejected samples.
    """
    options = []
    for row in record["rows"]:
        options.append((row, {"share": 1.0, "least": 0.0} | row))
        options += [(row, kept) for kept in row.get("accepting", [])]
    rows = []
    for model in sorted({row["model"] for row in record["rows"]}):
        for least in thresholds:
            enough = [o for o in options if o[0]["model"] == model and o[1]["valid"] >= least]
            if not enough:
                continue
            row, kept = max(enough, key=lambda option: option[1]["novel"])
            bar = f"{kept['least']:.4f}, {kept['share']:.0%}" if kept["share"] < 1 else ""
            values = (row["evaluations"] / kept["share"], *counts(kept))
            rows.append(((*sampler(row), bar, str(least)), values))
    made = make_table(title, SAMPLER, ("evaluations ↓", *COUNTS), rows)
    return [replace(made, labels=(*made.labels, "plausibility, share kept", "at least"))]


def finetune(record: Record) -> list[Table]:
    columns = ("aromatic, %", "valid of 512 ↑", *COUNTS[1:], "copies, % ↓")
    rows = [
        (
            row["model"],
            (100 * row["aromatic_share"], *counts(row["scores"]), 100 * row["copied_share"]),
        )
        for row in record["rows"]
    ]
    return [make_table("Fine-tuning on aromatic molecules", "model", columns, rows)]


def seeds(record: Record) -> list[Table]:
    """One sampler for several trainings: each with its spread over folds, and their mean."""
    rows = sorted(record["rows"], key=lambda row: row["training_seed"])
    names = ("valid", "unique", "novel")
    made: list[tuple[str, list[Value | float | None]]] = [
        (
            str(row["training_seed"]),
            [row["evaluations"], *(Value.mean(row["folds"][name]) for name in names)],
        )
        for row in rows
    ]
    means = [Value.mean([row[name] for row in rows]) for name in ("evaluations", *names)]
    made.append(("mean", [*means]))
    title, columns = "Repeated with all samples kept", ("evaluations ↓", *COUNTS)
    return [make_table(title, "training seed", columns, made)]


def scaffolds(record: Record) -> list[Table]:
    counted = ("samples", "valid ↑", "contain it ↑", "distinct ↑")
    columns = (*counted, "pass the filters, %", "evaluations ↓")
    rows = []
    for row in record["rows"]:
        counts = [row[name] for name in ("samples", "valid", "with_scaffold", "distinct")]
        values = (*counts, 100 * row["filters"], row["evaluations"])
        rows.append(((row["drug"], f"`{row['scaffold']}`"), values))
    return [make_table("Scaffolds of drugs", "drug, scaffold", columns, rows)]


def evaluation_time(record: Record) -> list[Table]:
    rows = [(name, (spent["cpu"], spent["wall"])) for name, spent in record["seconds"].items()]
    config = record["config"]
    title = f"Evaluating {config['n']:,} molecules against MOSES, {config['cores']} cores"
    return [make_table(title, "run", {"CPU seconds ↓": 0, "seconds ↓": 0}, rows)]


MOSES_COLUMNS = {
    "evaluations ↓": 0, "valid ↑": 4, "unique@10k ↑": 4, "novelty ↑": 3, "filters ↑": 3,
    "FCD/Test ↓": 3, "FCD/TestSF ↓": 3, "SNN/Test ↑": 3, "Frag/Test ↑": 3, "Scaf/TestSF ↑": 3,
    "IntDiv ↑": 3,
}  # fmt: skip


def moses(record: Record, title: str = "MOSES") -> list[Table]:
    """MOSES metrics of every sampler of every run, and the validation losses of the runs."""
    rows, losses = [], {}
    for row in record["rows"]:
        found = [row["scores"].get(name.split()[0], {}).get("value") for name in MOSES_COLUMNS]
        rows.append(((row["run"], row["sampler"]), [row["evaluations"], *found[1:]]))
        last = row["training"]
        losses[row["run"]] = [last["step"], last["validation_loss"], last.get("elbo")]
    columns = {"steps": 0, "validation loss ↓": 3, "bound, nats/token ↓": 3}
    return [
        make_table(f"{title}, 30,000 samples", "model, sampler", MOSES_COLUMNS, rows),
        make_table(f"{title}, training", "model", columns, [*losses.items()]),
    ]


def guidance(title: str, record: Record) -> list[Table]:
    """Requested and obtained property by strength of guidance, beside rejection sampling."""
    columns = {"samples": 1, "valid, % ↑": 1, "obtained": 2, "error ↓": 3, "diversity ↑": 3}
    columns["evaluations ↓"] = 0
    rows = []
    for row in sorted(record["rows"], key=lambda row: (row["property"], row["requested"])):
        if "draws" in row:
            how = f"closest of {row['draws']}" if row["draws"] > 1 else "no guidance"
        else:
            form = ", exact form" if row["form"] == "exact" else ""
            how = f"strength {row['strength']:g}{form}"
        values = (
            row["samples"],
            100 * row["valid"],
            row.get("obtained"),
            Value(row.get("error"), row.get("standard_error"), 3),
            row.get("diversity"),
            row["evaluations"],
        )
        rows.append(((row["property"], f"{row['requested']:g}", how), values))
    return [make_table(title, "property, requested, sampling", columns, rows)]
