"""Quality per model evaluation: every sampler at every budget, on equal terms.

    python -m experiments run frontier --out frontier.json

Tasks: exact targets (total variation), and the bundled models of QM9 (valid, unique and novel
molecules), each with both sources. For every task, budget and family of samplers, `--candidates`
settings are compared on a seed of their own. The best one is measured with `--seeds`. A sampler
never uses more than the budget; the evaluations that it needed on average are recorded.

The defaults are sized for a GPU; they were estimated to take seven minutes and have not been timed.
On a CPU use `--samples 96 --budgets 16 --candidates 1 --seeds 1`. Finished rows are kept in the output file: the same command continues.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cwdfm
from cwdfm import data
from cwdfm.device import find_device
from cwdfm.files import write_json
from cwdfm.metrics.molecule import CanonicalSet, score_molecules
from cwdfm.postprocess import Resample
from cwdfm.provenance import provenance
from cwdfm.recommend import Recommendation as Sampler
from cwdfm.recommend import recommend_for
from cwdfm.schedule import Spacing

BUDGETS = (4, 8, 16, 32, 64, 128, 256)
MODELS = {"mask": "qm9-mask-small", "uniform": "qm9-uniform-small"}
SEARCH_SEED = 1000
SCHEDULE = cwdfm.Polynomial(2.0)
VOCAB, LENGTH = 3, 5
Scores = dict[str, float]


def families(budget: int, masked: bool, length: int) -> dict[str, list[Sampler]]:
    """The candidates of every family, the most promising first."""

    def named(
        name: str, *settings: dict[str, Any], steps: int = budget, first: Spacing = "kappa"
    ) -> list[Sampler]:
        grids: tuple[Spacing, ...] = (first, "t" if first == "kappa" else "kappa")
        pairs = product(grids, settings)
        return [Sampler(name, steps, grid, tuple(each.items())) for grid, each in pairs]

    def resampled(fraction: float) -> Sampler:
        cost = 8 if masked else 1  # of a round
        rounds = max(1, round(budget * fraction) // cost)
        resample = Resample(rounds, noise_fraction=1 / 8 if masked else None)
        return Sampler("ancestral", budget - rounds * cost, "kappa", resample=resample)

    cool = {"temperature": 0.7}
    found = {
        "Euler": named("euler", {}, cool, first="t"),
        "ancestral": named("ancestral", {}, cool),
        "Neighbor, counted": named("neighbor-counted", {"scale": 2.0}, {"scale": 4.0}),
        "Entropy, counted": named("entropy-counted", {"beta": 1.0}, {"beta": 2.0}),
        "corrector": named(
            "euler", *({"hazard": "integrated", "corrector": scale} for scale in (1.0, 4.0))
        ),
    }
    half = max(1, budget // 2)
    if budget >= 2:
        found["theta-trapezoidal"] = named("theta-trapezoidal", {}, cool, steps=half)
        found["Gibbs"] = named("gibbs", {}, {"tokens": 4}, steps=half)
    if not masked:
        weighted = {"hazard": "integrated", "corrector_beta": 1.0}
        scales = ({**weighted, "corrector": scale} for scale in (4.0, 16.0))
        found["weighted corrector"] = named("euler", *scales)
        unlikely = {"select": "unlikely", "begin": 0.5}
        found["Gibbs, unlikely"] = named("gibbs", unlikely, unlikely | {"tokens": 2}, steps=half)
        found["entropy bound"] = named("entropy-bound", {"gamma": 1.0}, {"gamma": 0.1})
    else:
        for name in ("confidence", "margin", "low-entropy"):
            found[f"top-k, {name}"] = named(name, {}, cool)
        found["entropy bound"] = named("entropy-bound", {"gamma": 2.0 * 4 / budget}, {"gamma": 0.3})
        found["threshold"] = named("threshold", {"threshold": 0.9}, {"threshold": 0.7})
        found["KLASS"] = named("klass", {"threshold": 0.7}, {"threshold": 0.9})
        found["path planning"] = named("path-planning", {}, {"eta": 0.5})
        found["remasking"] = named("remask", {"eta": 0.05}, {"rule": "rescale", "eta": 0.1})
        if budget >= length:
            found["first hitting"] = named("first-hitting", {}, cool)
    if budget >= (16 if masked else 4):
        found["resampling"] = [resampled(0.5), resampled(0.75)]
    method = cwdfm.load(MODELS["mask" if masked else "uniform"]).method
    found["recommended"] = [recommend_for(method, budget, length)]
    return found


Run = Callable[[Sampler, int, int], tuple[Callable[[], Scores], float]]


def exact_task(source: cwdfm.Source, device: torch.device) -> Run:
    """A ring of tokens that tend to agree with their neighbors; the error is total variation."""
    states = torch.cartesian_prod(*[torch.arange(VOCAB)] * LENGTH)
    energy = 1.5 * (states == states.roll(-1, 1)).sum(1) + 0.3 * (states == 0).sum(1)
    target = energy.double().softmax(0)
    model = cwdfm.ExactPosterior(target.reshape((VOCAB,) * LENGTH), source, SCHEDULE)

    def run(sampler: Sampler, samples: int, seed: int) -> tuple[Callable[[], Scores], float]:
        shape, flow = (80 * samples, LENGTH), (model, source, SCHEDULE)
        out = cwdfm.sample(
            *flow,
            sampler.solver,
            shape=shape,
            steps=sampler.steps,
            grid=sampler.grid,
            seed=seed,
            device=device,
        )
        evaluations = float(out.evaluations.double().mean())
        if sampler.resample is not None:
            more = cwdfm.resample(*flow, out, sampler.resample, seed=seed)
            out, evaluations = more, evaluations + float(more.evaluations.double().mean())
        return partial(variation, out.tokens.cpu(), target), evaluations

    return run


def variation(tokens_BN: Tensor, target: Tensor) -> Scores:
    """Total variation between samples and the target."""
    code = (tokens_BN * VOCAB ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
    share = torch.bincount(code, minlength=len(target)) / len(tokens_BN)
    return {"total variation": float((share - target).abs().sum()) / 2}


def molecule_task(name: str, device: torch.device, training: CanonicalSet) -> Run:
    """A bundled model; molecules are counted per 1,024 samples."""
    trained = cwdfm.load(name).to(device)

    def run(sampler: Sampler, samples: int, seed: int) -> tuple[Callable[[], Scores], float]:
        out = cwdfm.generate(trained, n=samples, seed=seed, **sampler.options)
        return partial(molecules, out.texts, training), float(out.evaluations.double().mean())

    return run


def molecules(texts: list[str], training: CanonicalSet) -> Scores:
    """Valid, unique and novel molecules of 1,024 samples."""
    found = score_molecules(texts, training, fold_size=len(texts)).to_json()
    return {name: found[name]["mean"] * 1024 / len(texts) for name in ("valid", "unique", "novel")}


def quality(scores: Scores) -> float:
    """What the search maximizes: distinct valid molecules, or a small distance."""
    return scores["unique"] if "unique" in scores else -scores["total variation"]


def measure(task: str, run: Run, options: argparse.Namespace, rows: list[Any]) -> Iterator[None]:
    """Search and measure every family at every budget; finished rows are skipped."""
    masked, length = task.endswith("mask"), 32 if task.startswith("QM9") else LENGTH
    done = {(row["task"], row["budget"], row["family"]) for row in rows}
    with ProcessPoolExecutor(options.workers) as pool:

        def start(sampler: Sampler, seed: int) -> tuple[Future[Scores], float, float]:
            begin = time.perf_counter()
            score, evaluations = run(sampler, options.samples, seed)
            return pool.submit(score), evaluations, time.perf_counter() - begin

        for budget in options.budgets:
            for family, all_candidates in families(budget, masked, length).items():
                if (task, budget, family) in done:
                    continue
                candidates = all_candidates[: options.candidates]
                tried = [start(each, SEARCH_SEED) for each in candidates] if candidates[1:] else []
                found = [quality(future.result()) for future, *_ in tried] or [0.0]
                best = candidates[found.index(max(found))]
                runs = [start(best, seed) for seed in options.seeds]
                scores = [future.result() for future, *_ in runs]
                rows.append(
                    {
                        "task": task,
                        "budget": budget,
                        "family": family,
                        "sampler": asdict(best),
                        "candidates": len(candidates),
                        "evaluations": statistics.fmean(e for _, e, _ in runs),
                        "seconds": statistics.fmean(s for *_, s in runs),
                        "scores": {name: [each[name] for each in scores] for name in scores[0]},
                    }
                )
                means = {name: statistics.fmean(x) for name, x in rows[-1]["scores"].items()}
                shown = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
                print(f"{task:16} {budget:4} {family:20} {shown}", flush=True)
                yield


def main(arguments: list[str]) -> None:
    """`python -m experiments run frontier`."""
    parser = argparse.ArgumentParser("python -m experiments run frontier")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--tasks", nargs="+", choices=("exact", "QM9"), default=["exact", "QM9"])
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--candidates", type=int, default=2, help="settings per family")
    parser.add_argument("--workers", type=int, default=8, help="processes that score molecules")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    names = ("budgets", "samples", "seeds", "candidates")
    config = {name: getattr(options, name) for name in names} | {"device": str(device)}
    old = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    rows = old["rows"]
    runs: dict[str, Callable[[], Run]] = {}
    if "exact" in options.tasks:
        for source in (cwdfm.MaskSource(VOCAB), cwdfm.UniformSource(VOCAB)):
            kind = "mask" if source.marks_noise else "uniform"
            runs[f"exact, {kind}"] = partial(exact_task, source, device)
    if "QM9" in options.tasks:
        training = CanonicalSet(data.load("qm9").texts("train"))
        for kind, name in MODELS.items():
            runs[f"QM9, {kind}"] = partial(molecule_task, name, device, training)
    for task, make in runs.items():
        for _ in measure(task, make(), options, rows):
            write_json(options.out, provenance() | {"config": config, "rows": rows})


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
