"""Evaluate a model at selected coordinates, with a bounded number of logits at a time.

All model calls for sampling and evaluation go through this module. With a split model no
[B, N, V] tensor ever exists; a plain callable returns one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_finite, describe, is_builtin
from cwdfm.model.positions import Positions
from cwdfm.model.protocol import Model, SplitModel, TwoStageModel
from cwdfm.ops.dispatch import fused_elementwise, fused_head
from cwdfm.ops.host_copy import check_rows, deferred_checks
from cwdfm.ops.precision import CASTS, HALF, product_dtype, weight_version
from cwdfm.source import Source

# Logits per chunk: few enough to limit a CPU's memory traffic, enough to keep a GPU busy.
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}
CHECKED_ROWS = 16  # rows of logits that `check_not_probabilities` inspects
HALF_ERROR = (
    0.05  # largest relative difference between two ways to compute a row, in half precision
)


def check_flow_network(model: object) -> None:
    """Raise an InputError unless the object is a model of a flow."""
    if not callable(model):
        wrapped = callable(getattr(model, "model", None))
        hint = "pass its .model, or use cwdfm.generate" if wrapped else "pass a module or function"
        raise InputError(
            f"model must be a callable (x_t, t) -> logits, got a {type(model).__name__}; {hint}"
        )
    config = getattr(model, "config", None)
    attention = getattr(config, "attention", "full")
    if attention in ("causal", "block"):
        raise InputError(
            f"a flow needs a network with full attention, but this one has "
            f"attention={attention!r}: it belongs to an autoregressive or block diffusion model; "
            f"use cwdfm.generate, or the sampler and likelihood of its method"
        )


def predict_logits(
    model: Model,
    source: Source,
    x_BN: Tensor,
    t_B: Tensor,
    positions: Positions,
    *,
    defer: bool = False,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield logits [k, V] of the data tokens at `positions`, in order, in chunks.

    Each chunk comes with the slice of [K] that it covers. Without positions the model is not
    called. Non-finite logits are an error. With `defer`, the error may be raised later on a GPU,
    whose kernels tolerate any values (see `check_rows`).
    """
    if positions.active is not None and not len(positions.active):
        return
    elements = MAX_ELEMENTS.get(x_BN.device.type, MAX_ELEMENTS["cpu"])
    chunk = max(1, elements // source.num_tokens)
    first = 0
    for logits in _logit_chunks(model, source, x_BN, t_B.float(), positions, chunk):
        if not len(logits):  # dense positions may turn out to be empty
            return
        logits_kV = source.data_logits(logits)
        if defer and fused_elementwise(logits_kV):
            check_rows(~logits_kV.amax(-1).isfinite())
        else:
            check_finite(logits_kV)
        if first == 0 and not getattr(model, "returns_logits", False):
            check_not_probabilities(logits)
        yield slice(first, first + len(logits)), logits_kV
        first += len(logits)


def _logit_chunks(
    model: Model, source: Source, x_BN: Tensor, t_B: Tensor, positions: Positions, k: int
) -> Iterator[Tensor]:
    if (logits_at := getattr(model, "logits_at", None)) is not None:
        yield from logits_at(x_BN, t_B, positions)
    elif is_split(model):
        for hidden_kD in _hidden_at(model, x_BN, t_B, positions).split(k):
            logits_kV = model.head(hidden_kD)
            _check_shape("model.head", logits_kV, (len(hidden_kD), source.num_tokens))
            yield logits_kV
    else:
        with _describe_call(x_BN, t_B, source.num_tokens - 1):
            logits_BNV = model(*_arguments(model, x_BN, t_B))
        _check_shape("the model", logits_BNV, (*x_BN.shape, source.num_tokens))
        logits_MV = logits_BNV.flatten(0, 1)
        for flat_k in positions.flat.split(k):
            yield logits_MV[flat_k]


def _arguments(model: object, x_BN: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor]:
    """The arguments of a model call, copied for user models, which may modify them in place."""
    return (x_BN, t_B) if is_builtin(model) else (x_BN.clone(), t_B.clone())


@contextmanager
def _describe_call(x_BN: Tensor, t_B: Tensor, largest: int) -> Iterator[None]:
    """Add a description of the arguments to any exception that a model call raises."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"the model was called as model(x_t, t) with x_t = {describe(x_BN)} on {x_BN.device}, "
            f"ids up to {largest} (the mask id of a mask source follows its data tokens), and t = "
            f"{describe(t_B)}; wrap a network that takes only tokens, or has a different mask id, "
            f"in cwdfm.Adapted"
        )
        raise


def _hidden_at(model: SplitModel, x_BN: Tensor, t_B: Tensor, positions: Positions) -> Tensor:
    """Hidden vectors [K, D] at `positions`; sequences without any are skipped."""
    active_A = positions.active
    if active_A is None:
        return _hidden(model, x_BN, t_B, lambda: positions.flat)
    select = getattr(model, "select", None)
    if select is not None:
        active_A = active_A.sort().values  # in the order of the mask
        active_B = torch.zeros_like(x_BN[:, 0], dtype=torch.bool).index_fill(0, active_A, True)
        model = select(active_B)
    return _hidden(model, x_BN[active_A], t_B[active_A], lambda: positions.flat_within(active_A))


def _hidden(model: SplitModel, x_BN: Tensor, t_B: Tensor, flat_K: Callable[[], Tensor]) -> Tensor:
    """Hidden vectors [K, D]; the flat indices are computed after the trunk has been launched."""
    x_BN, t_B = _arguments(model, x_BN, t_B)
    if is_two_stage(model):
        state = model.first_stage(x_BN, t_B)
        return model.second_stage(state, flat_K())
    hidden_BND = model.trunk(x_BN, t_B)
    if hidden_BND.shape[:2] != x_BN.shape:
        raise InputError(
            f"model.trunk must return hidden vectors [{x_BN.shape[0]}, {x_BN.shape[1]}, width], "
            f"got {describe(hidden_BND)}"
        )
    return hidden_BND.flatten(0, 1).index_select(0, flat_K())


def fusible_hidden(
    model: Model, source: Source, x_BN: Tensor, t_B: Tensor, positions: Positions
) -> tuple[Tensor, nn.Linear] | None:
    """Hidden vectors [K, D] at `positions` and the linear head, for kernels that fuse it.

    None without positions, without a linear head, or without such kernels; use `predict_logits`
    instead.
    """
    readout = getattr(model, "readout", None) if getattr(model, "linear_head", True) else None
    if not (is_split(model) and isinstance(model, nn.Module) and type(readout) is nn.Linear):
        return None
    weight = readout.weight
    unsharded = type(weight) is nn.Parameter and weight.shape[0] == source.num_tokens
    fusible = weight.device == x_BN.device and fused_head(x_BN.device, product_dtype(weight))
    if not (unsharded and fusible) or (positions.active is not None and not len(positions.active)):
        return None
    hidden_KD = _hidden_at(model, x_BN, t_B.float(), positions)
    same_dtype = product_dtype(hidden_KD) == product_dtype(weight)
    if not same_dtype or not len(positions) or not _is_head(model, readout, hidden_KD):
        return None
    return hidden_KD, readout


# Results of `_is_head` by model: the version of the weight, and whether readout and head agree.
_HEAD_CHECKS: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()


def _is_head(model: SplitModel, readout: nn.Linear, hidden_KD: Tensor) -> bool:
    """Whether head(hidden) equals readout(hidden), tested on a few rows when weights change."""
    assert isinstance(model, nn.Module)
    version = weight_version(readout.weight)
    checked_version, agrees = _HEAD_CHECKS.get(model, (-1, False))
    if checked_version != version:
        hidden_kD = hidden_KD[:4]
        logits = model.head(hidden_kD)
        check_not_probabilities(logits)
        agrees = _close(logits, readout(hidden_kD))
        _HEAD_CHECKS[model] = (version, agrees)
    return agrees


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether logits or hidden vectors [K, V] are equal up to rounding.

    In half precision the rounding of a small value is that of the largest ones it was computed
    from, so rows are compared as a whole: by the norm of their difference relative to the norm of
    their deviation from the mean, because a constant does not change probabilities.
    """
    if a.shape != b.shape:
        return False
    low, a, b = product_dtype(a) in HALF, a.float(), b.float()
    if torch.allclose(a, b, rtol=0.02, atol=0.02, equal_nan=True):
        return True
    if not low or not torch.equal(a.isfinite(), b.isfinite()):
        return False
    a, b = (each.where(each.isfinite(), each.new_tensor(torch.nan)) for each in (a, b))
    spread = (a - a.nanmean(-1, keepdim=True)).nan_to_num().norm(dim=-1)
    return bool(((a - b).nan_to_num().norm(dim=-1) <= HALF_ERROR * spread).all())


def is_split(model: object) -> TypeGuard[SplitModel]:
    """Whether a model has a trunk and a head."""
    return callable(getattr(model, "trunk", None)) and callable(getattr(model, "head", None))


def is_two_stage(model: object) -> TypeGuard[TwoStageModel]:
    """Whether a split model has a two-stage trunk."""
    return is_split(model) and bool(getattr(model, "two_stage", False))


def check_split(model: Model, x_BN: Tensor, t: float) -> None:
    """Raise an InputError if head(trunk(x, t)) differs from model(x, t) on one sequence."""
    if not is_split(model):
        return
    x_BN = x_BN[:1].clone()
    t_1 = torch.full((1,), t, dtype=torch.float32, device=x_BN.device)
    count = 4  # compare a few positions, to avoid another [N, V] tensor
    with _describe_call(x_BN, t_1, int(x_BN.max())):
        full_KV = model(*_arguments(model, x_BN, t_1))[0, :count]
    check_finite(full_KV)  # first, because NaN compares unequal
    hidden_KD = model.trunk(*_arguments(model, x_BN, t_1))[0, :count]
    split_KV = model.head(hidden_KD)
    if is_two_stage(model):
        flat_K = torch.arange(len(hidden_KD), device=x_BN.device)
        staged_KD = model.second_stage(model.first_stage(x_BN, t_1), flat_K)
        if not _close(hidden_KD, staged_KD):
            raise InputError(
                "the model sets two_stage, but second_stage(first_stage(x, t)) is not trunk(x, t); "
                "set two_stage to False"
            )
    if not _close(full_KV, split_KV):
        raise InputError(
            "head(trunk(x, t)) differs from model(x, t), but samplers call trunk and head. Move "
            "all other computation into them, rename them, or pass lambda x, t: model(x, t)"
        )


def model_device(model: object) -> torch.device | None:
    """The device of a module's parameters; None for other callables."""
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put a module into evaluation mode, because dropout adds randomness that no seed controls.

    Weights must not change within this context. On exit, all deferred checks of logits have passed,
    and every submodule is back in its own previous mode.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    if isinstance(model, nn.Module):
        model.eval()
    try:
        with deferred_checks(), CASTS.enabled():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):  # parents before children
            if module.training != mode:
                module.train(mode)


def _check_shape(function: str, logits: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(logits, Tensor) or logits.shape != shape or not logits.is_floating_point():
        hint = "; return its .logits, or use cwdfm.Adapted" if hasattr(logits, "logits") else ""
        raise InputError(
            f"{function} must return floating logits of shape {shape} (the last axis is the "
            f"source's num_tokens), got {describe(logits)}{hint}"
        )


def check_not_probabilities(logits: Tensor) -> None:
    """Raise an InputError if logits look like probabilities: non-negative rows that sum to 1.

    Only the first rows are inspected, and the error may be deferred (see `check_rows`).
    """
    rows = logits.flatten(0, -2)[:CHECKED_ROWS]
    tolerance = max(1e-4, 8 * torch.finfo(rows.dtype).eps)
    sums_to_1 = (rows.sum(-1, dtype=torch.float64) - 1).abs() < tolerance
    check_rows((rows.ge(0).all() & sums_to_1.all())[None], lambda *_: _probabilities_error())


def _probabilities_error() -> InputError:
    return InputError(
        "the model returned rows that are non-negative and sum to 1, which look like "
        "probabilities, but logits are required; return log-probabilities (p.log()) instead"
    )
