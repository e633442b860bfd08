"""What a recipe's method means in training: its objective, and what it asks of the network.

A method is added by a function from (recipe, vocabulary, size) to a Task, by the fields that it
reads, and by what a trained model of it settles for the recipe that goes on from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cwdfm.baselines.autoregressive import Autoregressive, NextToken
from cwdfm.baselines.bd3lm import BlockDiffusion, BlockObjective
from cwdfm.baselines.sedd import SEDD, ScoreEntropyObjective
from cwdfm.errors import InputError, check_integer, check_scale
from cwdfm.loss import NELBO, Bregman, CrossEntropy, Loss, ScaledCrossEntropy
from cwdfm.loss.base import Coordinates
from cwdfm.method import Flow, FlowObjective, Method, Objective
from cwdfm.model.transformer import DiTConfig
from cwdfm.path import MixturePath, path_for
from cwdfm.schedule import Linear, Polynomial
from cwdfm.source import MaskSource, Source, UniformSource
from cwdfm.weight import Neighbor

if TYPE_CHECKING:
    from cwdfm.train.recipe import Recipe


@dataclass(frozen=True)
class Task:
    """The objects that a recipe names, for one vocabulary."""

    method: Method
    objective: Objective
    model: DiTConfig


Build = Callable[["Recipe", int, DiTConfig], Task]


def flow(recipe: "Recipe", vocab_size: int, size: DiTConfig) -> Task:
    """A discrete flow, with all that the recipe says of source, schedule, path and loss."""
    _check_loss(recipe)
    _check_windows(recipe)
    source: Source = (MaskSource if recipe.source == "mask" else UniformSource)(vocab_size)
    method = Flow(source, Polynomial(recipe.power))
    path = path_for(method.source, method.schedule, _path_weight(recipe))
    objective = FlowObjective(path, _loss(recipe))
    return Task(method, objective, replace(method.network(size), time=recipe.time))


def mdlm(recipe: "Recipe", vocab_size: int, size: DiTConfig) -> Task:
    """MDLM as a flow: mask source, linear schedule, NELBO on masked tokens, no time."""
    method = Flow(MaskSource(vocab_size), Linear())
    objective = FlowObjective(MixturePath(method.source, method.schedule), NELBO("masked"))
    return Task(method, objective, replace(method.network(size), time="zero"))


def ar(recipe: "Recipe", vocab_size: int, size: DiTConfig) -> Task:
    """An autoregressive model: causal attention, no time, one token after the other."""
    method = Autoregressive(vocab_size)
    return Task(method, NextToken(vocab_size), method.network(size))


def sedd(recipe: "Recipe", vocab_size: int, size: DiTConfig) -> Task:
    """Score entropy diffusion, absorbing for a mask source, else uniform."""
    graph: Literal["absorb", "uniform"] = "absorb" if recipe.source == "mask" else "uniform"
    method = SEDD(vocab_size, graph, recipe.noise)
    return Task(method, ScoreEntropyObjective(method), method.network(size))


def bd3lm(recipe: "Recipe", vocab_size: int, size: DiTConfig) -> Task:
    """Block diffusion: MDLM in blocks of `block` tokens, from left to right."""
    if recipe.length % recipe.block:
        raise InputError(
            f"bd3lm needs a length that is a multiple of its block, got length {recipe.length} "
            f"and block {recipe.block}; change --length or --block"
        )
    method = BlockDiffusion(MaskSource(vocab_size), Linear(), recipe.block)
    objective = BlockObjective(
        method.source,
        method.schedule,
        recipe.block,
        low=recipe.clip_low,
        high=recipe.clip_high,
        search=recipe.clip_search,
    )
    return Task(method, objective, method.network(size))


METHODS: dict[str, Build] = {
    "flow": flow,
    "mdlm": mdlm,
    "ar": ar,
    "sedd": sedd,
    "bd3lm": bd3lm,
}

# The fields that are read by some choices alone, with those choices.
_Choices = dict[str, tuple[str, ...]]
_FLOW: _Choices = {"method": ("flow",)}
_BLOCKS: _Choices = {"method": ("bd3lm",)}
READ_WITH: dict[str, _Choices] = {
    "source": {"method": ("flow", "sedd")},
    "power": _FLOW,
    "path": _FLOW,
    "path_radius": _FLOW | {"path": ("context",)},
    "path_scale": _FLOW | {"path": ("context",)},
    "time": _FLOW,
    "noise": {"method": ("sedd",)},
    "block": _BLOCKS,
    "clip_low": _BLOCKS,
    "clip_high": _BLOCKS,
    "clip_search": _BLOCKS,
    "loss": _FLOW,
    "masked_only": _FLOW | {"loss": ("ce", "nelbo", "bregman")},
    "loss_radius": _FLOW | {"loss": ("sce",)},
    "loss_scale": _FLOW | {"loss": ("sce",)},
    "revealed": _FLOW | {"loss": ("sce",)},
}

# What methods that do not read a field have in its place.
_MASKED: dict[str, object] = {"source": "mask", "power": 1.0, "time": "zero"}
_MASKED |= {"loss": "nelbo", "masked_only": True}
OF_ITS_OWN = {"mdlm": _MASKED | {"path": "mixture"}, "bd3lm": _MASKED}


def settled(method: Method, model: DiTConfig) -> dict[str, Any]:
    """The recipe's fields that a trained model settles for a run that goes on from it."""
    known = _SETTLED.get(type(method))
    if known is None:
        raise InputError(f"recipes cannot go on from a model trained as {type(method).__name__}")
    return known(method, model)


