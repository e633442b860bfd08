"""What claims about trainings on text have in common."""

from benchmarks.claims.judging import (
    number,
    rows_of,
    run_perplexity,
    short_runs,
)
from cwdfm.repro.experiments.training import SOURCES

MAUVE, PERPLEXITY, ENTROPY, HELD_OUT = range(4)
NOVELS = f"Novels ({short_runs('one run each')})"


def by_source(
    name: str, sides: tuple[str, str], more: str, other: str, column: int
) -> tuple[str, dict[str, list[float]]]:
    """Two rows of a table on text for each source: what changes, and by how many errors.

    Perplexity (down is better) first, then another measure (up).
    """
    rows, told, gains = rows_of(name, 0), [], {}
    for source in SOURCES:
        before, after = rows[source, sides[0]], rows[source, sides[1]]
        a, b = (run_perplexity(row[PERPLEXITY], source) for row in (before, after))
        x, y = number(before[column]), number(after[column])
        told.append(
            f"{source}{more}: perplexity {a.value:.0f} to {b.value:.0f}, {other} {x.value:.2f} to "
            f"{y.value:.2f}"
        )
        gains[source] = [a.over(b), y.above(x)]
    return f"{NOVELS}, {'; '.join(told)}", gains
