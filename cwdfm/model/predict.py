"""Ask a model for logits at chosen coordinates, a bounded number of rows at a time.

The one place where the library calls a model to sample or to evaluate. No [B, N, V] tensor is made
here: a split model never makes one, a plain callable makes its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_finite, describe
from cwdfm.model.positions import Rows
from cwdfm.model.protocol import Model, SplitModel, TwoPartModel
from cwdfm.ops import fused_head, product_dtype
from cwdfm.ops.cast import CASTS
from cwdfm.ops.host_copy import doubting
from cwdfm.source import Source

# Logits held at once: few enough for a CPU's memory bus, enough to keep a GPU busy.
MAX_ELEMENTS = {"cpu": 2**22, "cuda": 2**27}


def check_flow_network(model: object) -> None:
    """Refuse what is no model, and a transformer of another method: it would answer nonsense."""
    if not callable(model):
        inside = callable(getattr(model, "model", None))
        hint = "give its .model, or use cwdfm.generate" if inside else "give a module or function"
        raise InputError(
            f"model must be a callable (x_t, t) -> logits, got a {type(model).__name__}; {hint}"
        )
    config = getattr(model, "config", None)
    kind = getattr(config, "attention", "full")
    if kind in ("causal", "block"):
        raise InputError(
            f"a flow needs a network with full attention, this one has attention={kind!r}: it "
            f"belongs to an autoregressive model or to block diffusion; use cwdfm.generate, or its "
            f"method's draw and likelihood"
        )


def predict_rows(
    model: Model, source: Source, x_BN: Tensor, t_B: Tensor, rows: Rows
) -> Iterator[tuple[slice, Tensor]]:
    """Logits [k, V] of the data tokens at some coordinates, in their order, in chunks.

    With each chunk comes the slice of the rows [K] that it covers. Nothing is asked of the model
    where no row is wanted at all.
    """
    if rows.active is not None and not len(rows.active):
        return
    elements = MAX_ELEMENTS.get(x_BN.device.type, MAX_ELEMENTS["cpu"])
    chunk = max(1, elements // source.num_tokens)
    first = 0
    for logits in _row_chunks(model, source, x_BN, t_B.float(), rows, chunk):
        if not len(logits):  # where crowded rows turn out to be none
            return
        logits_kV = source.data_logits(logits)
        check_finite(logits_kV)
        if first == 0:
            check_not_probabilities(logits)
        yield slice(first, first + len(logits)), logits_kV
        first += len(logits)


def _row_chunks(
    model: Model, source: Source, x_BN: Tensor, t_B: Tensor, rows: Rows, k: int
) -> Iterator[Tensor]:
    if is_split(model):
        for hidden_kD in _hidden_rows(model, x_BN, t_B, rows).split(k):
            logits_kV = model.head(hidden_kD)
            _check_shape("model.head", logits_kV, (len(hidden_kD), source.num_tokens))
            yield logits_kV
    else:
        with _telling(x_BN, t_B, source.num_tokens - 1):
            logits_BNV = model(x_BN, t_B)
        _check_shape("the model", logits_BNV, (*x_BN.shape, source.num_tokens))
        logits_MV = logits_BNV.flatten(0, 1)
        for place_k in rows.place.split(k):
            yield logits_MV[place_k]


@contextmanager
def _telling(x_BN: Tensor, t_B: Tensor, largest: int) -> Iterator[None]:
    """Say of an error inside a model what it was called with."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"the model was called as model(x_t, t), x_t being {describe(x_BN)} on {x_BN.device} "
            f"with ids up to {largest} (a mask source's mask is one more than its data's), t "
            f"{describe(t_B)}; of a network of tokens alone, or with a mask id of its own, "
            f"cwdfm.Adapted makes one"
        )
        raise


def _hidden_rows(model: SplitModel, x_BN: Tensor, t_B: Tensor, rows: Rows) -> Tensor:
    """The trunk's vectors [K, D] at some coordinates; sequences without any are left out."""
    active_A = rows.active
    if active_A is None:
        return _hidden(model, x_BN, t_B, lambda: rows.place)
    part, select = model, getattr(model, "select", None)
    if select is not None:
        active_A = active_A.sort().values  # as a mask has them
        part = select(torch.zeros_like(x_BN[:, 0], dtype=torch.bool).index_fill(0, active_A, True))
    return _hidden(part, x_BN[active_A], t_B[active_A], lambda: rows.among(active_A))


def _hidden(model: SplitModel, x_BN: Tensor, t_B: Tensor, place_K: Callable[[], Tensor]) -> Tensor:
    """Vectors [K, D] at places that are known once the trunk is at work."""
    if in_two_parts(model):
        begun = model.begin(x_BN, t_B)
        return model.end(begun, place_K())
    hidden_BND = model.trunk(x_BN, t_B)
    if hidden_BND.shape[:2] != x_BN.shape:
        raise InputError(
            f"model.trunk must return hidden vectors [{x_BN.shape[0]}, {x_BN.shape[1]}, width], "
            f"got {describe(hidden_BND)}"
        )
    return hidden_BND.flatten(0, 1).index_select(0, place_K())


