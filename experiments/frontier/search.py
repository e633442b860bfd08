"""The search for one task and budget, kept in a folder so that it can be interrupted.

    FOLDER/TASK.json                   measurements of the model: reference, grid, confidence
    FOLDER/TASK/BUDGET/FAMILY.json     the samplers of a family, and the scores of their draws
    FOLDER/TASK/BUDGET/KEY.npz         the tokens of a draw

Drawing requires the model and its device; scoring requires RDKit or an evaluator LM. Each stage
processes what the other has finished: search draws, their scores, the choice in every family, its
draws with the other seeds, and their scores. A plan with `all_seeds` draws every candidate with
every seed at once, for a machine that cannot score.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cwdfm
from cwdfm.files import write_json
from cwdfm.method.flow import Flow
from cwdfm.path import MixturePath
from cwdfm.recommendation import DataFit, recommend_for
from cwdfm.schedule import time_grid
from cwdfm.solver.jump_your_steps import best_path, step_costs
from experiments.frontier.families import Measured, Sampler, families
from experiments.frontier.tasks import Scores, Task, Tokens, Trained

SEARCH_SEED = 1000
REFERENCE = 256  # evaluations of Euler, whose novelty and entropy are the reference for the others
RESOLUTION = 64  # number of times that jump-your-steps chooses from
LEARNED_FROM = 128  # held-out sequences for the learned confidence
PARTS = 8  # groups of families, which different workers can process
Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is compared."""

    seeds: tuple[int, ...] = (1, 2, 3)
    candidates: int = 6
    only: tuple[str, ...] = ()  # families; all by default
    all_seeds: bool = False  # draw all candidates with the seeds of the report


