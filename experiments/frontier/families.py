"""The families of samplers, all with the same number of candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from typing import Any, get_args

import torch

import cwdfm
from cwdfm.postprocess import Refine, Reject, Resample
from cwdfm.recommendation import Recommendation, gibbs_steps, widest_distance
from cwdfm.schedule import Polynomial, Spacing
from cwdfm.solver.unmasking_order import Score
from cwdfm.solver_config import make_solver

# A family with several variants uses the first temperatures.
TEMPERATURES = (1.0, 0.8, 0.6, 0.9, 0.7, 0.5)
GRIDS: tuple[Spacing, ...] = ("kappa", "t")
SCHEDULE = Polynomial(2.0)  # of all models that are compared
GROUPS = 8  # evaluations per round of resampling with a mask source


@dataclass(frozen=True)
class Sampler:
    """A solver with all settings that determine the samples and their cost."""

    solver: Any
    steps: int
    grid: Spacing | tuple[float, ...] = "kappa"
    refine: Refine | None = None
    resample: Resample | None = None
    reject: Reject | None = None

    @classmethod
    def recommended(cls, found: Recommendation) -> "Sampler":
        """The sampler that the library recommends."""
        grid = found.grid if found.times is None else found.times
        return cls(found.solver, found.steps, grid, resample=found.resample)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `cwdfm.generate`."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        if not isinstance(self.grid, str):
            found["grid"] = torch.tensor(self.grid, dtype=torch.float64)
        return found

    @property
    def temperature(self) -> float:
        return float(getattr(self.hot, "temperature", 1.0))

    @property
    def hot(self) -> Any:
        """The solver with the temperature of the sampler."""
        return self.solver.solver if isinstance(self.solver, cwdfm.Gibbs) else self.solver

    def at(self, temperature: float) -> "Sampler":
        """The same sampler at another temperature."""
        solver = replace(self.hot, temperature=temperature)
        if isinstance(self.solver, cwdfm.Gibbs):
            solver = replace(self.solver, solver=solver)
        return replace(self, solver=solver)

    def __str__(self) -> str:
        return brief(self)


def brief(value: Any) -> str:
    """A dataclass with the fields that differ from their defaults."""
    if isinstance(value, tuple) and all(isinstance(each, float) for each in value):
        return f"({', '.join(f'{each:.4f}' for each in value)})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    given = {each.name: getattr(value, each.name) for each in fields(value)}
    usual = {each.name: each.default for each in fields(value)}
    shown = [f"{name}={brief(x)}" for name, x in given.items() if x != usual[name]]
    return f"{type(value).__name__}({', '.join(shown)})"


@dataclass(frozen=True)
class Measured:
    """Quantities that samplers need, measured once per model and not counted in the budget."""

    learned: cwdfm.Learned | None = None  # None without held-out data
    times: Callable[[int], tuple[float, ...]] | None = None  # the grid of jump-your-steps


def families(
    budget: int,
    length: int,
    *,
    masked: bool,
    candidates: int = 6,
    measured: Measured = Measured(),  # noqa: B008 (frozen)
    temperatures: Sequence[float] = TEMPERATURES,
) -> dict[str, list[Sampler]]:
    """`candidates` samplers of each family with at most `budget` evaluations per sample.

    They are fewer if a family has fewer combinations of variants and temperatures.
    """
    tokens = max(1, length // 8)
    found = (
        _rates(budget, masked, measured)
        | (_orders(budget, length) if masked else _uniform(budget, tokens))
        | _postprocessed(budget, tokens, masked)
    )
    return {
        name: [each.at(t) for t, each in product(temperatures, variants)][:candidates]
        for name, variants in found.items()
        if variants
    }


def _rates(budget: int, masked: bool, measured: Measured) -> dict[str, list[Sampler]]:
    """Samplers that step the chain. Two-stage steps cost two evaluations, except for the last."""
    found = {
        "Euler": _grids(cwdfm.Euler(), budget),
        "ancestral": _grids(_ancestral(), budget),
        "Neighbor": _each(budget, *(cwdfm.Euler(cwdfm.Neighbor(1, s)) for s in (2.0, 4.0))),
        "Entropy": _each(budget, *(cwdfm.Euler(cwdfm.Entropy(b)) for b in (1.0, 4.0))),
        "Neighbor, counted": _counted(budget, *(cwdfm.Neighbor(1, s) for s in (2.0, 4.0))),
        "Entropy, counted": _counted(budget, *(cwdfm.Entropy(b) for b in (1.0, 4.0))),
        "corrector": _each(budget, *(_ancestral(corrector=cwdfm.Corrector(s)) for s in (1.0, 4.0))),
        "theta-trapezoidal": _grids(cwdfm.ThetaTrapezoidal(), (budget + 1) // 2),
        "theta-RK2": _grids(cwdfm.ThetaRK2(), (budget + 1) // 2),
        "Gibbs": _gibbs(budget, *({"tokens": k} for k in (1, 4))),
    }
    if measured.learned is not None:
        weights = [replace(measured.learned, scale=scale) for scale in (1.0, 4.0)]
        found["learned confidence"] = _counted(budget, *weights)
    if measured.times is not None:
        found["jump your steps"] = [Sampler(_ancestral(), budget, measured.times(budget))]
    if masked:
        remasking = {
            "ReMDM, cap": (cwdfm.Remask("cap", 0.02), cwdfm.Remask("cap", 0.1)),
            "ReMDM, rescale": (cwdfm.Remask("rescale", 0.1), cwdfm.Remask("rescale", 0.5)),
            "ReMDM, confidence": (cwdfm.Remask("confidence", 1.0),),
            "ReMDM, loop": tuple(
                cwdfm.Remask("cap", eta, loop=(0.45, 0.95, 0.9)) for eta in (0.02, 0.1)
            ),
        }
        for name, correctors in remasking.items():
            found[name] = _each(budget, *(_ancestral(corrector=each) for each in correctors))
    else:
        weighted = [cwdfm.Corrector(scale, weight=cwdfm.Entropy(1.0)) for scale in (4.0, 16.0)]
        found["weighted corrector"] = _each(
            budget, *(_ancestral(corrector=each) for each in weighted)
        )
    return found


def _orders(budget: int, length: int) -> dict[str, list[Sampler]]:
    """Unmasking orders. They reveal at least one token per step, so steps are limited."""
    steps = min(budget, length)
    bounds = [cwdfm.EntropyBound(gamma) for gamma in (min(1.0, 8 / budget), 0.3)]
    paces = [cwdfm.EntropyPace(min(1.0, 6 / budget), distance=d) for d in (2, 3)]
    widest = widest_distance(steps)
    distances = [min(2, widest), widest]
    found = {f"top-k, {score}": _grids(cwdfm.TopK(score), steps) for score in get_args(Score)}
    found |= {
        "random order": _grids(cwdfm.TopK("random"), steps),
        "random order, apart": _each(
            steps, *(cwdfm.TopK("random", distance=d) for d in dict.fromkeys(distances))
        ),
        "top-k, apart": _each(steps, *(cwdfm.TopK("margin", distance=d) for d in (2, 3))),
        "entropy bound": _each(steps, *dict.fromkeys(bounds)),
        "entropy bound, apart": _each(steps, *(replace(b, distance=2) for b in bounds)),
        "entropy pace": _each(steps, *paces),
        "threshold": _each(steps, *(cwdfm.Threshold(p) for p in (0.9, 0.7))),
        "KLASS": _each(steps, *(cwdfm.KLASS(p) for p in (0.9, 0.7))),
        "path planning": _each(budget, *(cwdfm.PathPlanning(eta) for eta in (1.0, 0.5))),
    }
    if budget >= length:
        found["first hitting"] = _each(steps, cwdfm.FirstHitting())
    return found


def _uniform(budget: int, tokens: int) -> dict[str, list[Sampler]]:
    """Samplers for a uniform source only."""
    unlikely = [{"select": "unlikely", "begin": 0.3, "tokens": k} for k in (1, 4)]
    rounds = budget // 3
    resample = Resample(rounds, tokens_per_round=tokens) if rounds else None
    both = [replace(each, resample=resample) for each in _gibbs(budget - rounds, *unlikely)]
    return {
        "Gibbs, unlikely": _gibbs(budget, *unlikely),
        "Gibbs and resampling": both if resample else [],
        "entropy bound": _each(budget, *(cwdfm.EntropyBound(gamma) for gamma in (1.0, 0.1))),
    }


def _postprocessed(budget: int, tokens: int, masked: bool) -> dict[str, list[Sampler]]:
    """Ancestral steps, with 1/4, 1/2 or 3/4 of the budget for postprocessing finished samples."""
    cost = GROUPS if masked else 1
    resampled, refined, rejected = {}, {}, []
    for fraction in (0.5, 0.25, 0.75):
        rounds = int(budget * fraction) // cost
        if rounds and budget > rounds * cost:
            resample = Resample(rounds, 1 / GROUPS if masked else None, tokens_per_round=tokens)
            found = Sampler(_ancestral(), budget - rounds * cost, resample=resample)
            resampled[rounds] = found
        steps = int(budget * fraction)
        if 0 < steps < budget:
            refine = Refine(rounds=1, noise_fraction=0.2, steps=steps)
            refined[steps] = Sampler(_ancestral(), budget - steps, refine=refine)
    steps = budget // 2 - cost
    if steps > 0:  # two tries, each scored once
        for threshold in (0.95, 0.8):
            reject = Reject(threshold, max_tries=2)
            rejected.append(Sampler(_ancestral(), steps, reject=reject))
    return {
        "resampling": list(resampled.values()),
        "refinement": list(refined.values()),
        "rejection": rejected,
    }


def _ancestral(**options: Any) -> cwdfm.Euler:
    return cwdfm.Euler(hazard="integrated", **options)


def _grids(solver: Any, steps: int) -> list[Sampler]:
    return [Sampler(solver, steps, grid) for grid in GRIDS] if steps else []


def _each(steps: int, *solvers: Any) -> list[Sampler]:
    return [Sampler(solver, steps) for solver in solvers]


def _counted(steps: int, *weights: Any) -> list[Sampler]:
    return _each(steps, *(_ancestral(weight=weight, counted=True) for weight in weights))


def _gibbs(budget: int, *settings: dict[str, Any]) -> list[Sampler]:
    """As many steps as possible. The grid is equally spaced in kappa = t^2."""
    return [
        Sampler(make_solver("gibbs", **each), gibbs_steps(budget, SCHEDULE, **each))
        for each in settings
    ]
