"""Quality per model evaluation: every sampler at every budget, on equal terms.

    python -m experiments run frontier --out DIR

For every task, budget and family of samplers, the same number of candidates is compared on a search
seed, and the best one is measured with other seeds. No sample uses more evaluations than the
budget. The average number used and the scores of all candidates are recorded.

Every draw is kept, so the same command resumes after an interruption. The result is written to
DIR/frontier.json. With `--stages`, drawing and scoring can run on different machines: draw, score,
draw, score (the second draws use the selected samplers), or draw with `--all-seeds`, score.
`--tasks` and `--budgets` divide the work between commands, and `--time-limit` stops one. `--extend`
keeps the rows of a recorded result that are not measured again.
"""

import argparse
import json
import math
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cwdfm
from cwdfm.device import find_device
from cwdfm.errors import InputError
from cwdfm.files import write_json
from cwdfm.provenance import provenance
from experiments.frontier.search import (
    PARTS,
    Plan,
    advance,
    all_families,
    budget_folder,
    prepare,
    rows,
)
from experiments.frontier.tasks import LENGTH, Exact, Molecules, Task, Text
from experiments.results import read

BUDGETS = (4, 8, 16, 32, 64, 128, 256)
Unit = tuple[str, int | None, int]  # a task, a budget and a part of the families
Finished = tuple[str, int | None, float]
EXACT_SAMPLES = 8  # times the usual samples, for a small sampling error of total variation


@dataclass(frozen=True)
class Config:
    """Everything that determines the result; one per output folder."""

    samples: int
    candidates: int
    seeds: tuple[int, ...]
    data: str
    fcd: bool
    text_models: tuple[str, ...]
    text_data: str | None
    eval_models: tuple[str, ...]
    device: str
    autocast: bool

    def make(self, name: str) -> Task:
        """Create the task of this name, and load its model and data."""
        kind, _, which = name.partition(", ")
        masked = which == "mask"
        if kind == "exact":
            return Exact(name, masked, LENGTH, EXACT_SAMPLES * self.samples)
        if kind == "QM9":
            trained = cwdfm.load(f"qm9-{which}-small").to(self.device)
            sizes = (trained.length, self.samples, None)
            return Molecules(name, masked, *sizes, trained, self.data, self.autocast, self.fcd)
        (model,) = (each for each in self.text_models if Path(each).name == which)
        trained = cwdfm.load(model).to(self.device)
        sizes = (trained.length, self.samples, None)
        evaluators = (self.eval_models, self.device)
        masked = trained.source.marks_noise
        return Text(name, masked, *sizes, trained, self.text_data, self.autocast, *evaluators)

    @property
    def tasks(self) -> list[str]:
        fixed = [f"{kind}, {source}" for kind in ("exact", "QM9") for source in ("mask", "uniform")]
        return fixed + [f"text, {Path(model).name}" for model in self.text_models]


@cache
def loaded(config: Config, name: str) -> Task:
    """The task of this name, once per process."""
    return config.make(name)


def run_unit(
    unit: Unit,
    *,
    config: Config,
    folder: Path,
    plan: Plan,
    stages: tuple[str, ...],
    deadline: float,
) -> Finished | None:
    """Advance a unit, or prepare its task if the budget is None; None after the deadline."""
    if time.time() >= deadline:
        return None
    begin, (name, budget, part) = time.perf_counter(), unit
    task = loaded(config, name)
    measured = prepare(task, folder, stages)
    if budget is not None and measured is not None:
        advance(task, budget, part, folder, plan, measured, stages)
    return name, budget, time.perf_counter() - begin


def run(config: Config, options: argparse.Namespace, plan: Plan) -> None:
    """Advance all units, the most expensive ones first."""
    tasks, budgets = options.tasks or config.tasks, sorted(options.budgets, reverse=True)
    advance_unit = partial(
        run_unit,
        config=config,
        folder=options.out,
        plan=plan,
        stages=tuple(options.stages),
        deadline=time.time() + options.time_limit,
    )
    groups: list[list[Unit]] = [
        [(name, None, 0) for name in tasks],
        [(name, budget, part) for budget, name, part in product(budgets, tasks, range(PARTS))],
    ]
    pool = None
    if options.workers:  # a forked process cannot use a GPU
        pool = ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"))
    with pool or nullcontext():
        for group in groups:  # preparations are finished before the budgets begin
            finished = pool.map(advance_unit, group) if pool else map(advance_unit, group)
            for name, budget, seconds in filter(None, finished):
                label = "prepared" if budget is None else f"{budget} evaluations"
                print(f"{name}, {label}: {seconds:.0f} s", flush=True)


