"""Sections of docs/results.md on text at small scale, in longer runs than those of the tables."""

from pathlib import Path
from statistics import mean

from cwdfm.metrics.context import ContextAnalysis
from cwdfm.report.analysis_plots import context_plot
from cwdfm.solver_config import SolverChoice
from experiments.benchmarks.markdown import Result, table
from experiments.catalog.locality import AGAINST, binned
from experiments.cell import weights_note
from experiments.table import Value


def text_small(result: Result) -> str:
    """Solvers against steps; the data's own row last."""
    config, source = result["config"], source_of(result)
    found = {row["name"]: row for row in result["rows"]}
    heads = {name: head for name, head in config.items() if name in found}
    choices = [
        SolverChoice(o["solver"], o["radius"], o["scale"], beta=o["beta"])
        for o in (head["options"] for head in heads.values())
    ]
    rows = []
    for name in sorted(heads, key=lambda n: text_key(heads[n]["options"])):
        options = heads[name]["options"]
        nucleus = "" if options["top_p"] == 1 else f", nucleus {options['top_p']}"
        solver = options["solver"].capitalize() + nucleus
        rows.append([solver, f"{options['steps']:,}", *text_cells(found[name])])
    rows.append(["the data", "", *text_cells(found["data-a"])])
    training = config[f"recipe-{source}"]
    recipe, last = training["recipe"], config[f"training-{source}"][-1]
    seconds = training_seconds(config[f"training-{source}"], recipe)
    bound = config[f"bound-{source}"]["results"][0]
    return (
        f"## Text at small scale: {source} source\n\n"
        "A longer training than those of the tables above, by which claims about solvers are "
        f"judged as well: preset {recipe['model']}, {recipe['steps']:,} steps of "
        f"{recipe['batch_size']} x {recipe['length']} GPT-2 tokens of the novels, validation loss "
        f"{last['validation_loss']:.3f}; held-out perplexity at most {bound['perplexity']:.1f} ± "
        f"{bound['perplexity_error']:.1f}. {found['data-a']['perplexity']['samples']} samples a "
        f"row, one seed; judged by SmolLM2-135M-Instruct (quantised to 4 bits), retokenised, "
        f"corpus average; ± is the spread of five folds. MAUVE has features of the same judge in "
        f"{found['data-a']['mauve']['buckets']} buckets, which is coarse; in brackets mean and "
        f"spread of five resamples, most of which lie below the score itself. "
        f"{' '.join(weights_note(choices))}\n\n"
        + table(["solver", "steps", "gen. PPL ↓", "entropy, bits ↑", "MAUVE ↑"], rows)
        + f"\n\n{against_context(config[f'context-{source}'])}"
        + f"\n\n![entropy and NLL against context](../results/text_small_{source}_context.png)"
        + f"\n\nTrained by `{training['training']['command']}`, revision "
        f"`{training['training']['revision'] or 'not recorded'}`, in {seconds:.0f} s; judged by "
        f"`{result['judging']['command']}`, revision `{result['judging']['revision']}`, "
        f"{result['judging']['hardware']['gpu']}; scored by `{result['command']}`, revision "
        f"`{result['revision']}`, {result['date'][:10]}."
    )


def source_of(result: Result) -> str:
    """Which of the two it is of."""
    (name,) = (n for n in result["config"] if n.startswith("training-"))
    return str(name).removeprefix("training-")


def draw_context(result: Result, folder: Path) -> None:
    """Its picture of entropy and negative log-likelihood against context."""
    source = source_of(result)
    analysis = ContextAnalysis.from_json(result["config"][f"context-{source}"])
    recipe = result["config"][f"recipe-{source}"]["recipe"]
    trained = f"{recipe['steps']:,} training steps of {recipe['batch_size']} sequences"
    title = f"Masked tokens by context, text, {source} source ({trained})"
    context_plot(analysis, folder / f"text_small_{source}_context.png", title=title)


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
        Value(perplexity["value"], perplexity["fold_std"], 1).text(),
        Value(entropy["value"], entropy["fold_std"], 2).text(),
        f"{row['mauve']['mauve']:.2f} ({mean(row['mauve']['resamples']):.2f} ± "
        f"{row['mauve']['std']:.2f})",
    ]


def against_context(found: Result) -> str:
    """Some points of the picture."""
    tables = []
    for kind in AGAINST:
        curve = found[kind]
        rows = [
            [
                str(curve["bins"][i]),
                *(f"{curve[n][i]:.2f} ± {curve[f'{n}_error'][i]:.2f}" for n in ("entropy", "nll")),
            ]
            for i in picked(len(curve["bins"]))
        ]
        tables.append(table([binned(kind), "entropy, nats", "NLL, nats"], rows))
    return "\n\n".join(["Masked tokens of held-out text, by context:", *tables])


def picked(number: int) -> list[int]:
    """Few of so many points, more of them at the beginning: the first, ..., the last."""
    doubled = [0, *(2**i for i in range(number.bit_length()) if 2**i < number - 1)]
    return [*doubled, number - 1]
