"""The families of samplers, each with as many candidates as the others."""

from itertools import product
from typing import Any

from cwdfm.postprocess import Resample
from cwdfm.recommend import Recommendation as Sampler
from cwdfm.schedule import Spacing

# The first ones are used if a family has several variants. Every sampler may lower its temperature.
TEMPERATURES = (1.0, 0.8, 0.6, 0.9, 0.7, 0.5)
GRIDS: tuple[Spacing, ...] = ("kappa", "t")
GROUPS = 8  # evaluations of a round of resampling with a mask source


def families(
    budget: int, length: int, *, masked: bool, candidates: int = 6
) -> dict[str, list[Sampler]]:
    """`candidates` samplers of each family with at most `budget` evaluations per sample."""
    found = {
        "Euler": _grids("euler", budget),
        "ancestral": _grids("ancestral", budget),
        "Neighbor": _each("neighbor", budget, {"scale": 2.0}, {"scale": 4.0}),
        "Entropy": _each("entropy", budget, {"beta": 1.0}, {"beta": 4.0}),
        "Neighbor, counted": _each("neighbor-counted", budget, {"scale": 2.0}, {"scale": 4.0}),
        "Entropy, counted": _each("entropy-counted", budget, {"beta": 1.0}, {"beta": 4.0}),
        "corrector": _each(
            "euler", budget, *({"hazard": "integrated", "corrector": s} for s in (1.0, 4.0))
        ),
        "theta-trapezoidal": _grids("theta-trapezoidal", budget // 2),
        "Gibbs": _gibbs(budget, {"tokens": 1}, {"tokens": 4}),
    }
    if masked:
        found |= {
            f"top-k, {rule}": _grids(rule, budget)
            for rule in ("confidence", "margin", "low-entropy")
        }
        found |= {
            "entropy bound": _each("entropy-bound", budget, {"gamma": 8 / budget}, {"gamma": 0.3}),
            "threshold": _each("threshold", budget, {"threshold": 0.9}, {"threshold": 0.7}),
            "KLASS": _each("klass", budget, {"threshold": 0.9}, {"threshold": 0.7}),
            "path planning": _each("path-planning", budget, {}, {"eta": 0.5}),
            "remasking": _each("remask", budget, {"eta": 0.05}, {"rule": "rescale", "eta": 0.1}),
        }
        if budget >= length:
            found["first hitting"] = _each("first-hitting", budget, {})
    else:
        weighted = {"hazard": "integrated", "corrector_beta": 1.0}
        unlikely = {"select": "unlikely", "begin": 0.3}
        found |= {
            "weighted corrector": _each(
                "euler", budget, *(weighted | {"corrector": s} for s in (4.0, 16.0))
            ),
            "Gibbs, unlikely": _gibbs(budget, unlikely, unlikely | {"tokens": 4}),
            "Gibbs and resampling": [
                Sampler(
                    **vars(gibbs)
                    | {"resample": Resample(budget // 3, tokens_per_round=max(1, length // 8))}
                )
                for gibbs in _gibbs(budget - budget // 3, unlikely, unlikely | {"tokens": 4})
                if budget >= 4
            ],
            "entropy bound": _each("entropy-bound", budget, {"gamma": 1.0}, {"gamma": 0.1}),
        }
    found["resampling"] = _resampled(budget, length, GROUPS if masked else 1)
    return {name: _cooled(variants, candidates) for name, variants in found.items() if variants}


def _cooled(variants: list[Sampler], candidates: int) -> list[Sampler]:
    """Every variant at several temperatures, `candidates` samplers in all."""
    temperatures = TEMPERATURES[: -(-candidates // len(variants))]
    pairs = product(temperatures, variants)
    found = [Sampler(**vars(v) | {"settings": (*v.settings, ("temperature", t))}) for t, v in pairs]
    return found[:candidates]


def _grids(name: str, steps: int) -> list[Sampler]:
    return [Sampler(name, steps, grid) for grid in GRIDS] if steps else []


def _each(name: str, steps: int, *settings: dict[str, Any]) -> list[Sampler]:
    return [Sampler(name, steps, "kappa", tuple(each.items())) for each in settings]


def _gibbs(budget: int, *settings: dict[str, Any]) -> list[Sampler]:
    """Steps from time `begin` on, where kappa = begin^2, have a second evaluation."""
    found = []
    for each in settings:
        if steps := int(budget / (2 - each.get("begin", 0.0) ** 2)):
            found += _each("gibbs", steps, each)
    return found


def _resampled(budget: int, length: int, cost: int) -> list[Sampler]:
    """Ancestral steps with 1/4, 1/2 or 3/4 of the budget for rounds of resampling."""
    found = {}
    for fraction in (0.5, 0.25, 0.75):
        rounds = int(budget * fraction) // cost
        if rounds and budget > rounds * cost:
            noise = 1 / GROUPS if cost > 1 else None
            resample = Resample(rounds, noise, tokens_per_round=max(1, length // 8))
            found[rounds] = Sampler("ancestral", budget - rounds * cost, "kappa", (), resample)
    return list(found.values())
