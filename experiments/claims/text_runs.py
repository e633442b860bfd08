"""How far runs on text end apart, and what the tokens that count in a loss have to do with it."""

import math
import statistics

from experiments.benchmarks.run_scatter import named
from experiments.catalog.ablations import COUNTING, counting_cell
from experiments.catalog.headline import MASKED
from experiments.claims.judging import Missing, by_seed, number, or_missing, pooled, rows_of
from experiments.claims.on_molecules import NOVEL, STEPS, VALID
from experiments.claims.on_text import PERPLEXITY, done_again, loss_scatter, sample_scatter, tabled

LOSSES, TOKENS = ("CE", "SCE"), ("masked", "all")


def scatter() -> str:
    """How far runs of one training on text end apart, and what errors have for it."""
    rows = done_again()
    losses = {named(row): max(row["losses"]) - min(row["losses"]) for row in rows}
    judged = {
        named(row): ", ".join(f"{value:.0f}" for value in found)
        for row in rows
        if (found := tabled(row, "perplexities"))
    }
    begun = {named(row): ", ".join(f"{loss:.2f}" for loss in row["early"]) for row in rows}
    nats = {source: sample_scatter("perplexities", source) for source in ("uniform", "mask")}
    worst = sample_scatter("perplexities", "mask", diverging=True)
    bits = sample_scatter("entropies", "uniform")
    early = "; ".join(f"{told} ({name})" for name, told in begun.items())
    return f"""- **Scatter.** {len(rows)} trainings on text were done 2 to {most_runs()} times, all
  runs of one training with the same seed ([results](results.md#runs-of-the-same-training)). How far
  apart they end in held-out loss, in nats:
  {"; ".join(f"{value:.2f} ({name})" for name, value in losses.items())}.
  Perplexities of samples of several runs:
  {"; ".join(f"{told} ({name})" for name, told in judged.items())}.
  The farthest apart are runs in whose loss masked tokens alone count, and they part early. Training
  losses after a quarter of the steps: {early}.
  Such runs first stay near the loss of a prediction without any context, and leave it at different
  times.
  Where trainings are compared, this scatter is part of the errors, pooled: of a perplexity of
  samples
  {nats["uniform"]:.2f} nats (uniform source) or {nats["mask"]:.2f} (mask), of NELBO and Bregman,
  whose weights diverge at the end of the path, {worst:.2f}; of entropy {bits:.2f} bits (uniform
  source, on which claims about it are); of a perplexity on held-out text {loss_scatter():.2f} nats.
  Other seeds were tried of a few trainings alone (CE and SCE, and the tokens that count).
  Comparisons of solvers on one run need no such part."""


def most_runs() -> int:
    """How often a training on text was done, at most."""
    return max(len(row["losses"]) for row in done_again())


def same_training() -> str:
    """Perplexities of samples by runs of one training."""
    (row,) = (row for row in done_again() if named(row) == "uniform source, ce")
    found = sorted(tabled(row, "perplexities"))
    return f"{found[0]:.0f} to {found[-1]:.0f}"


def tokens() -> str:
    """What it changes on text that all tokens count in a loss, and not the masked ones alone."""
    return (
        "- **Tokens that count.** The paper's cross-entropy is of all tokens. With a mask source "
        "the best model is the same if\n  masked tokens alone count, and the way there is not. "
        f"{or_missing('tokens-text', _tokens)}"
    )


def _tokens() -> str:
    runs = {labels: _perplexities(*labels) for labels in COUNTING}
    told = "; ".join(f"{loss} of {which} {_listed(runs[loss, which])}" for loss, which in runs)
    logs = {labels: [math.log(value) for value in found] for labels, found in runs.items()}
    sides = [[x for (_, t), f in logs.items() if t == which for x in f] for which in TOKENS]
    fall = statistics.fmean(sides[0]) - statistics.fmean(sides[1])
    error = pooled(logs.values()) * math.sqrt(sum(1 / len(side) for side in sides))
    valid = ", ".join(
        f"{number(row[VALID]).value:.0f} ({' of '.join(labels)})"
        for labels, row in rows_of("tokens-molecules").items()
        if labels in COUNTING and row[VALID].value is not None
    )
    changed = ", ".join(
        f"{' to '.join(f'{statistics.fmean(runs[loss, which]):.0f}' for loss in LOSSES)} ({which})"
        for which in TOKENS
    )
    return (
        f"Perplexities of samples on text,\n  a number for each seed: {told}\n  "
        "([results](results.md#tokens-that-count-in-the-loss-text-mask-source)). Counting all "
        f"tokens lowers them by {fall:.2f} ± {error:.2f} nats;\n  in our other tables all count, "
        "but in the NELBO with a\n  mask source, in MDLM and BD3LM. CE to SCE: "
        f"{changed}.\n  Valid molecules: {valid}; {or_missing('headline', _at_92m)}"
    )


def _at_92m() -> str:
    rows = rows_of("headline")
    told = []
    for name, loss in (("masked", MASKED), ("all", "CE")):
        row = rows[loss, "Euler", str(STEPS[-1])]
        valid, novel = (number(row[column]).value for column in (VALID, NOVEL))
        told.append(f"{valid:.0f} and {novel:.0f} (CE of {name})")
    return f"valid and novel ones of 92M, one run each: {', '.join(told)}."


def _perplexities(loss: str, which: str) -> list[float]:
    """Of the samples of each run."""
    found = by_seed(counting_cell("text", "small", loss, which), PERPLEXITY)
    if None in found:
        raise Missing
    return [value for value in found if value is not None]


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)
