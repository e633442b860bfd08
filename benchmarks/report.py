"""Write docs/results.md, speed.md and claims.md from results/: no number is copied by hand.

python -m benchmarks.report
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.claims_page import claims_page
from benchmarks.speed_page import page, table
from cwdfm.repro.experiment import Experiment, Plan, numbered
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.job import Store
from cwdfm.repro.table import Table

ROOT = Path(__file__).parent.parent
STORE = Store(ROOT / "results" / "repro" / "jobs")
MENDED = ("temperature", "steps", "mend", "noise", "trust", "again")
REFINED = ("temperature", "share", "steps", "rounds", "cold")
Result = dict[str, Any]


def origin(result: Result) -> str:
    """One line on where a result comes from."""
    hardware, versions = result["hardware"], result["versions"]
    machine = hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} threads"
    return (
        f"`{result['command']}`, revision `{result['revision']}`, {result['date'][:10]}, "
        f"{machine}, torch {versions['torch']}, Python {versions['python']}, "
        f"config `{result['config']}`."
    )


def exact_target(result: Result) -> str:
    steps = sorted({row["steps"] for row in result["rows"]})
    keys = dict.fromkeys((row["source"], row["solver"]) for row in result["rows"])
    value = {(r["source"], r["solver"], r["steps"]): r["total_variation"] for r in result["rows"]}
    rows = [[f"{s}: {v}", *(f"{value[s, v, k]:.4f}" for k in steps)] for s, v in keys]
    return (
        "## Solvers on an exact target\n\n"
        f"Total variation between {result['config']['samples']:,} samples and a target whose exact "
        f"posterior is the model; exact draws of that number show {result['floor']:.4f}. The model "
        "has no error, so all there is to see is the solver's.\n\n"
        + table(["source: solver", *map(str, steps)], rows)
        + "\n\n![error against steps, and order of reveals](../results/exact_target.png)\n\n"
        + origin(result)
    )


def context_path(result: Result) -> str:
    rows = [
        [n, f"{row['buckets'] * 1e3:.1f}", f"{row['naive'] * 1e3:.0f}" if "naive" in row else ""]
        for n, row in result["seconds"].items()
    ]
    return (
        "## Algorithm 1 on a CPU\n\n"
        "Milliseconds to reveal half of the coordinates of 64 sequences.\n\n"
        + table(["N", "buckets", "naive"], rows)
        + f"\n\nN = 8,192 costs {result['growth_8192_over_1024']:.1f} times N = 1,024; the naive "
        f"loop costs {result['naive_over_buckets_1024']:.0f} times the buckets at N = 1,024. "
        f"A whole `ContextPath.sample` of 64 x 1,024, randomness included, takes "
        f"{result['path_sample_seconds'] * 1e3:.1f} ms.\n\n" + origin(result)
    )


def sampling_step(result: Result) -> str:
    rows = [
        [
            name,
            f"{row['seconds_a_step'] * 1e3:.1f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['times_faster']:.1f}",
            f"{row['times_less_memory']:.1f}",
        ]
        for name, row in result["cases"].items()
    ]
    return (
        "## A sampling step at 50,257 tokens on a CPU\n\n"
        "Against `flow_matching`'s Euler solver with the same small model, float64 draws, each in "
        "a process of its own: ours over a whole run of 64 steps, the peer, whose steps all cost "
        "the same, over its first few. Memory is the rise of the resident set while sampling.\n\n"
        + table(["case", "ms a step", "peak MiB", "times faster", "times less memory"], rows)
        + "\n\n"
        + origin(result)
    )


def elbo_variance(result: Result) -> str:
    rows = [
        [
            name,
            f"{row['rmse']:.4f}",
            f"{row['mean_standard_error']:.4f}",
            f"{row['coverage_two_standard_errors']:.1%}",
        ]
        for name, row in result["rows"].items()
    ]
    return (
        "## Integrating the likelihood bound\n\n"
        f"Error of the bound in nats per token (truth {result['truth_nats']:.3f}) over "
        f"{result['config']['seeds']} seeds, the standard error it reports, and how often the "
        "truth lies within two of them.\n\n"
        + table(["uniform in", "error (rms)", "reported", "coverage"], rows)
        + "\n\n"
        + origin(result)
    )


def qm9_small(result: Result) -> str:
    steps = sorted({row["steps"] for row in result["rows"]})
    cell = {(r["source"], r["solver"], r["steps"]): r for r in result["rows"]}
    names = {"euler": "Euler", "neighbor": "Neighbor-weighted", "entropy": "Entropy-weighted"}
    rows = [
        [
            f"{source}: {label}",
            *(
                f"{cell[source, solver, k]['valid']['mean']:.0f} / "
                f"{cell[source, solver, k]['novel']['mean']:.0f}"
                for k in steps
            ),
        ]
        for source in ("uniform", "mask")
        for solver, label in names.items()
    ]
    trainings = "\n".join(
        f"- `{name}`: `{card['training']['command']}`, revision `{card['training']['revision']}`, "
        f"{card['training']['date'][:10]}, {card['training']['hardware']['gpu']}, seed "
        f"{card['recipe']['seed']}, validation loss {card['best_validation']:.4f}."
        for name, card in result["trainings"].items()
    )
    return (
        "## The models in the box on QM9\n\n"
        "Valid / novel of 1,024, means of two folds, against the number of steps. Neighbor weights "
        "with radius 1 and scale 4, Entropy with beta 6, Euler hazard. One training run each.\n\n"
        + table(["source: solver", *map(str, steps)], rows)
        + "\n\nThe Neighbor-weighted solver gives the most valid molecules from 64 steps on with "
        "the uniform source and from 128 on with the mask source, loses at 16, and costs novelty: "
        "fewer of its molecules are new than Euler's. Entropy weights need many steps.\n\n"
        "Trained by:\n\n" + trainings + "\n\nScored by " + origin(result)
    )


def qm9_limits(result: Result) -> str:
    cell = {(row["cell"], row["solver"]): row for row in result["rows"]}
    rows = []
    for name in dict.fromkeys(row["cell"] for row in result["rows"]):
        euler, neighbor = cell[name, "euler"], cell[name, "neighbor"]
        shown = [f"{r['valid']['mean']:.0f} / {r['novel']['mean']:.0f}" for r in (euler, neighbor)]
        rows.append([name, f"{euler['steps']:,}", f"{euler['validation']['elbo']:.3f}", *shown])
    training = result["training"]
    return (
        "## What limits a small model of QM9\n\n"
        "One change at a time from the settings of `qm9-small`, all trained side by side on one "
        "GPU until their time was up: short runs, planned for 2,500 steps and stopped before. "
        "Valid / novel of 1,024 at 128 steps; the bound is on 256 held-out molecules, in nats a "
        "token, at the last validation.\n\n"
        + table(["change", "steps", "bound", "Euler", "Neighbor-weighted"], rows)
        + "\n\nMore steps are worth most: the models in the box are these settings at 22,000 "
        "steps. Then width (17M has seen fewer steps here and is ahead), and with a mask source "
        "known positions. Dropout hurts models this small, averaging helps a little, a learning "
        "rate of 3e-4 is too low. Counts of one run each scatter by about 15.\n\n"
        "Trained by `python -m benchmarks.qm9_limits run`, each by the command that its row of the "
        f"results file holds, revision `{training['revision']}`, {training['hardware']['gpu']}; "
        "scored by " + origin(result | {"config": result["base"]})
    )


def qm9_search(result: Result) -> str:
    """The paper's rule against counted jumps, at the settings that both were tried with."""
    plain = {"radius": 1, "scale": 4.0, "corrector": 0.0, "temperature": 1.0}
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in result["rows"]:
        setting = row["setting"]
        if any(setting[name] != value for name, value in plain.items()):
            continue
        beta = f", beta {setting['beta']:g}" if setting["solver"].startswith("entropy") else ""
        key = (row["model"], setting["solver"] + beta)
        cells.setdefault(key, {})[setting["steps"]] = f"{row['valid']:.0f} / {row['novel']:.0f}"
    steps = sorted({step for found in cells.values() for step in found})
    rows = [
        [f"{model}: {solver}", *(found.get(step, "") for step in steps)]
        for (model, solver), found in sorted(cells.items())
    ]
    samples = sorted({row["samples"] for row in result["rows"]})
    return (
        "## Counted jumps\n\n"
        f"Valid / novel of {' or '.join(f'{n:,}' for n in samples)}, one seed, against the number "
        "of steps: context weights by the paper's rule, by which fewer tokens move than without a "
        "weight, and counted, by which as many do. Counts scatter by about 15.\n\n"
        + table(["model: solver", *map(str, steps)], rows)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample`, revision "
        + ", ".join(f"`{r}`" for r in sorted({row["revision"] for row in result["rows"]}))
        + f"; scored by {origin(result)}"
    )


def qm9_refine(result: Result) -> str:
    """Rounds of refining beside none, for the same steps before."""
    rows = []
    settings = [(row, row["setting"]) for row in result["rows"]]
    for row, setting in sorted(
        settings, key=lambda pair: (pair[0]["model"], *(pair[1][k] for k in REFINED))
    ):
        rounds = f"{setting['rounds']}, temperature {setting['cold']:g}"
        hot = "" if setting["temperature"] == 1 else f", temperature {setting['temperature']:g}"
        rows.append(
            [
                row["model"],
                f"{setting['steps']}{hot}",
                rounds if setting["rounds"] else "none",
                f"{setting['share']:g}" if setting["rounds"] else "",
                f"{row['evaluations']:.1f}",
                f"{row['valid']:.0f} / {row['novel']:.0f}",
            ]
        )
    samples = sorted({row["samples"] for row in result["rows"]})
    return (
        "## Refining\n\n"
        f"Valid / novel of {' or '.join(f'{n:,}' for n in samples)}, one seed, by Euler's solver, "
        "and after rounds of 6 steps each in which a share of the tokens is noised and sampled "
        "again. Evaluations: model calls a sequence. Counts scatter by about 15.\n\n"
        + table(["model", "steps", "rounds", "share", "evaluations", "valid / novel"], rows)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --what refine`, revision "
        + ", ".join(f"`{r}`" for r in sorted({row["revision"] for row in result["rows"]}))
        + f"; scored by {origin(result)}"
    )