def fusible_rows(
    model: Model, source: Source, x_BN: Tensor, t_B: Tensor, rows: Rows
) -> tuple[Tensor, nn.Linear] | None:
    """Hidden vectors [K, D] at some coordinates, and the linear map that is the head.

    None where there are no rows, or no such map, or no kernel to fuse it with a draw: then ask
    `predict_rows`.
    """
    readout = getattr(model, "readout", None)
    if not (is_split(model) and isinstance(model, nn.Module) and type(readout) is nn.Linear):
        return None
    weight = readout.weight
    whole = type(weight) is nn.Parameter and weight.shape[0] == source.num_tokens  # and no shard
    fusible = weight.device == x_BN.device and fused_head(x_BN.device, product_dtype(weight))
    if not (whole and fusible) or (rows.active is not None and not len(rows.active)):
        return None
    hidden_KD = _hidden_rows(model, x_BN, t_B.float(), rows)
    fits = product_dtype(hidden_KD) == product_dtype(weight) and len(rows)
    return (hidden_KD, readout) if fits and _is_head(model, readout, hidden_KD) else None


# Models whose readout was compared with their head: at which version of its weight, and the verdict
_COMPARED: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()


def _is_head(model: SplitModel, readout: nn.Linear, hidden_KD: Tensor) -> bool:
    """Whether head(hidden) is readout(hidden), tried on a few rows whenever the weights change."""
    assert isinstance(model, nn.Module)
    now = 0 if readout.weight.is_inference() else readout.weight._version
    version, verdict = _COMPARED.get(model, (-1, False))
    if version != now:
        few_kD = hidden_KD[:4]
        logits = model.head(few_kD)
        check_not_probabilities(logits)
        same = readout(few_kD)
        verdict = logits.shape == same.shape and torch.allclose(
            logits.float(), same.float(), rtol=0.02, atol=0.02, equal_nan=True
        )
        _COMPARED[model] = (now, verdict)
    return verdict


def is_split(model: object) -> TypeGuard[SplitModel]:
    """Whether a model offers trunk and head."""
    return callable(getattr(model, "trunk", None)) and callable(getattr(model, "head", None))


def in_two_parts(model: object) -> TypeGuard[TwoPartModel]:
    """Whether a split model offers its trunk in two parts."""
    return is_split(model) and bool(getattr(model, "two_parts", False))


def check_split(model: Model, x_BN: Tensor, t: float) -> None:
    """Refuse a model whose trunk and head are not the two halves of it, tried on one sequence."""
    if not is_split(model):
        return
    t_1 = torch.full((1,), t, dtype=torch.float32, device=x_BN.device)
    few = 4  # positions: enough to tell, without another tensor of the vocabulary's width
    with _telling(x_BN[:1], t_1, int(x_BN[:1].max())):
        whole_KV = model(x_BN[:1], t_1)[0, :few].float()
    check_finite(whole_KV)  # first: what is no number equals nothing
    hidden_KD = model.trunk(x_BN[:1], t_1)[0, :few]
    halves_KV = model.head(hidden_KD).float()
    if in_two_parts(model):
        place_K = torch.arange(len(hidden_KD), device=x_BN.device)
        parts_KD = model.end(model.begin(x_BN[:1], t_1), place_K)
        if not torch.allclose(parts_KD.float(), hidden_KD.float(), rtol=0.05, atol=0.05):
            raise InputError(
                "the model says that it has its trunk in two parts, and end(begin(x, t)) is not "
                "trunk(x, t): the sampler would use the wrong one; let two_parts be False"
            )
    if not torch.allclose(whole_KV, halves_KV, rtol=0.02, atol=0.02, equal_nan=True):
        raise InputError(
            "the model has a trunk and a head, and head(trunk(x, t)) is not model(x, t): the "
            "sampler would use the wrong one. Move all else into them, rename them, or pass "
            "lambda x, t: model(x, t)"
        )


def model_device(model: object) -> torch.device | None:
    """Where a module's parameters are; None for any other callable."""
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """A module in evaluation mode for a while: dropout would add randomness that no seed counts.

    Its weights are taken not to change meanwhile. At its end no logits are in doubt any more, and
    each part of it is in the mode it was in: some may be frozen while others train.
    """
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [part.training for part in parts]
    if isinstance(model, nn.Module):
        model.eval()
    try:
        with doubting(), CASTS.kept():
            yield
    finally:
        for part, mode in zip(parts, modes, strict=True):  # a whole before its parts
            if part.training != mode:
                part.train(mode)


def _check_shape(what: str, logits: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(logits, Tensor) or logits.shape != shape or not logits.is_floating_point():
        hint = "; return its .logits, or use cwdfm.Adapted" if hasattr(logits, "logits") else ""
        raise InputError(
            f"{what} must return floating logits of shape {shape} (the last axis is the source's "
            f"num_tokens), got {describe(logits)}{hint}"
        )


def check_not_probabilities(logits: Tensor) -> None:
    """Refuse what is nearly surely a softmax already: no negative entry, every row summing to 1."""
    total = logits.sum(-1, dtype=torch.float64)
    tolerance = max(1e-4, 8 * torch.finfo(logits.dtype).eps)
    if bool((logits >= 0).all()) and bool(((total - 1).abs() < tolerance).all()):
        raise InputError(
            "the model returned rows that are non-negative and sum to 1: these look like "
            "probabilities, and logits are needed; return log-probabilities (p.log()) instead"
        )
