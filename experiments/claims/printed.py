"""What weights in proportion to n and to 1 / H do, as the paper's main text prints them."""

from itertools import product

from experiments.catalog.controls import weights_cells
from experiments.claims.judging import rows_of
from experiments.claims.on_molecules import MODEL
from experiments.claims.on_text import short_runs
from experiments.jobs import Corpus
from experiments.table import Value

# What is judged: its column, and what it is called.
JUDGED: dict[Corpus, tuple[int, str]] = {"text": (1, "Perplexity"), "molecules": (0, "Valid ones")}


def printed() -> str:
    """Whether another reading of the weights is why few steps go badly."""
    return (
        "- **Weights as printed.** The paper's main text prints weights in proportion to the "
        "number n of revealed\n  neighbours and to 1 / H, with no strength to search for; the "
        "appendix prints exp(s score), which we take\n  ([method](method.md#weights)). "
        f"{_told('text', short_runs())}\n  {_told('molecules', MODEL)}"
    )


def _told(corpus: Corpus, models: str) -> str:
    """Each weight's quality, by source and steps, where all have been tried."""
    column, what = JUDGED[corpus]
    rows, keys = rows_of(f"weights-{corpus}"), weights_cells(corpus, "small")
    sources, weights, steps = (list(dict.fromkeys(part)) for part in zip(*keys, strict=True))
    found = []
    for source, k in product(sources, steps):
        values: dict[str, Value] = {w: rows[source, w, str(k)][column] for w in weights}
        if all(value.value is not None for value in values.values()):
            told = ", ".join(f"{w} {value.value:,.0f}" for w, value in values.items())
            found.append(f"\n  {source} source, {k} steps: {told}")
    missing = len(sources) * len(steps) - len(found)
    rest = f"; {missing} more comparisons are not done yet" if missing else ""
    at = "results.md#readings-of-the-weights-" + ("text" if corpus == "text" else "qm9")
    return f"{what} ({models}):{';'.join(found)}{rest}\n  ([results]({at}))."
