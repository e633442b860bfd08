"""Evaluate a model at chosen coordinates, a bounded number of logits at a time.

All model calls for sampling and evaluation go through this module. It never creates a [B, N, V]
tensor: with a split model none exists, and a plain callable creates its own.
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
from cwdfm.ops.precision import CASTS, product_dtype, weight_version
from cwdfm.source import Source

# Logits per chunk: few enough for a CPU's memory bus, enough to keep a GPU busy.
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}
CHECKED_ROWS = 16  # rows of logits that are compared with probabilities


def check_flow_network(model: object) -> None:
    """Raise InputError for objects that are not models, and for transformers of other methods."""
    if not callable(model):
        wrapped = callable(getattr(model, "model", None))
        hint = "pass its .model, or use cwdfm.generate" if wrapped else "pass a module or function"
        raise InputError(
            f"model must be a callable (x_t, t) -> logits, got a {type(model).__name__}; {hint}"
        )
    config = getattr(model, "config", None)
    kind = getattr(config, "attention", "full")
    if kind in ("causal", "block"):
        raise InputError(
            f"a flow needs a network with full attention, but this one has attention={kind!r}: it "
            f"belongs to an autoregressive or block diffusion model; use cwdfm.generate, or the "
            f"sampler and likelihood of its method"
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
    """Logits [k, V] of the data tokens at the given positions, in order, in chunks.

    Each chunk comes with the slice of [K] that it covers. Without any positions the model is not
    called. Logits must be finite. With `defer`, where kernels tolerate any values, the error may
    come later (see `check_rows`).
    """
    if positions.active is not None and not len(positions.active):
        return
    elements = MAX_ELEMENTS.get(x_BN.device.type, MAX_ELEMENTS["cpu"])
    chunk = max(1, elements // source.num_tokens)
    first = 0
    for logits in _logit_chunks(model, source, x_BN, t_B.float(), positions, chunk):
        if not len(logits):  # dense positions turned out to be empty
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
            logits_BNV = model(*_own_copies(model, x_BN, t_B))
        _check_shape("the model", logits_BNV, (*x_BN.shape, source.num_tokens))
        logits_MV = logits_BNV.flatten(0, 1)
        for flat_k in positions.flat.split(k):
            yield logits_MV[flat_k]


def _own_copies(model: object, x_BN: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor]:
    """The arguments of a model call. Models of other packages may modify theirs in place."""
    return (x_BN, t_B) if is_builtin(model) else (x_BN.clone(), t_B.clone())


@contextmanager
def _describe_call(x_BN: Tensor, t_B: Tensor, largest: int) -> Iterator[None]:
    """Add the arguments of a model call to any exception that it raises."""
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
    """Hidden vectors [K, D] at the given positions; sequences without any are skipped."""
    active_A = positions.active
    if active_A is None:
        return _hidden(model, x_BN, t_B, lambda: positions.flat)
    part, select = model, getattr(model, "select", None)
    if select is not None:
        active_A = active_A.sort().values  # in the order of a mask
        part = select(torch.zeros_like(x_BN[:, 0], dtype=torch.bool).index_fill(0, active_A, True))
    return _hidden(part, x_BN[active_A], t_B[active_A], lambda: positions.flat_within(active_A))


def _hidden(model: SplitModel, x_BN: Tensor, t_B: Tensor, flat_K: Callable[[], Tensor]) -> Tensor:
    """Hidden vectors [K, D]; the flat indices are computed after the trunk was launched."""
    x_BN, t_B = _own_copies(model, x_BN, t_B)
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
    """Hidden vectors [K, D] at the given positions, and the linear layer that is the head.

    None without positions, without such a layer, or without a kernel that fuses it with a draw. Use
    `predict_logits` then.
    """
    readout = getattr(model, "readout", None) if getattr(model, "linear_head", True) else None
    if not (is_split(model) and isinstance(model, nn.Module) and type(readout) is nn.Linear):
        return None
    weight = readout.weight
    whole = type(weight) is nn.Parameter and weight.shape[0] == source.num_tokens  # not sharded
    fusible = weight.device == x_BN.device and fused_head(x_BN.device, product_dtype(weight))
    if not (whole and fusible) or (positions.active is not None and not len(positions.active)):
        return None
    hidden_KD = _hidden_at(model, x_BN, t_B.float(), positions)
    fits = product_dtype(hidden_KD) == product_dtype(weight) and len(positions)
    return (hidden_KD, readout) if fits and _is_head(model, readout, hidden_KD) else None


# Results of `_is_head` by model: the version of the weight, and whether readout and head agree.
_COMPARED: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()


def _is_head(model: SplitModel, readout: nn.Linear, hidden_KD: Tensor) -> bool:
    """Whether head(hidden) equals readout(hidden), tested on a few rows when weights change."""
    assert isinstance(model, nn.Module)
    now = weight_version(readout.weight)
    version, agrees = _COMPARED.get(model, (-1, False))
    if version != now:
        few_kD = hidden_KD[:4]
        logits = model.head(few_kD)
        check_not_probabilities(logits)
        agrees = _close(logits, readout(few_kD))
        _COMPARED[model] = (now, agrees)
    return agrees


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether logits are equal up to rounding in half precision."""
    near = {"rtol": 0.02, "atol": 0.02}
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), **near, equal_nan=True)


