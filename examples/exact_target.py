"""Measure the error of each solver on a target with a known posterior.

    python examples/exact_target.py --out demo
    python examples/exact_target.py --out demo --redraw

The target is a distribution over sequences of four tokens in which neighbors tend to agree. Its
posterior is known in closed form and is used as a perfect model. The distance between samples and
target therefore shows only the effect of the number of steps, the hazard, the weight and the
corrector. The script prints a table and writes a figure and a JSON file. `--redraw` draws the
figure again from that file.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import cwdfm
from cwdfm.cli.main import exit_on_error
from cwdfm.errors import InputError, check_integer, load_extra
from cwdfm.files import check_output_folder, write_json
from cwdfm.provenance import provenance
from cwdfm.report.figure import NUMBER, figure_of, save_figure, styles_of

VOCAB, LENGTH, SEED = 3, 4, 0
SCHEDULE = cwdfm.Polynomial(2.0)
STEPS = (2, 4, 8, 16, 32, 64, 128)
SOURCES: dict[str, cwdfm.Source] = {
    "mask": cwdfm.MaskSource(VOCAB),
    "uniform": cwdfm.UniformSource(VOCAB),
}
SOLVERS: dict[str, tuple[cwdfm.Euler, Literal["t", "kappa"]]] = {
    "Euler": (cwdfm.Euler(), "t"),
    "integrated hazard": (cwdfm.Euler(hazard="integrated"), "t"),
    "integrated, kappa grid": (cwdfm.Euler(hazard="integrated"), "kappa"),
    "Neighbor-weighted": (cwdfm.Euler(weight=cwdfm.Neighbor(radius=1, scale=2.0)), "t"),
    "Entropy-weighted": (cwdfm.Euler(weight=cwdfm.Entropy(beta=2.0)), "t"),
    "predictor-corrector": (cwdfm.Euler(corrector=cwdfm.Corrector(scale=2.0)), "t"),
}
# Neighbor weights behave like Euler here, so their line is wider and drawn below it.
UNDER_EULER = {"linewidth": 4, "markersize": 9, "zorder": 1.5}


def ring_target() -> Tensor:
    """p(x) ~ prod_i exp(1.5 [x^i = x^{i+1}]) on a ring, with token 0 slightly more likely."""
    axes = torch.cartesian_prod(*[torch.arange(VOCAB)] * LENGTH)
    agree = (axes == axes.roll(-1, 1)).sum(1)
    energy = 1.5 * agree + 0.3 * (axes == 0).sum(1)
    return energy.double().softmax(0).reshape((VOCAB,) * LENGTH)


def total_variation(tokens: Tensor, target: Tensor) -> float:
    """The total variation distance between the histogram of the samples and the target."""
    code = torch.zeros(len(tokens), dtype=torch.int64)
    for column in tokens.unbind(1):
        code = code * VOCAB + column
    share = torch.bincount(code, minlength=target.numel()) / len(tokens)
    return float((share - target.flatten()).abs().sum()) / 2


def noise_floor(target: Tensor, samples: int) -> float:
    """The distance between the target and equally many exact samples, averaged over 20 sets."""
    generator = torch.Generator().manual_seed(SEED)
    p = target.flatten()
    draws = torch.multinomial(p.expand(20, -1), samples, replacement=True, generator=generator)
    shares = torch.stack([torch.bincount(d, minlength=p.numel()) for d in draws]) / samples
    return float((shares - p).abs().sum(1).mean()) / 2


def measure(samples: int) -> list[dict[str, Any]]:
    """One row per source, solver and number of steps."""
    target = ring_target()
    rows = []
    for source_name, source in SOURCES.items():
        model = cwdfm.ExactPosterior(target, source, SCHEDULE)
        for solver_name, (solver, grid) in SOLVERS.items():
            for steps in STEPS:
                start = time.perf_counter()
                out = cwdfm.sample(
                    model,
                    source,
                    SCHEDULE,
                    solver,
                    shape=(samples, LENGTH),
                    steps=steps,
                    seed=SEED,
                    grid=grid,
                )
                rows.append(
                    {
                        "source": source_name,
                        "solver": solver_name,
                        "steps": steps,
                        "total_variation": total_variation(out.tokens, target),
                        "updates_a_token": float(out.updates.double().mean()),
                        "seconds": time.perf_counter() - start,
                    }
                )
    return rows


def reveal_times(solver: cwdfm.Euler, length: int, batch: int, steps: int) -> Tensor:
    """The time at which each token of a masked sequence is revealed, [batch, length]."""
    source = cwdfm.MaskSource(VOCAB)
    when = torch.zeros(batch, length)

    def record(state: cwdfm.State, info: cwdfm.Info) -> None:
        when[info.forward] = info.t_next

    cwdfm.sample(
        lambda x_t, t: torch.zeros(*x_t.shape, source.num_tokens),
        source,
        SCHEDULE,
        solver,
        shape=(batch, length),
        steps=steps,
        seed=SEED,
        callback=record,
    )
    return when


def draw(rows: list[dict[str, Any]], floor: float, path: Path) -> None:
    """Draw the error over steps for both sources, and the order in which tokens are revealed."""
    formatter = load_extra("matplotlib.ticker", "plot").StrMethodFormatter(NUMBER)
    figure = figure_of(11, 8.2)
    top, bottom = figure.subplots(2, 2)
    for axis, source in zip(top, SOURCES, strict=True):
        for solver, style in styles_of(list(SOLVERS)).items():
            curve = [r for r in rows if r["source"] == source and r["solver"] == solver]
            under = UNDER_EULER if solver == "Neighbor-weighted" else {}
            axis.errorbar(
                [r["steps"] for r in curve],
                [r["total_variation"] for r in curve],
                label=solver,
                **style.drawn | under,
            )
        axis.axhline(floor, color="#777777", linestyle=":", label="exact samples (noise floor)")
        axis.set(xscale="log", yscale="log", xlabel="steps", ylabel="total variation to the target")
        axis.set_title(f"{source} source, exact posterior")
        axis.set_xticks(STEPS, STEPS)
        axis.yaxis.set_major_formatter(formatter)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    names = top[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside upper center", ncols=4, frameon=False)
    for axis, scale in zip(bottom, (0.0, 4.0), strict=True):
        weight = cwdfm.Neighbor(radius=1, scale=scale) if scale else None
        times = reveal_times(cwdfm.Euler(weight=weight), length=64, batch=24, steps=256)
        image = axis.imshow(times.numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=1)
        title = f"Neighbor-weighted (s = {scale:g})" if scale else "Euler"
        axis.set(xlabel="position", ylabel="sequence", title=title)
        figure.colorbar(image, ax=axis, label="time t at which a token is revealed")
    save_figure(figure, path)


def recorded(path: Path) -> tuple[list[dict[str, Any]], float]:
    """Read the rows and the noise floor of an earlier run."""
    try:
        result = json.loads(path.read_text())
        return result["rows"], result["floor"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} does not contain results of this example ({error}); pass the --out of an "
            f"earlier run, or omit --redraw"
        ) from error


def main(arguments: list[str]) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description="Compare the solvers on an exact target.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results")
    parser.add_argument("--samples", type=int, default=30_000, help="samples per point")
    parser.add_argument("--redraw", action="store_true", help="only draw the figure")
    options = parser.parse_args(arguments)
    check_integer("--samples", options.samples)
    picture, data = options.out / "exact_target.png", options.out / "exact_target.json"
    if options.redraw:
        draw(*recorded(data), picture)
        print(f"Written: {picture}")
        return
    check_output_folder(options.out)
    floor = noise_floor(ring_target(), options.samples)
    rows = measure(options.samples)

    print(f"Total variation between {options.samples:,} samples and the target")
    print(f"(exact samples: {floor:.4f})\n")
    print(f"{'source':8} {'solver':26}" + "".join(f"{s:>8}" for s in STEPS) + "  steps")
    for source in SOURCES:
        for solver in SOLVERS:
            row = [r for r in rows if r["source"] == source and r["solver"] == solver]
            print(f"{source:8} {solver:26}" + "".join(f"{r['total_variation']:8.4f}" for r in row))
    options.out.mkdir(parents=True, exist_ok=True)
    draw(rows, floor, picture)
    config = {"samples": options.samples, "seed": SEED, "vocab": VOCAB, "length": LENGTH}
    solvers = {name: f"{solver}, grid {grid}" for name, (solver, grid) in SOLVERS.items()}
    write_json(
        data, provenance() | {"config": config, "solvers": solvers, "floor": floor, "rows": rows}
    )
    print(f"\nWritten: {picture}, {data}")


if __name__ == "__main__":
    with exit_on_error(resumable=False):
        main(sys.argv[1:])
