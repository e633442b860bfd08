"""Notes below tables and figures: settings, numbers of samples and runs, the meaning of ±."""

from collections.abc import Iterable, Mapping, Sequence

from experiments.cell import Cell, weight_label
from experiments.measure import Measure, measure
from experiments.solver_choice import SolverChoice
from experiments.store import Store
from experiments.tasks.train import Train

ERROR = "± of held-out PPL is one standard error."

Labeled = Sequence[tuple[tuple[str, ...], Cell]]  # the labels of a table's rows, and their cells


def earlier_runs_note(rows: Labeled, store: Store) -> tuple[str, ...]:
    """A note on rows whose results come from an earlier run of the training."""
    sampled: dict[Train, dict[str, list[tuple[str, ...]]]] = {}
    for labels, cell in rows:
        for seed in range(cell.seeds):
            task = cell.train(seed)
            if date := store.run_date(task, cell.sample(seed)):
                sampled.setdefault(task, {}).setdefault(date, []).append(labels)
    every: dict[str, set[str]] = {}
    for labels, _ in rows:
        every.setdefault(labels[0], set()).add(" ".join(labels[1:]))
    earlier: list[dict[str, dict[str, None]]] = []  # by age: one run before the last, two, ...
    for runs in sampled.values():
        for age, date in enumerate(sorted(runs, reverse=True)[1:]):
            if age == len(earlier):
                earlier.append({})
            for labels in runs[date]:
                earlier[age].setdefault(labels[0], {})[" ".join(labels[1:])] = None
    texts = [
        "; ".join(
            first + (f" ({', '.join(rest)})" if any(rest) and rest.keys() != every[first] else "")
            for first, rest in found.items()
        )
        for found in earlier
    ]
    if not texts:
        return ()
    if len(texts) == 1:
        return (f"From an earlier run of the same training, whose model was deleted: {texts[0]}.",)
    listed = " ".join(f"({number}) {text}." for number, text in enumerate(texts, start=1))
    start = "From earlier runs of the same training, whose models were deleted, newest first: "
    return (start + listed,)


def weights_of(choices: Iterable[SolverChoice]) -> dict[str, set[str]]:
    """The settings of the context weights of solvers, by kind of weight."""
    found: dict[str, set[str]] = {}
    for choice in choices:
        kind = choice.solver.removesuffix("-counted")
        if kind == "neighbor":
            found.setdefault(kind, set()).add(weight_label(choice.radius, choice.scale))
        elif kind == "entropy":
            found.setdefault(kind, set()).add(f"beta = {choice.beta:g}")
    return found


def weights_note(choices: Iterable[SolverChoice], where: str = "") -> tuple[str, ...]:
    """The settings of context weights that are the same for all solvers."""
    found = weights_of(choices)
    texts = [f"{kind.capitalize()} {one}" for kind, (one, *more) in found.items() if not more]
    return (f"Weights{where}: {'; '.join(texts)}.",) if texts else ()


def solver_notes(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The same for the cells of a table, by path and source where the settings differ."""
    found: dict[bool, dict[str, list[SolverChoice]]] = {False: {}, True: {}}
    for cell in cells:
        recipe = cell.train().recipe
        on_context = recipe.method == "flow" and recipe.path == "context"
        found[on_context].setdefault(recipe.source, []).append(cell.choice)
    mixture, context = (
        weights_of(c for each in found[on].values() for c in each) for on in (False, True)
    )
    if all(settings == mixture.get(kind) for kind, settings in context.items()):
        found[True] = {}  # the same as on the mixture path
    notes: list[str] = []
    for on_context, by_source in found.items():
        where = " on the context-weighted path" if on_context and found[False] else ""
        all_choices = [choice for choices in by_source.values() for choice in choices]
        if len(by_source) > 1 and any(len(one) > 1 for one in weights_of(all_choices).values()):
            for source, choices in by_source.items():
                notes += weights_note(choices, f"{where} with a {source} source")
        else:
            notes += weights_note(all_choices, where)
    return tuple(notes)


def loss_note(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The settings of the weights in scaled losses that are the same for all cells."""
    recipes = [cell.train().recipe for cell in cells]
    scaled = [recipe for recipe in recipes if recipe.method == "flow" and recipe.loss == "sce"]
    radii = {f"r = {recipe.loss_radius}" for recipe in scaled}
    scales = {f"s = {recipe.loss_scale:g}" for recipe in scaled}
    same = [one for one, *more in (radii, scales) if not more] if scaled else []
    return (f"Neighbor weights in the loss (SCE): {', '.join(same)}.",) if same else ()


def runs_note(rows: Labeled, store: Store) -> tuple[str, ...]:
    """A note on the number of runs per row, rows with fewer, and the meaning of ±."""
    planned = max(cell.seeds for _, cell in rows)
    done = {labels: cell.runs(store) for labels, cell in rows}
    usual = max(done.values())
    if usual == 0:
        return ()
    how, samples = _measure([cell for _, cell in rows])
    single, spread = how.spread_of_one_run(samples), "; ± is one standard deviation "
    if planned == 1:
        text = f"{spread}{single}" if single else f"; the statistical error is {how.chance()}"
        return (f"One run per training{text}.",)
    total = f"{usual} runs" if usual == planned else f"{usual} of {planned} runs"
    fewer = _fewer(done, usual)
    less = f", over fewer for {'; '.join(fewer)}" if fewer else ""
    spreads = ["between runs"] if usual > 1 else []
    spreads += [f"{single} for the data"] if single else []
    return (f"Means over {total}{less}{spread if spreads else ''}{', '.join(spreads)}.",)


def _fewer(done: Mapping[tuple[str, ...], int], usual: int) -> list[str]:
    """Rows with fewer runs than most, grouped by their first label."""
    found: dict[str, None] = {}
    for labels, runs in done.items():
        if 0 < runs < usual:
            alike = {n for other, n in done.items() if other[0] == labels[0]} == {runs}
            shown = labels[:1] if alike else labels
            found[f"{' '.join(filter(None, shown))} ({runs})"] = None
    return list(found)


def bars_note(cells: Sequence[Cell], store: Store) -> str:
    """What the error bars of a figure are. All cells must be of one corpus."""
    runs = {cell.runs(store) for cell in cells} - {0} or {cell.seeds for cell in cells}
    how, samples = _measure(cells)
    single = how.spread_of_one_run(samples) or how.chance()
    several = " or ".join(str(n) for n in sorted(runs) if n > 1)
    texts = [f"between {several} runs"] if several else []
    if 1 in runs:
        texts.append(f"{single} for single runs" if several else single)
    return f"Bars: one standard deviation, {'; '.join(texts)}."


def _measure(cells: Sequence[Cell]) -> tuple[Measure, int]:
    """The measure of the cells, and the number of samples per cell."""
    return measure(cells[0].corpus, cells[0].scale), cells[0].sample().n


def samples_note(cells: Iterable[Cell]) -> str:
    """The number of samples per run, and of solver steps if it is the same for all."""
    tasks = [cell.sample() for cell in cells]
    numbers = " or ".join(f"{n:,}" for n in sorted({task.n for task in tasks}))
    steps, *others = {task.steps for task in tasks}
    return f"{numbers} samples per run" + ("." if others else f", in {steps:,} steps.")