def collect(config: Config, folder: Path) -> dict[str, Any]:
    """The record of all finished rows."""
    found: list[dict[str, Any]] = []
    for name in config.tasks:
        budgets = [b for b in BUDGETS if budget_folder(folder, name, b).exists()]
        task = config.make(name) if budgets else None
        if task is not None and (measured := prepare(task, folder, ())) is not None:
            for budget in budgets:
                order = all_families(task, budget, Plan(), measured)
                found += rows(task, budget, order, folder)
    return {"config": vars(config), "rows": found}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m experiments run frontier", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--tasks", nargs="+", help="such as 'QM9, mask'; all by default")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, choices=BUDGETS)
    parser.add_argument("--families", nargs="+", default=[], help="all by default")
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--time-limit", type=float, default=math.inf, help="seconds")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument(
        "--all-seeds", action="store_true", help="draw every candidate with all seeds"
    )
    parser.add_argument("--candidates", type=int, default=6, help="samplers of each family")
    parser.add_argument("--data", default="qm9", help="QM9, or a prepared copy of it")
    parser.add_argument("--fcd", action="store_true", help="compute FCD of molecules")
    parser.add_argument("--text-models", nargs="+", default=[], help="models of text")
    parser.add_argument("--text-data", help="held-out text: fits the learned confidence")
    parser.add_argument(
        "--eval-models", nargs="+", default=[], help="score text; the first chooses"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: this one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--autocast", action="store_true", help="sample in bfloat16")
    parser.add_argument("--extend", help="a recorded result, such as frontier_qm9")
    options = parser.parse_args(arguments)
    given: dict[str, Any] = vars(options) | {"device": str(find_device(options.device))}
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    config = Config(**{each.name: given[each.name] for each in fields(Config)})
    if unknown := set(options.tasks or ()) - set(config.tasks):
        parser.error(f"unknown tasks {sorted(unknown)}; choose from {config.tasks}")
    check_same(config, options.out)
    begun = recorded(config, options.extend) if options.extend else {"commands": [], "rows": []}
    only = tuple(options.families)
    plan = Plan(config.seeds, config.candidates, only, options.all_seeds)
    run(config, options, plan)
    record = collect(config, options.out)
    known = options.out / "frontier.json"
    made = provenance()
    earlier = json.loads(known.read_text()) if known.exists() else {"commands": [], "rows": []}
    commands = begun["commands"] + [c for c in earlier["commands"] if c not in begun["commands"]]
    record["rows"] = merged(merged(begun["rows"], earlier["rows"]), record["rows"])
    write_json(known, made | {"commands": [*commands, made]} | record)
    print(f"{known}: {len(record['rows'])} rows")


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows; a new one replaces the old one of its task, budget and family."""
    return list({(row["task"], row["budget"], row["family"]): row for row in (*old, *new)}.values())


STAGES = ("draw", "score")
SAME = ("samples", "candidates", "seeds")


def check_same(config: Config, folder: Path) -> None:
    """Raise an error if the folder holds draws of another size."""
    path, sizes = folder / "config.json", {name: getattr(config, name) for name in SAME}
    if path.exists() and (stored := json.loads(path.read_text())) != json.loads(json.dumps(sizes)):
        raise InputError(f"{folder} holds draws with {stored}, not {sizes}; use another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, sizes)


def recorded(config: Config, name: str) -> dict[str, Any]:
    """A recorded result of the same sizes."""
    found: dict[str, Any] = read("studies")[name]
    sizes = {name: getattr(config, name) for name in SAME}
    if (stored := {name: found["config"][name] for name in SAME}) != json.loads(json.dumps(sizes)):
        raise InputError(f"{name} was recorded with {stored}, not {sizes}")
    return found
