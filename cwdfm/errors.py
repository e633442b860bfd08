"""Exceptions, and the input checks that raise them before any work starts.

Every message says what was given, what is allowed and how to fix it. On a GPU, values are checked
asynchronously while the first kernels run; see `cwdfm/ops`.

torch is imported only by functions that have received a tensor: importing it takes seconds, which
processes that prepare data do not need to spend.
"""

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

MAX_INT = 2**63 - 1  # limit of tensor and file sizes
# Sanity limits. Larger values would fail only later, when memory runs out.
MAX_LENGTH = 10**6  # tokens per sequence
MAX_STEPS = 10**6
MAX_SAMPLES = 10**9
_MAX_QUOTED = 200  # longest repr of a value that a message quotes, in characters


class InputError(ValueError):
    """Invalid input. The command line replaces the parameter names in `fields` by its flags."""

    def __init__(self, message: str, *, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class NotInstalled(InputError):
    """An optional dependency is missing; the message says how to install it."""


class NotFinite(InputError):
    """Logits that do not define a distribution, for example because training has diverged."""


class RunError(RuntimeError):
    """The input was valid, but the run failed; the message says how far it got."""


def describe(x: object) -> str:
    """A short description of a value for an error message: shape and dtype for a tensor."""
    if is_tensor(x):
        return f"a {x.dtype} tensor of shape {tuple(x.shape)}"
    if isinstance(x, np.ndarray):
        return f"a {x.dtype} array of shape {x.shape}"
    text = repr(x)
    return f"{type(x).__name__} {text}" if len(text) <= _MAX_QUOTED else f"a {type(x).__name__}"


def is_builtin(*objects: object) -> bool:
    """Whether the classes of all objects are defined in this package.

    Values returned by objects of other classes have to be validated.
    """
    return all(type(obj).__module__.startswith("cwdfm.") for obj in objects)


def load_extra(module: str, extra: str) -> Any:
    """Import a module of an optional dependency; NotInstalled names the extra that provides it."""
    try:
        return import_module(module)
    except ImportError as error:
        advice = f"install it with: pip install 'cwdfm[{extra}]'"
        if not isinstance(error, ModuleNotFoundError):  # such as a missing shared library
            advice = "install the library that it names, or install the package again"
        package = module.split(".")[0]
        raise NotInstalled(
            f"{package} is required but cannot be imported ({error}); {advice}"
        ) from error


def check_extras(what: str, modules: Mapping[str, str]) -> None:
    """Require the modules of several extras; NotInstalled names all that are missing at once."""
    missing = sorted({extra for module, extra in modules.items() if find_spec(module) is None})
    if missing:
        raise NotInstalled(
            f"{what} requires the extra{'s' * (len(missing) > 1)} {', '.join(missing)}; install "
            f"with: pip install 'cwdfm[{','.join(missing)}]'"
        )


def check_tokens(name: str, x_BN: "Tensor", num_tokens: int) -> None:
    """Require a non-empty int64 tensor [B, N] with ids in 0..num_tokens-1."""
    check_token_tensor(name, x_BN)
    check_token_range(name, num_tokens, *(int(v) for v in x_BN.aminmax()))


def check_token_tensor(name: str, x_BN: "Tensor") -> None:
    """Require a non-empty int64 tensor [B, N]."""
    import torch

    if not has_values(x_BN) or x_BN.dim() != 2 or x_BN.dtype != torch.int64:
        raise InputError(
            f"{name} must be an int64 tensor of shape [batch, length], got {describe(x_BN)}; "
            f"for a single sequence use {name}[None], for other integer types {name}.long()"
        )
    if x_BN.numel() == 0:
        raise InputError(f"{name} is empty ({describe(x_BN)}); pass at least one token")


def check_token_range(name: str, num_tokens: int, low: int, high: int) -> None:
    """Require that the smallest and the largest id lie in 0..num_tokens-1."""
    if low < 0 or high >= num_tokens:
        raise InputError(
            f"{name} contains ids from {low} to {high}, allowed are 0..{num_tokens - 1}; "
            f"check the tokenizer against the source's vocab_size"
        )


def check_time_tensor(t: "Tensor", batch: int, length: int) -> None:
    """Require a floating-point tensor [B] or [B, N]."""
    shapes = ((batch,), (batch, length))
    if not has_values(t) or t.shape not in shapes or not t.is_floating_point():
        raise InputError(
            f"t must be a floating-point tensor of shape ({batch},), one time per sequence, or "
            f"{(batch, length)}, one per token, got {describe(t)}; use torch.full(({batch},), t)"
        )


def check_time_range(low: float, high: float) -> None:
    """Require that the smallest and the largest time lie in [0, 1]; NaN is rejected."""
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"t must lie in [0, 1], got values from {low:.6g} to {high:.6g}; t = 0 is noise, "
            f"t = 1 is data"
        )


