"""Where our results differ from the paper's: what was found of the causes."""

import math

from benchmarks.claims.judging import (
    ALONE,
    CLEAR,
    COUNT_ERROR,
    Runs,
    number,
    read,
    rows_of,
)
from cwdfm.repro.experiments.solvers import BEST
from cwdfm.repro.experiments.training import revealed_entries
from cwdfm.repro.scale import size

SOLVERS = ("euler", "neighbor")


def fewer_valid() -> str:
    """What could explain that the paper counts few valid molecules with a mask source."""
    most = str(size("molecules", "small").curve[-1])
    ours = rows_of("headline")["CE", "Euler", most][0].value
    if ours is None:
        return "- **Molecules.** `cwdfm repro headline --scale small` is not done yet."
    causes = read("qm9_causes")
    walks = {row["change"]: row["valid"] for row in causes["rows"] if row["solver"] == "Euler"}
    plain = walks.pop("as here")
    told = "; ".join(f"{change}: {valid:.0f}" for change, valid in walks.items())
    endings = {
        row["reading"]: row["valid"]
        for row in read("qm9_endings")["rows"]
        if row["labels"][:2] == ["CE", "Euler"]
    }
    return (
        "- **Molecules.** The paper's Euler baseline with a mask source has 135 valid molecules of "
        f"1,024; its own network and learning\n  rate have {ours:.0f} here after a fifth of its "
        "steps (`headline`). So neither of them explains it, nor too short a training, nor\n  the "
        f"reading of padding: {min(endings.values()):.0f} to {max(endings.values()):.0f} by three "
        "ways ([results](results.md#how-sequences-are-read)).\n  135 leave room for a factor of "
        f"2.8, {ours:.0f} of 1,024 do not.\n  Of what a sampler may do otherwise "
        "([results](results.md#what-a-sampler-may-do-otherwise)), valid ones of the\n  model in "
        "the box (4M, learned positions, trained on masked tokens alone) by Euler, "
        f"{causes['config']['steps']} steps: {plain:.0f} as here;\n  {told}.\n  The "
        f"change that costs most is: {min(walks, key=lambda change: float(walks[change]))}."
    )


def positions() -> str:
    """What positions have to do with Neighbor weights and a mask source."""
    cells = {(row["cell"], row["solver"]): row for row in read("qm9_limits")["rows"]}

    def change(name: str) -> str:
        a, b = (cells[f"mask, {name}", solver]["valid"]["mean"] for solver in SOLVERS)
        return f"{a:.0f} to {b:.0f}"

    box = {
        row["solver"]: float(row["valid"]["mean"])
        for row in read("qm9_small")["rows"]
        if (row["source"], row["steps"]) == ("mask", 256)
    }
    a, b = (box[solver] for solver in SOLVERS)
    return (
        "- **Positions.** MDLM's network, which the paper takes, knows positions by rotary "
        "embedding alone, and so do our 17M and 92M\n  cells. In a masked sequence it cannot tell "
        "the first token from the last, so the first tokens that Neighbor weights\n  spread from "
        "land anywhere. Euler to Neighbor, valid, short runs of 4M, mask source: "
        f"{change('rotary alone')} so,\n  {change('positions known')} with learned positions and "
        f"the first token given; the model in the box, which has both, {a:.0f} to {b:.0f}\n  at "
        "256 steps (one run each)."
    )


def settings() -> str:
    """What the sweeps of r, s and beta on molecules say of the weights themselves."""
    steps = size("molecules", "small").steps
    told = [
        f"- **Settings** of the weights, 17M, {steps} steps, on a seed of their own",
        '  (results.md, "solver settings"), valid molecules:',
    ]
    for source in ("uniform", "mask"):
        rows = rows_of(f"sweep-molecules-{source}")
        valid = {key: number(row[0]).value for key, row in rows.items()}
        plain, parts = valid["Euler", ""], []
        for family in ("Neighbor", "Entropy"):
            ours = {key[1]: value for key, value in valid.items() if key[0] == family}
            best = max(ours, key=lambda key: ours[key])
            error = math.sqrt(2) * COUNT_ERROR
            near = sum(ours[best] - value < CLEAR * error for value in ours.values()) - 1
            clear = ours[best] - plain > ALONE * error  # the best of many is above by chance
            shown = "none clearly above Euler"
            if clear:
                shown = f"the best {best}, {near} others near it"
            radius, strength, beta = BEST["molecules", source]
            said = f"r = {radius}, s = {strength:g}" if family == "Neighbor" else f"beta = {beta:g}"
            found = f"{shown} (the paper's best: {said})"
            low, high = min(ours.values()), max(ours.values())
            parts.append(f"{len(ours)} of {family} {low:.0f} to {high:.0f}, {found}")
        told.append(f"  {source} source: Euler {plain:.0f}; {'; '.join(parts)}.")
    return "\n".join(told)


def revealed() -> str:
    """What the experiment on the weight of revealed coordinates says."""
    cells = {entry.labels: entry.cell for entry in revealed_entries("small")}
    runs, parts, apart = Runs(tuple(cells.values())), [], []
    for source in ("uniform", "mask"):
        found = {key[1]: runs.mean(cell, 0) for key, cell in cells.items() if key[0] == source}
        weights = ", ".join(f"{name} {each.value:.0f}" for name, each in found.items())
        parts.append(f"{source} source: {weights}")
        for name, each in found.items():
            if name != "CE" and abs(each.above(found["one"])) > CLEAR:
                apart.append(f"{name} ({source} source)")
    return (
        "- **Revealed coordinates in SCE.** The paper leaves their weight open. Valid molecules by "
        f"weight (17M, {runs.told()}):\n  {'; '.join(parts)}.\n"
        f"  Clearly apart from `one`, the default: {', '.join(apart) or 'none'}. With a uniform "
        "source a network that is not asked\n  about tokens in their place does not learn to "
        "leave them there."
    )


def scatter() -> str:
    """How far runs of one training on text end apart."""
    rows = [row for row in read("run_scatter")["rows"] if row["corpus"] == "text"]
    apart = {}
    for row in rows:
        block, source = f"block {row['block']}", f"{row['source']} source, {row['loss']}"
        name = f"{row['method']}, {block if row['method'] == 'bd3lm' else source}"
        apart[name] = max(row["losses"]) - min(row["losses"])
    told = ", ".join(f"{value:.2f} ({name})" for name, value in apart.items())
    return f"{len(rows)} trainings on text were done two or three times. Nats apart: {told}"
