"""The options of `generate_text`: validation, and defaults for a model."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor

from cwdfm.baselines.autoregressive import LeftToRight
from cwdfm.baselines.sedd.solver import Analytic, ScoreEuler
from cwdfm.errors import InputError, check_choice, check_instance, check_integer
from cwdfm.language.block import Constraint
from cwdfm.language.model import LanguageModel
from cwdfm.language.session import CacheKind
from cwdfm.schedule import Spacing
from cwdfm.solver import EntropyBound, Solver, Threshold, TopK
from cwdfm.solver.base import with_draws
from cwdfm.solver_config import make_solver


@dataclass(frozen=True)
class Options:
    """The validated options of `generate_text`."""

    solver: Solver
    block_length: int | None
    steps: int | None
    grid: Spacing | Tensor
    cache: CacheKind
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]
    hold_stop: bool
    never: tuple[int, ...]
    constraint: Constraint | None
    seed: int
    callback: Callable[[list[str]], object] | None


def find_block(model: LanguageModel, block_length: int | None, templates: bool) -> int | None:
    """The number of tokens per block; None for a single block, the default for templates."""
    if block_length is None:
        return model.block or (None if templates else model.block_length)
    check_integer("block_length", block_length)
    if model.block is not None and block_length != model.block:
        raise InputError(
            f"{model.family} has blocks of {model.block} tokens, got block_length={block_length}; "
            f"omit it, or load the model with block={block_length}",
            fields=("block_length",),
        )
    return block_length


def find_cache(model: LanguageModel, cache: CacheKind | None) -> CacheKind:
    """The cache type; by default "exact" if the model supports it, else "none"."""
    if cache is None:
        return "exact" if model.block is not None else "none"
    check_choice("cache", cache, get_args(CacheKind))
    supported: tuple[str, ...] = ("none", "prefix", "dual", "prompt")
    if model.block is not None:
        supported = ("none", "exact")
    if not getattr(model.network, "caches", True):
        supported = ("none",)
    if cache not in supported:
        raise InputError(
            f"{model.family} supports the caches {', '.join(map(repr, supported))}, got {cache!r}",
            fields=("cache",),
        )
    return cache


def find_solver(
    model: LanguageModel,
    solver: Solver | str | None,
    threshold: float | None = None,
    **draws: float | None,
) -> Solver:
    """The solver to use within a block, with these options of its draws."""
    masked = model.mask_id is not None
    if threshold is not None:
        if solver is not None or not masked:
            reason = f"with {model.family}, which has no mask token"
            if masked:
                reason = "with a solver; set it in the solver, as in cwdfm.Threshold(0.9)"
            raise InputError(f"threshold must be omitted {reason}", fields=("threshold",))
        solver = Threshold(threshold, temperature=0.0)
    elif solver is None:
        solver = TopK(temperature=0.0) if masked else EntropyBound(0.1, temperature=0.6)
    elif isinstance(solver, str):
        solver = make_solver(solver)
    if isinstance(solver, LeftToRight | Analytic | ScoreEuler):
        raise InputError(
            f"{type(solver).__name__} is not a solver of flows, which language models require; "
            f"use 'confidence', 'threshold' or 'neighbor'",
            fields=("solver",),
        )
    check_instance("solver", solver, Solver, "TopK(temperature=0.0)")
    drawn: Solver = with_draws(solver, **draws)
    return drawn


def find_stop(
    model: LanguageModel, stop: Collection[str | int] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The token ids and the strings that end a text; strings alone keep the model's end tokens."""
    if stop is None:
        return model.stop_ids, ()
    if isinstance(stop, str) or not isinstance(stop, Collection):
        raise InputError(
            f"stop must be a list of token ids and texts, got {stop!r}", fields=("stop",)
        )
    texts = tuple(each for each in stop if isinstance(each, str))
    if "" in texts:
        raise InputError("stop contains an empty text; omit it", fields=("stop",))
    ids = [each for each in stop if not isinstance(each, str)]
    return model.stop_ids if texts and not ids else check_ids(model, "stop", ids), texts


def check_ids(model: LanguageModel, name: str, ids: Any) -> tuple[int, ...]:
    """Require a collection of token ids of the tokenizer."""
    count = len(model.tokenizer)
    valid = isinstance(ids, Collection) and not isinstance(ids, str)
    if not valid or not all(type(i) is int and 0 <= i < count for i in ids):
        raise InputError(f"{name} must contain ids 0..{count - 1}, got {ids!r}", fields=(name,))
    return tuple(ids)


def check_never(model: LanguageModel, never: Any) -> tuple[int, ...]:
    """Require token ids that leave at least one token to draw."""
    ids = check_ids(model, "never", never)
    if set(range(len(model.tokenizer))) <= {*ids, model.mask_id}:
        raise InputError("never contains all ids, so no token is left to draw", fields=("never",))
    return ids