def is_split(model: object) -> TypeGuard[SplitModel]:
    """Whether a model has a trunk and a head."""
    return callable(getattr(model, "trunk", None)) and callable(getattr(model, "head", None))


def is_two_stage(model: object) -> TypeGuard[TwoStageModel]:
    """Whether a split model has a two-stage trunk."""
    return is_split(model) and bool(getattr(model, "two_stage", False))


def check_split(model: Model, x_BN: Tensor, t: float) -> None:
    """Raise InputError if head(trunk(x, t)) differs from model(x, t) on one sequence."""
    if not is_split(model):
        return
    x_BN = x_BN[:1].clone()
    t_1 = torch.full((1,), t, dtype=torch.float32, device=x_BN.device)
    few = 4  # positions suffice, without another [N, V] tensor
    with _describe_call(x_BN, t_1, int(x_BN.max())):
        whole_KV = model(*_own_copies(model, x_BN, t_1))[0, :few]
    check_finite(whole_KV)  # first, because NaN compares unequal
    hidden_KD = model.trunk(*_own_copies(model, x_BN, t_1))[0, :few]
    split_KV = model.head(hidden_KD)
    if is_two_stage(model):
        flat_K = torch.arange(len(hidden_KD), device=x_BN.device)
        staged_KD = model.second_stage(model.first_stage(x_BN, t_1), flat_K)
        if not torch.allclose(staged_KD.float(), hidden_KD.float(), rtol=0.05, atol=0.05):
            raise InputError(
                "the model sets two_stage, but second_stage(first_stage(x, t)) is not trunk(x, t); "
                "set two_stage to False"
            )
    if not _close(whole_KV, split_KV):
        raise InputError(
            "the model has a trunk and a head, but head(trunk(x, t)) is not model(x, t), and "
            "samplers call trunk and head. Move everything else into them, rename them, or pass "
            "lambda x, t: model(x, t)"
        )


def model_device(model: object) -> torch.device | None:
    """The device of a module's parameters; None for any other callable."""
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put a module into evaluation mode: dropout would add randomness that no seed controls.

    Weights must not change inside this context. When it ends, all deferred checks of logits have
    passed, and each submodule is back in its previous mode, since some may be frozen in training.
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


def _check_shape(what: str, logits: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(logits, Tensor) or logits.shape != shape or not logits.is_floating_point():
        hint = "; return its .logits, or use cwdfm.Adapted" if hasattr(logits, "logits") else ""
        raise InputError(
            f"{what} must return floating logits of shape {shape} (the last axis is the source's "
            f"num_tokens), got {describe(logits)}{hint}"
        )


def check_not_probabilities(logits: Tensor) -> None:
    """Raise InputError if logits look like probabilities: non-negative, with rows that sum to 1.

    A few rows decide, and the error may be deferred (see `check_rows`).
    """
    few = logits.flatten(0, -2)[:CHECKED_ROWS]
    near_1 = (few.sum(-1, dtype=torch.float64) - 1).abs() < max(
        1e-4, 8 * torch.finfo(few.dtype).eps
    )
    check_rows((few.ge(0).all() & near_1.all())[None], lambda *_: _probabilities())


def _probabilities() -> InputError:
    return InputError(
        "the model returned rows that are non-negative and sum to 1, which look like "
        "probabilities, but logits are required; return log-probabilities (p.log()) instead"
    )
