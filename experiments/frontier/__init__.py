"""Quality per model evaluation: every sampler at every budget, on equal terms.

    python -m experiments run frontier --out frontier.json

For every task, budget and family of samplers, the same number of candidates is compared on a seed
of its own, and the best one is measured with other seeds. No sampler uses more than the budget; the
evaluations that it needed on average are recorded, and so are the scores of all candidates.

Finished rows are kept in the output file: the same command continues. `--tasks` divides the work
between processes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import cwdfm
from cwdfm import data
from cwdfm.device import find_device
from cwdfm.files import write_json
from cwdfm.metrics.evaluator import EvaluatorLM
from cwdfm.metrics.molecule import CanonicalSet
from cwdfm.metrics.reference_statistics import ReferenceStatistics
from cwdfm.provenance import provenance
from cwdfm.recommend import Recommendation as Sampler
from cwdfm.recommend import recommend_for
from experiments.frontier.families import families
from experiments.frontier.tasks import LENGTH, Exact, Molecules, Scores, Task, Text

BUDGETS = (4, 8, 16, 32, 64, 128, 256)
SEARCH_SEED = 1000
EXACT_SAMPLES = 80  # times as many as of a model, for a small sampling error of total variation


def measure(task: Task, options: argparse.Namespace, record: dict[str, Any]) -> Iterator[None]:
    """Search and measure every family at every budget; finished rows are skipped."""
    rows, references = record["rows"], record["references"]
    done = {(row["budget"], row["family"]) for row in rows if row["task"] == task.name}
    with ProcessPoolExecutor(options.workers) as pool:
        start = partial(_start, task, ThreadPoolExecutor(1) if isinstance(task, Text) else pool)
        if task.name not in references:
            euler = Sampler("euler", max(options.budgets), "t")
            references[task.name] = start(euler, SEARCH_SEED)[0].result()
        task.reference = references[task.name]
        for budget in options.budgets:
            found = families(budget, task.length, masked=task.masked, candidates=options.candidates)
            if isinstance(task, Molecules | Text):
                method = task.trained.method
                found["recommended"] = [recommend_for(method, budget, task.length)]
            for family, candidates in found.items():
                if (budget, family) in done:
                    continue
                tried = [start(each, SEARCH_SEED)[0] for each in candidates]
                searched = [
                    (c, future.result()) for c, future in zip(candidates, tried, strict=True)
                ]
                chosen = task.choose(searched)
                runs = [[start(each, seed) for each in chosen] for seed in options.seeds]
                scores = [task.combine([future.result() for future, *_ in run]) for run in runs]
                flat = [each for run in runs for each in run]
                row = {
                    "task": task.name,
                    "budget": budget,
                    "family": family,
                    "samplers": [asdict(each) for each in chosen],
                    "evaluations": statistics.fmean(evaluations for _, evaluations, _ in flat),
                    "seconds": statistics.fmean(seconds for *_, seconds in flat),
                    "scores": {name: [each[name] for each in scores] for name in scores[0]},
                    "search": [{"sampler": asdict(c), "scores": s} for c, s in searched],
                }
                rows.append(row)
                _print(row)
                yield


def _start(
    task: Task, pool: Any, sampler: Sampler, seed: int
) -> tuple[Future[Scores], float, float]:
    """Draw samples, and score them in the pool: (scores, evaluations per sample, seconds)."""
    begin = time.perf_counter()
    score, evaluations = task.draw(sampler, seed)
    return pool.submit(score), evaluations, time.perf_counter() - begin


def _print(row: dict[str, Any]) -> None:
    means = {name: statistics.fmean(x) for name, x in row["scores"].items()}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    print(f"{row['task']:16} {row['budget']:4} {row['family']:20} {shown}", flush=True)


def make_tasks(options: argparse.Namespace) -> dict[str, Callable[[], Task]]:
    """The tasks by name; their models and data are loaded when one is called."""
    device, samples = str(find_device(options.device)), options.samples
    tasks: dict[str, Callable[[], Task]] = {}
    for masked, kind in ((True, "mask"), (False, "uniform")):
        name = f"exact, {kind}"
        tasks[name] = partial(Exact, name, masked, LENGTH, EXACT_SAMPLES * samples, device=device)
        name = f"QM9, {kind}"
        tasks[name] = partial(molecules, name, f"qm9-{kind}-small", options, device)
    for model in options.text_models:
        tasks[f"text, {Path(model).name}"] = partial(text, model, options, device)
    return tasks


def molecules(name: str, model: str, options: argparse.Namespace, device: str) -> Molecules:
    """A bundled model of QM9; FCD is computed against the held-out molecules."""
    trained = cwdfm.load(model).to(device)
    found = data.load("qm9")
    reference = ReferenceStatistics.of(found.texts("valid")) if options.fcd else None
    masked = trained.method.source.marks_noise
    training = CanonicalSet(found.texts("train"))
    return Molecules(
        name, masked, trained.length, options.samples, None, trained, training, reference
    )


def text(model: str, options: argparse.Namespace, device: str) -> Text:
    """A model of text and the evaluator LMs."""
    trained = cwdfm.load(model).to(device)
    evaluators = [EvaluatorLM(name, device=device).load() for name in options.eval_models]
    name, masked = f"text, {Path(model).name}", trained.method.source.marks_noise
    return Text(name, masked, trained.length, options.samples, None, trained, evaluators)


def main(arguments: list[str]) -> None:
    """`python -m experiments run frontier`."""
    parser = argparse.ArgumentParser("python -m experiments run frontier", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--tasks", nargs="+", help="such as 'QM9, mask'; all by default")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--candidates", type=int, default=6, help="samplers of each family")
    parser.add_argument("--fcd", action="store_true", help="compute FCD of molecules")
    parser.add_argument("--text-models", nargs="+", default=[], help="models of text")
    parser.add_argument("--eval-models", nargs="+", default=[], help="causal LMs that score text")
    parser.add_argument("--workers", type=int, default=8, help="processes that score molecules")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.text_models and not options.eval_models:
        parser.error("--text-models requires --eval-models")
    tasks = make_tasks(options)
    if unknown := set(options.tasks or ()) - set(tasks):
        parser.error(f"unknown tasks {sorted(unknown)}; choose from {list(tasks)}")
    names = ("budgets", "samples", "seeds", "candidates", "text_models", "eval_models", "device")
    record: dict[str, Any] = {"rows": [], "references": {}}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    record |= provenance() | {"config": {name: getattr(options, name) for name in names}}
    for name in options.tasks or tasks:
        for _ in measure(tasks[name](), options, record):
            write_json(options.out, record)