def qm9_mend(result: Result) -> str:
    """What the search of settings found."""
    return (
        f"## How to mend\n\nSettings of mending, one seed. {MENDING}\n\n"
        + mended_table(result)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --what mend` and `mend-mask`, "
        + mended_origin(result)
    )


def qm9_best(result: Result) -> str:
    """The chosen ones, with the seed that results are reported with."""
    return (
        "## Mending\n\nWith settings chosen on another seed ([how to mend](#how-to-mend)); "
        f"compare [the models in the box](#the-models-in-the-box-on-qm9). {MENDING}\n\n"
        + mended_table(result)
        + "\n\nDrawn by `python -m benchmarks.qm9_search sample --seed 0 --n 2048 --what best` and "
        "`best-mask`, " + mended_origin(result)
    )


MENDING = (
    "Valid / novel of 1,024, by Euler's solver and after mending: at most 80 rounds with the "
    "uniform source, 10 with the mask source, where each takes 1 / share evaluations. "
    "Evaluations: model calls a sequence. Counts among 1,024 samples scatter by about 15."
)


def mended_origin(result: Result) -> str:
    revisions = ", ".join(f"`{r}`" for r in sorted({row["revision"] for row in result["rows"]}))
    return f"revision {revisions}; scored by {origin(result)}"


def mended_table(result: Result) -> str:
    rows = []
    for row in sorted(
        result["rows"], key=lambda row: (row["model"], *(row["setting"][k] for k in MENDED))
    ):
        setting = row["setting"]
        mended = setting["mend"] > 0
        hot = "" if setting["temperature"] == 1 else f", temperature {setting['temperature']:g}"
        rows.append(
            [
                row["model"],
                f"{setting['steps']}{hot}",
                f"{setting['noise']:g}, {setting['trust']:g}" if mended else "",
                f"{setting['again']:g}" if mended else "",
                f"{row['evaluations']:.1f}",
                f"{row['valid']:.0f} / {row['novel']:.0f}",
            ]
        )
    head = ["model", "steps", "share, trust", "temperature", "evaluations", "valid / novel"]
    return table(head, rows)


def finetune(result: Result) -> str:
    rows = [
        [
            row["model"],
            f"{row['aromatic_share']:.0%}",
            *(f"{row['scores'][key]['mean']:.0f}" for key in ("valid", "unique", "novel")),
            f"{row['copied_share']:.0%}",
        ]
        for row in result["rows"]
    ]
    samples = result["rows"][0]["scores"]["samples"]
    brief = {k: v for k, v in result["config"].items() if k != "recipe"}
    return (
        "## Fine-tuning the model in the box\n\n"
        f"The tutorial's run: `{result['config']['box']}` on {result['config']['molecules']:,} "
        "molecules with an aromatic ring, "
        f"{result['config']['recipe']['steps']} steps, {result['training_seconds']:.0f} seconds. "
        f"Of {samples} samples, before and after: the share of the valid ones that are aromatic, "
        "the counts (novel: not in QM9's training part), and the share of the valid ones that are "
        "copies of those molecules.\n\n"
        + table(["", "aromatic", "valid", "unique", "novel", "copies"], rows)
        + "\n\n"
        + origin(result | {"config": brief})
    )


def demo(result: Result) -> str:
    return (
        "## The demo\n\n"
        f"`make demo` takes {result['seconds']:.0f} seconds on {result['config']['cores']} cores "
        "once everything is installed, the first preparation of QM9 included.\n\n" + origin(result)
    )


def gpu_tests(result: Result) -> str:
    return (
        "## Tests on a GPU\n\n"
        f"{result['outcomes'].get('passed', 0)} of {sum(result['outcomes'].values())} tests "
        f"passed, of those in the files that the command names.\n\n" + origin(result)
    )


def text_small(result: Result) -> str:
    """Solvers against steps; the data's own row last."""
    config = result["config"]
    source = next(name.split("-")[1] for name in config if name.startswith("training-"))
    found = {row["name"]: row for row in result["rows"]}
    heads = {name: head for name, head in config.items() if name in found}
    rows = []
    for name in sorted(heads, key=lambda n: text_key(heads[n]["options"])):
        options = heads[name]["options"]
        nucleus = "" if options["top_p"] == 1 else f", nucleus {options['top_p']}"
        rows.append([options["solver"] + nucleus, str(options["steps"]), *text_cells(found[name])])
    rows.append(["the data", "", *text_cells(found["data-a"])])
    training = config[f"recipe-{source}"]
    recipe, last = training["recipe"], config[f"training-{source}"][-1]
    seconds = training_seconds(config[f"training-{source}"], recipe)
    bound = config[f"bound-{source}"]["results"][0]
    return (
        f"## Text at small scale: {source} source\n\n"
        f"{recipe['model']}, {recipe['steps']:,} steps of {recipe['batch_size']} x "
        f"{recipe['length']} GPT-2 tokens of the novels, validation loss "
        f"{last['validation_loss']:.3f}; held-out perplexity at most {bound['perplexity']:.1f} ± "
        f"{bound['perplexity_error']:.1f}. {found['data-a']['perplexity']['samples']} samples a "
        f"row, one seed; judged by SmolLM2-135M (quantised to 4 bits), retokenised, corpus "
        f"average; ± is the spread of five folds. MAUVE has features of the same judge in "
        f"{found['data-a']['mauve']['buckets']} buckets, which is coarse; in brackets mean and "
        f"spread of five resamples, most of which lie below the score itself.\n\n"
        + table(["solver", "steps", "perplexity", "entropy, bits", "MAUVE"], rows)
        + f"\n\n![entropy and NLL against context](../results/text_small_{source}_context.png)"
        + f"\n\nTrained by `{training['training']['command']}`, revision "
        f"`{training['training']['revision'] or 'not recorded'}`, in {seconds:.0f} s; judged by "
        f"`{result['judging']['command']}`, revision `{result['judging']['revision']}`, "
        f"{result['judging']['hardware']['gpu']}; scored by `{result['command']}`, revision "
        f"`{result['revision']}`, {result['date'][:10]}."
    )


def training_seconds(records: list[Result], recipe: Result) -> float:
    """By the speeds that the log has, without validations."""
    total, before = 0.0, 0
    for record in records:
        if "tokens_per_second" in record:
            tokens = (record["step"] - before) * recipe["batch_size"] * recipe["length"]
            total, before = total + tokens / record["tokens_per_second"], record["step"]
    return total


def text_key(options: Result) -> tuple[float, int, int]:
    order = ("euler", "neighbor", "entropy")
    return -options["top_p"], order.index(options["solver"]), options["steps"]


def text_cells(row: Result) -> list[str]:
    perplexity, entropy = row["perplexity"]["perplexity"], row["statistics"]["entropy"]
    return [
        f"{perplexity['value']:.1f} ± {perplexity['fold_std']:.1f}",
        f"{entropy['value']:.2f} ± {entropy['fold_std']:.2f}",
        f"{row['mauve']['mauve']:.2f} ({mean(row['mauve']['resamples']):.2f} ± "
        f"{row['mauve']['std']:.2f})",
    ]


def prepare(result: Result) -> str:
    rows = [
        [
            f"{case['workers']} worker{'s' if case['workers'] > 1 else ''}, "
            + (f"first {case['limit']} documents" if case["limit"] else "all documents"),
            f"{case['rows']:,}",
            f"{case['seconds']:.0f}",
            f"{max(case['peak_mib']):.0f}",
        ]
        for case in result["cases"]
    ]
    return (
        "## Preparing text\n\n"
        "63 MB of novels into windows of 512 GPT-2 tokens. Memory is the largest resident set "
        "among the processes; it does not grow with the corpus.\n\n"
        + table(["", "windows", "seconds", "peak MiB"], rows)
        + "\n\n"
        + origin(result)
    )


SECTIONS = {
    "qm9_small": qm9_small,
    "qm9_limits": qm9_limits,
    "qm9_search": qm9_search,
    "qm9_refine": qm9_refine,
    "qm9_best": qm9_best,
    "qm9_mend": qm9_mend,
    "finetune": finetune,
    "text_small_mask": text_small,
    "text_small_uniform": text_small,
    "prepare": prepare,
    "demo": demo,
    "exact_target": exact_target,
    "context_path": context_path,
    "sampling_step": sampling_step,
    "elbo_variance": elbo_variance,
    "gpu_tests": gpu_tests,
}


def report() -> str:
    """The whole page."""
    parts = [
        "# Results\n\nGenerated by `python -m benchmarks.report` from the files in `results/`, "
        "which hold every number with its command, revision, versions and hardware."
    ]
    parts.append("Speed has a page of its own: [speed.md](speed.md).")
    parts += repro()
    for name, section in SECTIONS.items():
        parts.append(section(json.loads((ROOT / "results" / f"{name}.json").read_text())))
    return "\n\n".join(parts) + "\n"


def shown_in_repro() -> Iterator[tuple[Experiment, Plan, list[Table]]]:
    """The paper's tables and figures of which results/repro has something at small scale."""
    for experiment in EXPERIMENTS.values():
        plan = experiment.plan("small")
        tables = [found for found in plan.tables(STORE) if _has_numbers(found)]
        if tables:
            yield experiment, plan, tables


def repro() -> list[str]:
    """Their sections."""
    parts = []
    for experiment, plan, tables in shown_in_repro():
        done = [found for job in plan.jobs if (found := STORE.result(job)) is not None]
        shown = "\n".join(found.markdown() for found in tables)
        for stem, figure in numbered(experiment.name, plan.figures(STORE)):
            shown += f"\n![{figure.title}](figures/{stem}.png)\n"
        parts.append(
            f"## {experiment.title}, at small scale\n\n"
            f"`cwdfm repro {experiment.name} --scale small`, {len(done)} of {len(plan.jobs)} jobs; "
            f"each one's settings, revision and hardware are in its `result.json` under "
            f"results/repro/jobs, and its seconds, of a GPU that several of them may have shared. "
            f"Cells of one training run and one seed, unless a spread says otherwise."
            f"\n\n{shown}".rstrip()
        )
    return parts


def _has_numbers(found: Table) -> bool:
    """Whether any row has one of ours; the data's own would be there without any training."""
    filled = [row for row in found.rows if any(v.value is not None for v in row.ours)]
    return any("data" not in row.labels for row in filled)


def draw() -> None:
    """Their figures, into docs/figures."""
    folder = ROOT / "docs" / "figures"
    folder.mkdir(exist_ok=True)
    for experiment, plan, _ in shown_in_repro():
        for stem, figure in numbered(experiment.name, plan.figures(STORE)):
            figure.draw([folder / f"{stem}.png"])


if __name__ == "__main__":
    draw()
    (ROOT / "docs" / "results.md").write_text(report())
    (ROOT / "docs" / "speed.md").write_text(page())
    (ROOT / "docs" / "claims.md").write_text(claims_page())
