"""Claims about training: losses and paths."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from operator import itemgetter

from experiments import paper
from experiments.catalog.ablations import revealed_entries
from experiments.catalog.curves import trainings
from experiments.catalog.training import LOSSES, PATHS, SOURCES
from experiments.cell import weights_told
from experiments.claims.judging import (
    Claim,
    Missing,
    Pair,
    Verdict,
    changes,
    judged,
    no_worse,
    number,
    pair,
    rows_of,
    tested,
)
from experiments.claims.molecule_trainings import (
    BOTH,
    Compared,
    behind,
    by_search,
    compared,
    searched,
)
from experiments.claims.on_molecules import MODEL, QM9, VALID, Runs
from experiments.claims.on_text import (
    ENTROPY,
    MAUVE,
    NOVELS,
    PERPLEXITY,
    by_source,
    run_entropy,
    run_perplexity,
)

LOSS_CELLS = {line.labels: line.cell("molecules", "small") for line in LOSSES}
LOSS_RUNS = Runs(tuple(LOSS_CELLS.values()))
CONTEXT_ON_TEXT = next(line for line in PATHS if line.on_context)
PATH_CELLS = {line.labels: line.cell("molecules", "small") for line in PATHS}
LOSSES_AT = f"{paper.table('loss_functions')}, bold text"
PATHS_AT = f"{paper.table('path_ablation')}, bold text"
TUNED = "tuned-losses-molecules"  # by which losses and paths are judged, not by default settings
TRAINING = f"{MODEL}, {QM9.recipe.steps:,} steps"
# The paper does not tell whether path and loss have the same weights.
IN_LOSS = weights_told(QM9.recipe.loss_radius, QM9.recipe.loss_scale)


def not_normalised() -> str:
    """What weights that are not normalised change from CE, and the two parts of them.

    The first part is what a sequence weighs as a whole, by how much of it is there; the second, how
    that is shared among its tokens, by local context.
    """
    cells = {entry.labels: entry.cell for entry in revealed_entries("small")}
    runs = Runs(tuple(cells.values()))
    told = []
    for weight, name in (
        ("raw", "With weights that are not normalised"),
        ("level", "their level alone, without local context"),
        ("joint", "local context alone"),
    ):
        pairs = [
            pair(source, partial(runs.mean, what=VALID), cells[source, "CE"], cells[source, weight])
            for source in SOURCES
            if all(runs.counts(cells[source, each], VALID) for each in ("CE", weight))
        ]
        gains = " and ".join(f"{b.above(a):+.1f} ({source})" for source, a, b in pairs)
        if pairs:
            told.append(f"{name} (`{weight}`): {changes(pairs)} valid, {gains} errors")
    return f". {'; '.join(told)}" if told else ""


def losses() -> Iterator[Claim]:
    said = (
        "Scaled cross-entropy gives more valid molecules than cross-entropy, 475 to 556 (uniform), "
        "135 to 177 (mask), and more novel ones, 287 to 298, 115 to 138"
    )
    yield from tested(LOSSES_AT, said, "losses", _beside_plain, TUNED)

    said = (
        "Scaled cross-entropy gives more valid molecules than NELBO and Bregman too, and is "
        "competitive in novel ones"
    )
    yield from tested(LOSSES_AT, said, "losses", _beside_others)

    said = "Scaled cross-entropy is ahead of NELBO and Bregman too: text"
    yield from tested(LOSSES_AT, said, "losses", _beside_others_on_text)


def _beside(loss: str) -> Compared:
    """What SCE changes from another loss."""
    sources = [s for s in SOURCES if LOSS_RUNS.counts(LOSS_CELLS[s, loss], VALID)]
    before = {source: LOSS_CELLS[source, loss] for source in sources}
    found = compared(LOSS_RUNS, before, {s: LOSS_CELLS[s, "SCE"] for s in sources})
    left = "".join(f", not done yet with a {s} source" for s in SOURCES if s not in sources)
    many = LOSS_RUNS.told(*before.values())
    return replace(found, told=f"{loss} ({many}) to SCE: {found.told}{left}")


def _scaled() -> str:
    """How models were trained by SCE."""
    many = LOSS_RUNS.told(*(LOSS_CELLS[source, "SCE"] for source in SOURCES))
    recipe = QM9.recipe
    return f"{TRAINING}, SCE {many}, r = {recipe.loss_radius}, s = {recipe.loss_scale:g}"


def _beside_plain() -> tuple[str, Verdict]:
    best = by_search("CE", "SCE")
    short, far = behind(best.valid, "ce", "sce")
    told = f"{_scaled()}. {_beside('CE').told}{not_normalised()}{searched('SCE')}"
    return f"{told}. With these settings {best.told}{far}", judged(best.gains | short, best.effect)


def _beside_others() -> tuple[str, Verdict]:
    found = {loss: _beside(loss) for loss in ("NELBO", "Bregman")}
    gains = {
        "valid": [gain for each in found.values() for gain in each.gains["valid"]],
        "novel": [no_worse(gain) for each in found.values() for gain in each.gains["novel"]],
    }
    effect = "; ".join(
        f"valid, {loss} to SCE: {changes(each.valid)}" for loss, each in found.items()
    )
    told = "; ".join(each.told for each in found.values())
    return f"{_scaled()}. {told}", judged(gains, effect)


def _beside_others_on_text() -> tuple[str, Verdict]:
    rows = rows_of("losses", 0)
    others = list(product(SOURCES, ("NELBO", "Bregman")))
    done = [which for which in others if rows[which][PERPLEXITY].value is not None]
    pairs = [
        (
            f"{source}, {loss}",
            run_perplexity(rows[source, loss][PERPLEXITY], source, diverging=True),
            run_perplexity(rows[source, "SCE"][PERPLEXITY], source),
        )
        for source, loss in done
    ]
    told = [f"perplexity: {changes(pairs)}"]
    gains = {"perplexity": [a.over(b) for _, a, b in pairs], "MAUVE": []}
    for name, column in (("MAUVE", MAUVE), ("entropy", ENTROPY)):
        each = []
        for source, loss in done:
            other, scaled = (number(rows[source, of][column]) for of in (loss, "SCE"))
            each.append(f"{other.value:.2f} to {scaled.value:.2f} ({source}, {loss})")
            gain = scaled.above(other)
            if name == "MAUVE":  # of which the paper has none beside NELBO with a mask source
                none = (source, loss) == ("mask", "NELBO")
                gains["MAUVE"].append(no_worse(gain) if none else gain)
        told.append(f"{name}: {', '.join(each)}")
    told += [f"not done yet: {', '.join(which)}" for which in others if which not in done]
    return f"{NOVELS}, {'; '.join(told)}", judged(gains, told[0])


def paths() -> Iterator[Claim]:
    said = (
        "Training on the context-weighted path gives more valid and novel molecules: 556 to 658 "
        "(uniform) and 177 to 298 (mask, nearly double) valid, 298 to 310 and 138 to 182 novel"
    )
    yield from tested(PATHS_AT, said, "paths", _paths_on_molecules, TUNED)

    said = (
        "Text gains from that path with a mask source, perplexity 38.9 to 36.3 and MAUVE 0.69 to "
        "0.75, and not with a uniform one, where entropy grows modestly"
    )
    yield from tested(paper.table("path_ablation"), said, "paths", _paths_on_text)


def _paths_on_molecules() -> tuple[str, Verdict]:
    """Each path by its own solver, and what others make of it."""
    runs = Runs(tuple(PATH_CELLS.values()))
    mixture, context = (
        {s: PATH_CELLS[s, path] for s in SOURCES} for path in ("mixture", "context")
    )
    first = compared(runs, mixture, context)
    best = by_search(*BOTH)
    short, far = behind(best.valid, "sce", "sce, context 1")
    choice = context["mask"].choice
    own = weights_told(choice.radius, choice.scale)
    told = [
        f"{TRAINING}, {runs.told()}, mixture path by Euler to context path with its own weights "
        f"({own}; in the loss {IN_LOSS}): {first.told}",
        *by_one_solver(),
        *by_other_weights(),
    ]
    text = f"{'. '.join(told)}{searched(BOTH[1])}. With these settings {best.told}{far}"
    effect = best.effect
    if swept := best_of_sweep():
        most = ", ".join(f"{value:.0f} ({s})" for s, value in swept.items())
        effect += f"; by the best of several solvers {most}"
    return text, judged(best.gains | short, effect)


def _paths_on_text() -> tuple[str, Verdict]:
    """The same of text, one run of each."""
    sides = ("mixture", "context")
    effect, gains = by_source("paths", sides, "", "MAUVE", MAUVE)
    rows = rows_of("paths", 0)
    x, y = (run_entropy(rows["uniform", side][ENTROPY], "uniform") for side in sides)
    choice = CONTEXT_ON_TEXT.choice("text")
    told = (
        f"{NOVELS}, {effect}; entropy, uniform: {x.value:.2f} to {y.value:.2f}; the context "
        f"path sampled with its own weights (r = {choice.radius}, s = {choice.scale:g}), for "
        "which the paper searches too"
    )
    told = ". ".join([told, *by_other_weights("path-solvers-text", PERPLEXITY)])
    return told, judged(
        {
            "mask, perplexity and MAUVE": gains["mask"],
            "uniform, no gain in these": [no_worse(-gain) for gain in gains["uniform"]],
            "uniform, entropy": [y.above(x)],
        },
        effect,
    )


def by_other_weights(experiment: str = "path-solvers", column: int = VALID) -> list[str]:
    """What other solver settings make of the context path; nothing while that is missing."""
    told = []
    best, word, what = (max, "most", "valid") if column == VALID else (min, "least", "perplexity")
    for source in SOURCES:
        if found := _swept(source, experiment, column):
            (name, _), values = best(found.items(), key=itemgetter(1)), found.values()
            told.append(f"{min(values):.0f} to {max(values):.0f} ({source}), {word} by {name}")
    many = "Other solvers on the context path, as the paper searches them (one run, another seed)"
    return [f"{many}, {what}: {', '.join(told)}"] if told else []


def best_of_sweep() -> dict[str, float]:
    """The most valid molecules of the context path by any solver; nothing while some is missing."""
    swept = {source: _swept(source, "path-solvers", VALID) for source in SOURCES}
    return {s: max(valid.values()) for s, valid in swept.items()} if all(swept.values()) else {}


def _swept(source: str, experiment: str, column: int) -> dict[str, float]:
    """A measure of samples of the context path by solver; nothing while some are missing."""
    rows = {k[1]: v for k, v in rows_of(experiment).items() if k[0] == source}
    found = {name: row[column].value for name, row in rows.items()}
    known = {name: value for name, value in found.items() if value is not None}
    return known if len(known) == len(found) else {}


def by_one_solver() -> list[str]:
    """Both paths by one solver, from the experiment on curves; nothing while that is missing.

    What a solver gains on the context path, it may gain on the other.
    """
    found = {(each.source, each.name): each.cells for each in trainings("small")}
    cells = {
        (source, solver): [found[source, name][solver][QM9.steps] for name in BOTH]
        for source, solver in product(SOURCES, ("Euler", "Neighbor"))
    }
    runs = Runs(tuple(chain.from_iterable(cells.values())))
    told: dict[str, list[Pair]] = {}
    try:
        for (source, solver), sides in cells.items():
            compared = pair(source, lambda cell: runs.mean(cell, VALID), *sides)
            told.setdefault(solver, []).append(compared)
    except Missing:
        return []
    each = "; ".join(f"{solver} {changes(pairs)}" for solver, pairs in told.items())
    return [f"One solver on both paths, {runs.told()}, valid: {each}"]