class Draws:
    """The draws in a file and their scores, by key."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.record: Record = {"draws": {}}
        if path.exists():
            self.record = json.loads(path.read_text())

    @property
    def known(self) -> dict[str, Record]:
        found: dict[str, Record] = self.record["draws"]
        return found

    @property
    def report(self) -> list[list[str]]:
        """The keys of the chosen draws for every seed; empty before there is a choice."""
        found: list[list[str]] = self.record.get("report", [])
        return found

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.record)

    def reuse(self, names: Iterable[str]) -> None:
        """Copy draws that another family of this budget has already made."""
        missing = [name for name in names if name not in self.known]
        others = self.folder.glob("*.json") if missing else ()
        for path in others:
            found = json.loads(path.read_text())["draws"]
            self.known.update({name: found[name] for name in missing if name in found})

    def draw(self, task: Task, sampler: Sampler, seed: int, *, final: bool) -> None:
        name = key(sampler, seed)
        if name in self.known:
            return
        begin = time.perf_counter()
        out = task.draw(sampler, seed)
        tokens = out.tokens.cpu().numpy()
        seconds = time.perf_counter() - begin
        self.folder.mkdir(parents=True, exist_ok=True)
        small = np.uint8 if tokens.max() < 256 else np.uint16
        np.savez_compressed(self.folder / f"{name}.npz", tokens.astype(small))
        self.known[name] = {
            "sampler": str(sampler),
            "seed": seed,
            "final": final,
            "evaluations": float(out.evaluations.double().mean()),
            "most": int(out.evaluations.max()),
            "seconds": seconds,
            "scores": {},
        }

    def tokens(self, name: str) -> Tokens:
        with np.load(self.folder / f"{name}.npz") as found:
            tokens: Tokens = found["arr_0"].astype(np.int64)
        return tokens

    def score(self, task: Task, names: Iterable[str]) -> None:
        """Score these draws, unless they do not exist or are already scored."""
        for name in names:
            each = self.known.get(name, {"final": False, "scores": task.score_names(final=False)})
            if not set(task.score_names(final=each["final"])) <= set(each["scores"]):
                each["scores"] |= task.score(self.tokens(name), final=each["final"])


def key(sampler: Sampler, seed: int) -> str:
    return hashlib.sha256(f"{sampler} {seed}".encode()).hexdigest()[:16]


def budget_folder(folder: Path, task: str, budget: int) -> Path:
    return folder / slug(task) / str(budget)


def slug(name: str) -> str:
    """A name as a file name."""
    return "-".join("".join(c if c.isalnum() else " " for c in name).lower().split())


def prepare(task: Task, folder: Path, stages: Sequence[str]) -> Measured | None:
    """Draw and score the reference, and measure the model; None if it was not drawn."""
    here = folder / slug(task.name)
    found = Draws(here.with_suffix(".json"), here)
    euler = Sampler(cwdfm.Euler(), REFERENCE, "t")
    name, record = key(euler, SEARCH_SEED), found.record
    if "draw" in stages and name not in found.known:
        found.draw(task, euler, SEARCH_SEED, final=False)
        record |= _measure(task, torch.from_numpy(found.tokens(name)))
        found.save()
    if name not in found.known:
        return None
    if "score" in stages and task.can_score:
        found.score(task, [name])
        found.save()
    task.reference = found.known[name]["scores"] or None
    cost, learned = torch.tensor(record["step_costs"], dtype=torch.float64), record["learned"]
    times = time_grid(task.flow[2], RESOLUTION, "kappa")

    def grid(steps: int) -> tuple[float, ...]:
        """The best grid; beyond the resolution, its intervals are divided evenly."""
        path = best_path(cost, min(steps, RESOLUTION))
        place = torch.linspace(0, len(path) - 1, steps + 1, dtype=torch.float64)
        low = place.floor().long().clamp(max=len(path) - 2)
        t_low, t_high = times[path[low]], times[path[low + 1]]
        return tuple((t_low + (t_high - t_low) * (place - low)).tolist())

    return Measured(cwdfm.Learned(tuple(learned)) if learned else None, grid)


def _measure(task: Task, samples: torch.Tensor) -> Record:
    """The costs of steps, on samples of the reference, and the learned confidence."""
    model, source, schedule = task.flow
    device = next(iter(model.parameters())).device if isinstance(task, Trained) else "cpu"
    times = time_grid(schedule, RESOLUTION, "kappa")
    path = MixturePath(source, schedule)
    cost = step_costs(model, path, samples[:32].to(device), times, 0, task.given)
    held_out, learned = task.held_out(), None
    if held_out is not None:
        rows = held_out[:LEARNED_FROM].to(device)
        learned = cwdfm.fit_confidence(*task.flow, rows, fixed=task.given).coefficients
    return {"step_costs": cost.nan_to_num(posinf=1e300).tolist(), "learned": learned}


def all_families(task: Task, budget: int, plan: Plan, measured: Measured) -> dict[str, Any]:
    """The candidates of every family; None for the recommendation, which takes long to find."""
    options: dict[str, Any] = {"masked": task.masked, "candidates": plan.candidates}
    options["temperatures"] = task.temperatures
    found: dict[str, Any] = families(budget, task.length, **options, measured=measured)
    found["recommended"] = None
    return {name: each for name, each in found.items() if not plan.only or name in plan.only}


def recommended(task: Task, budget: int) -> list[Sampler]:
    """The recommendation; for an exact target the one that keeps its distribution."""
    flow, fit = Flow(*task.flow[1:]), None
    faithful = not isinstance(task, Trained)
    if faithful and (data := task.held_out()) is not None:
        fit = DataFit(task.flow[0], flow, data, task.given)
    choice = recommend_for(flow, budget, task.length, faithful=faithful, fit=fit)
    return [Sampler.recommended(choice)]


def advance(
    task: Task,
    budget: int,
    part: int,
    folder: Path,
    plan: Plan,
    measured: Measured,
    stages: Sequence[str],
) -> None:
    """Draw and score whatever is possible now, for every family of one of the `PARTS`."""
    here = budget_folder(folder, task.name, budget)
    found = list(all_families(task, budget, plan, measured).items())
    for family, candidates in found[part::PARTS]:
        draws = Draws(here / f"{slug(family)}.json", here)
        _advance(task, candidates or recommended(task, budget), draws, plan, stages)
        draws.record["family"] = family
        draws.save()


def _advance(
    task: Task, candidates: Sequence[Sampler], draws: Draws, plan: Plan, stages: Sequence[str]
) -> None:
    """Draw and score whatever is possible now, for a family of samplers."""
    scores = "score" in stages and task.can_score
    waiting, search = list(candidates), list[str]()
    tried: list[tuple[Sampler, Scores]] = []
    while waiting:
        each = waiting.pop(0)
        name = key(each, SEARCH_SEED)
        search.append(name)
        draws.reuse(key(each, seed) for seed in (SEARCH_SEED, *plan.seeds))
        if "draw" in stages:
            draws.draw(task, each, SEARCH_SEED, final=False)
            for seed in plan.seeds if plan.all_seeds else ():
                draws.draw(task, each, seed, final=True)
        if scores:
            draws.score(task, [name])
        if known := draws.known.get(name, {}).get("scores"):
            tried.append((each, known))
        if not waiting and len(tried) == len(search) < plan.candidates:
            waiting += filter(None, [task.further(tried)])
    if len(tried) < len(search):
        return
    chosen = task.choose(tried)
    if "draw" in stages:
        for seed in plan.seeds:
            for each in chosen:
                draws.draw(task, each, seed, final=True)
    report = [[key(each, seed) for each in chosen] for seed in plan.seeds]
    if scores:
        draws.score(task, chain.from_iterable(report))
    draws.record |= {"search": search, "report": report}


def rows(task: Task, budget: int, order: Iterable[str], folder: Path) -> Iterator[Record]:
    """The finished rows: a family's choice with the report seeds, and all its candidates."""
    here = budget_folder(folder, task.name, budget)
    for family in order:
        path = here / f"{slug(family)}.json"
        draws = Draws(path, here)
        runs = [[draws.known.get(name, {}) for name in names] for names in draws.report]
        flat = [each for run in runs for each in run]
        if not flat or not all(each.get("scores") for each in flat):
            continue
        scores = [task.combine([each["scores"] for each in run]) for run in runs]
        searched = [draws.known[name] for name in draws.record["search"]]
        # Of too few valid molecules FCD is not computed.
        names = [name for name in scores[0] if all(name in each for each in scores)]
        yield {
            "task": task.name,
            "budget": budget,
            "family": family,
            "samplers": [each["sampler"] for each in runs[0]],
            "samples": task.samples,
            "evaluations": statistics.fmean(each["evaluations"] for each in flat),
            "most": max(each["most"] for each in flat),
            "seconds": statistics.fmean(each["seconds"] for each in flat),
            "scores": {name: [each[name] for each in scores] for name in names},
            "search": [
                {name: each[name] for name in ("sampler", "evaluations", "scores")}
                for each in searched
            ],
        }
