"""The exception that means "the input is wrong", and the checks that raise it.

Every message says what was given, what is allowed and what to do about it. The checks run before
any work is done, so that bad input never costs a half-finished run; on a GPU some values are judged
while the first work on them runs: see `told.py`.
"""

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

MOST = 2**63 - 1  # what tensors, files and iterators count with
SHOWN = 200  # characters of a value that a message quotes
LONGEST = 10**6  # tokens a sequence, far beyond any use: more ends, late, where memory does


class InputError(ValueError):
    """The caller's input is wrong; the message says how to put it right."""


class NotInstalled(InputError):
    """What was asked for needs a package that is not here; the message says how to install it."""


class NotFinite(InputError):
    """Logits that define no distribution; a model in training has diverged."""


class WorkFailed(RuntimeError):
    """The input was right and the work went wrong; the message says how far it came."""


def describe(x: object) -> str:
    """A short description of a value for an error message: shape and dtype for a tensor."""
    if isinstance(x, Tensor):
        return f"a {x.dtype} tensor of shape {tuple(x.shape)}"
    told = repr(x)
    return f"{type(x).__name__} {told}" if len(told) <= SHOWN else f"a {type(x).__name__}"


def load_extra(module: str, extra: str) -> Any:
    """Import a module of an optional dependency, or say which extra of this package brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalled(
            f"{module.split('.')[0]} is needed here and cannot be imported ({error}); "
            f"install it with: pip install 'cwdfm[{extra}]'"
        ) from error


def check_tokens(name: str, x_BN: Tensor, num_tokens: int) -> None:
    """Refuse anything but an int64 tensor [B, N] with ids in 0..num_tokens-1."""
    check_token_tensor(name, x_BN)
    check_token_range(name, num_tokens, *(int(v) for v in x_BN.aminmax()))


def check_token_tensor(name: str, x_BN: Tensor) -> None:
    """Refuse anything but an int64 tensor [B, N] that holds something."""
    if not isinstance(x_BN, Tensor) or x_BN.dim() != 2 or x_BN.dtype != torch.int64:
        raise InputError(
            f"{name} must be an int64 tensor of shape [batch, length], got {describe(x_BN)}; "
            f"for one sequence use {name}[None], for another integer type {name}.long()"
        )
    if x_BN.numel() == 0:
        raise InputError(
            f"{name} is empty ({describe(x_BN)}); give at least one sequence of at least one token"
        )


def check_token_range(name: str, num_tokens: int, low: int, high: int) -> None:
    """Refuse ids whose least or greatest is not in 0..num_tokens-1."""
    if low < 0 or high >= num_tokens:
        raise InputError(
            f"{name} holds ids from {low} to {high}, allowed are 0..{num_tokens - 1}; "
            f"check the tokenizer against the source's vocab_size"
        )


def check_time_tensor(t: Tensor, batch: int, length: int) -> None:
    """Refuse anything but a floating tensor [B] or [B, N]."""
    shapes = ((batch,), (batch, length))
    if not isinstance(t, Tensor) or t.shape not in shapes or not t.is_floating_point():
        raise InputError(
            f"t must be a floating tensor of shape ({batch},), one time a sequence, or "
            f"{(batch, length)}, one a token, got {describe(t)}; use torch.full(({batch},), t)"
        )


def check_time_range(low: float, high: float) -> None:
    """Refuse times whose least or greatest is not in [0, 1]; NaN is in neither."""
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"t must lie in [0, 1], got values from {low:.6g} to {high:.6g}; t = 0 is noise, "
            f"t = 1 is data"
        )


def check_mask(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    """Refuse anything but a boolean tensor of one of the given shapes: [B, N], [N]."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape not in shapes:
        single = any(len(shape) == 1 for shape in shapes)
        other = "use torch.arange(length) < k" if single else "expand a single mask over the batch"
        raise InputError(
            f"{name} must be a bool tensor of shape {' or '.join(map(str, shapes))}, got "
            f"{describe(mask)}; compare ids to get one, or {other}"
        )


def check_finite(logits: Tensor) -> None:
    """Refuse logits [..., V] with rows that define no distribution: NaN, +inf, or -inf everywhere.

    Single entries of -inf are fine: they are tokens of probability zero.
    """
    top = logits.amax(dim=-1)
    if not bool(torch.isfinite(top).all()):
        raise not_finite(int((~torch.isfinite(top)).sum()), top.numel())


def not_finite(bad: int, rows: int) -> NotFinite:
    """The message for rows of logits that define no distribution."""
    return NotFinite(
        f"the model's logits hold NaN, +inf, or nothing but -inf in {bad} of {rows} rows; they "
        f"must be finite (single entries of -inf are allowed: probability zero). Check the model's "
        f"weights for NaN and its half-precision overflow"
    )


def check_positive(name: str, value: float) -> None:
    """Refuse a scalar that is not finite and positive."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a finite number > 0, got {value!r}")


def check_scale(name: str, value: float) -> None:
    """Refuse a weight's scale that is no number, or so large that a score could overflow."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e6:
        raise InputError(f"{name} must be a number between -1e6 and 1e6, got {value!r}")


def check_integer(name: str, value: int, least: int = 1, most: int = MOST) -> None:
    """Refuse anything but an integer of at least `least` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be an integer >= {least}, got {value!r}")
    if value > most:
        raise InputError(f"{name} must be an integer <= {most:,}, got {value}; give a smaller one")


def check_bool(name: str, value: bool) -> None:
    """Refuse anything but True and False: any text would count as true, "no" too."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")


def check_instance(name: str, value: object, kind: type, example: str) -> None:
    """Refuse a value of another type; `example` shows what to write."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__} such as {example}, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the named choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