def check_mask(name: str, mask: "Tensor", *shapes: tuple[int, ...]) -> None:
    """Require a boolean tensor of one of these shapes, such as [B, N] or [N]."""
    import torch

    if not has_values(mask) or mask.dtype != torch.bool or mask.shape not in shapes:
        one_mask = any(len(shape) == 1 for shape in shapes)
        advice = "use torch.arange(length) < k" if one_mask else "expand a mask over the batch"
        raise InputError(
            f"{name} must be a bool tensor of shape {' or '.join(map(str, shapes))}, got "
            f"{describe(mask)}; create one by comparing ids, or {advice}"
        )


def check_finite(logits: "Tensor") -> None:
    """Require that every row of logits [..., V] defines a distribution.

    Single entries may be -inf: these tokens have probability zero.
    """
    top = logits.amax(dim=-1)
    if not bool(top.isfinite().all()):
        raise not_finite(int((~top.isfinite()).sum()), top.numel())


def not_finite(bad: int, rows: int) -> NotFinite:
    """The error for `bad` of `rows` rows of logits that do not define a distribution."""
    return NotFinite(
        f"the model's logits are NaN, +inf or all -inf in {bad} of {rows} rows; they must be "
        f"finite (single entries of -inf are allowed: probability zero). Check the model's weights "
        f"for NaN, and half-precision arithmetic for overflow"
    )


def require(valid: bool, name: str, rule: str, value: object) -> None:
    """Raise the error "`name` must `rule`, got `value`" unless the value is valid."""
    if not valid:
        # A NumPy integer or float32, or a tensor with a single value.
        is_scalar = getattr(value, "ndim", None) == 0 and not is_number(value)
        advice = "; convert it to a Python number with .item()" if is_scalar else ""
        raise InputError(f"{name} must {rule}, got {value!r}{advice}", fields=(name,))


def is_tensor(x: object) -> "TypeGuard[Tensor]":
    """Whether a value is a tensor: there are none before torch is imported."""
    if "torch" not in sys.modules:
        return False
    import torch

    return isinstance(x, torch.Tensor)


def has_values(x: object) -> "TypeGuard[Tensor]":
    """Whether a value is a dense tensor with data, as opposed to a sparse or meta tensor."""
    if not is_tensor(x):
        return False
    import torch

    return x.layout == torch.strided and not x.is_meta


def is_number(value: object) -> bool:
    """Whether a value is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_positive(name: str, value: float) -> None:
    """Require a finite number > 0."""
    require(is_number(value) and 0 < value < math.inf, name, "be a finite number > 0", value)


def check_scale(name: str, value: float) -> None:
    """Require the scale of a weight to be a number small enough that no score overflows."""
    require(is_number(value) and abs(value) <= 1e6, name, "be a number between -1e6 and 1e6", value)


def check_integer(name: str, value: int, least: int = 1, most: int = MAX_INT) -> None:
    """Require an integer from `least` to `most`."""
    number = isinstance(value, int) and not isinstance(value, bool)
    require(number and value >= least, name, f"be an integer >= {least}", value)
    require(value <= most, name, f"be an integer <= {most:,}", value)


def check_bool(name: str, value: bool) -> None:
    """Require True or False. Strings are rejected because even "no" would count as true."""
    require(isinstance(value, bool), name, "be True or False", value)


def check_instance(name: str, value: object, kind: type, example: str) -> None:
    """Require an instance of `kind`; `example` shows a valid value."""
    require(isinstance(value, kind), name, f"be a {kind.__name__} such as {example}", value)


def check_callable(name: str, value: object) -> None:
    """Require a callable or None."""
    require(value is None or callable(value), name, "be a function or None", value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Require one of the choices."""
    valid = isinstance(value, str) and value in choices
    require(valid, name, f"be one of {', '.join(map(repr, choices))}", value)


def reject_options(reason: str, **options: object) -> None:
    """Raise an InputError if any option is set, that is, neither None nor False."""
    passed = [
        f"{name}={value if value is True else repr(str(value))}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    if passed:
        raise InputError(
            f"{' and '.join(passed)} {'are' if len(passed) > 1 else 'is'} only {reason}; omit it",
            fields=tuple(options),
        )


def check_option_names(function: Callable[..., object], options: Collection[str]) -> None:
    """Raise an InputError if the function has no parameter of one of these names."""
    known = tuple(signature(function).parameters)
    for name in options:
        if name not in known:
            hint = "".join(f" (did you mean {x!r}?)" for x in get_close_matches(name, known, 1))
            raise InputError(
                f"{function.__name__} has no option {name!r}{hint}; its options are "
                f"{', '.join(known)}"
            )


def check_strings(
    name: str, texts: Collection[str], what: str = "texts", kind: type = Sequence
) -> None:
    """Require a non-empty sequence (or another `kind` of collection) of strings."""
    if isinstance(texts, str) or not isinstance(texts, kind):
        plural = f"{kind.__name__.lower()} of {what}, such as a list"
        raise InputError(f"{name} must be a {plural}, got {describe(texts)}")
    if not len(texts):
        raise InputError(f"{name} is empty; pass at least one string")
    if invalid := [text for text in texts if not isinstance(text, str)]:
        first = describe(invalid[0])
        raise InputError(f"{name} must contain strings, got {first}; decode tokens first")