def _flow_settles(method: Flow, model: DiTConfig) -> dict[str, Any]:
    source = "mask" if isinstance(method.source, MaskSource) else "uniform"
    if isinstance(method.schedule, Polynomial):
        power = method.schedule.power
        return {"method": "flow", "source": source, "power": power, "time": model.time}
    if isinstance(method.schedule, Linear) and source == "mask" and model.time == "zero":
        return {"method": "mdlm", "source": source}
    raise InputError(f"recipes know schedules kappa = t^power, the model has {method.schedule}")


_SETTLED: dict[type[Method], Callable[[Any, DiTConfig], dict[str, Any]]] = {
    Flow: _flow_settles,
    Autoregressive: lambda method, model: {"method": "ar"},
    BlockDiffusion: lambda method, model: {"method": "bd3lm", "block": method.block},
    SEDD: lambda method, model: {
        "method": "sedd",
        "source": "mask" if method.graph == "absorb" else "uniform",
        "noise": method.noise,
    },
}


def _check_loss(recipe: "Recipe") -> None:
    """Refuse what would be no bound, or would not teach a network to keep right tokens."""
    if recipe.source == "mask":
        return
    if recipe.loss == "nelbo" and recipe.path == "context" and not recipe.masked_only:
        raise InputError(
            "the nelbo loss on a context path leaves revealed tokens out, and with a uniform "
            "source a network does not learn to keep them then; use --loss ce or sce, or "
            "--source mask, or --masked-only if that is meant"
        )
    if recipe.loss == "bregman":
        if recipe.path == "context":
            raise InputError(
                "the bregman loss on a context path needs a mask source: with a uniform one "
                "alpha is no function of x_t; use --loss ce or sce, or --source mask"
            )
        if recipe.masked_only:
            raise InputError(
                "the bregman loss on masked tokens alone needs a mask source: with a uniform "
                "one the other terms do not vanish; leave --masked-only out"
            )


def _check_windows(recipe: "Recipe") -> None:
    """Refuse windows that are none, or would overlap themselves, as the first step would notice."""
    windows = {"path": recipe.path == "context", "loss": recipe.loss == "sce"}
    largest = (recipe.length - 1) // 2
    for what in (what for what, there in windows.items() if there):
        check_scale(f"{what}_scale", getattr(recipe, f"{what}_scale"))
        name = f"{what}_radius"
        check_integer(name, radius := getattr(recipe, name))
        if radius > largest:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{name} {radius} is too large for sequences of {recipe.length} tokens: a window "
                f"of {2 * radius + 1} would overlap itself; give a {flag} of at most {largest}, or "
                f"a --length of at least {2 * radius + 1}"
            )


def _path_weight(recipe: "Recipe") -> Neighbor | None:
    if recipe.path == "mixture":
        return None
    return Neighbor(recipe.path_radius, recipe.path_scale)


def _loss(recipe: "Recipe") -> Loss:
    masked: Coordinates = "masked" if recipe.masked_only else "all"
    match recipe.loss:
        case "ce":
            return CrossEntropy(masked)
        case "nelbo":
            weight = _path_weight(recipe)
            return NELBO(masked if weight is None else "masked", weight)
        case "bregman":
            return Bregman(masked, _path_weight(recipe))
        case "sce":
            weight = Neighbor(recipe.loss_radius, recipe.loss_scale)
            return ScaledCrossEntropy(weight, recipe.revealed)
