"""Typed command-line options: dataclasses parsed by tyro."""

import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch

from cwdfm.config import leaf_names
from cwdfm.device import find_device
from cwdfm.errors import InputError, load_extra
from cwdfm.weight import ContextWeight

T = TypeVar("T")
HELP = ("-h", "--help")
TEXTS = ("--prompt", "--template")  # flags whose value may be empty


def cores() -> int:
    """The number of CPU cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_window(weight: object, length: int) -> None:
    """Raise an InputError if a weight's context window does not fit sequences of `length`."""
    if isinstance(weight, ContextWeight):
        weight(torch.zeros(1, length, dtype=torch.bool))


def flag(name: str) -> str:
    """The flag of a field, for example `--top-p` for `top_p`."""
    return f"--{name.replace('_', '-')}"


def flags_given(arguments: list[str]) -> set[str]:
    """The flags on a command line, without values and with hyphens."""
    return {word.partition("=")[0].replace("_", "-") for word in arguments}


def fields_given(options: type, arguments: list[str]) -> set[str]:
    """The fields of `options`, nested ones included, that a command line sets."""
    words = flags_given(arguments)
    return {name for name in leaf_names(options) if words & {flag(name), flag(f"no_{name}")}}


def value_given(name: str, arguments: list[str]) -> str | None:
    """The value that a command line gives to a field; None if it does not set it."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], None], strict=False):
        given, equals, value = word.partition("=")
        if given.replace("_", "-") == flag(name):
            found = value if equals else following
    return found


@contextmanager
def by_flags(options: type, **others: str) -> Iterator[None]:
    """Let the errors of the library name flags instead of Python arguments.

    Only the names in `InputError.fields` are replaced: `name=value` by `--name value`,
    `name=False` by `--no-name`, or else the plain name. Advice such as `, or name='value'` is
    removed if the command has no such flag. `others` maps further argument names to fields.
    """
    try:
        yield
    except InputError as error:
        known = {name: name for name in leaf_names(options)} | others
        message = str(error)
        for name in error.fields:
            if name in known:
                message = _with_flag(message, name, known[name])
            else:
                message = re.sub(rf", or (?:[^,;']*\s)?{name}='[^']*'(?=;|$)", "", message)
        left = tuple(name for name in error.fields if name not in known)
        raise InputError(message, fields=left) from error


def _with_flag(message: str, name: str, field: str) -> str:
    """Replace the argument `name` in a message by the flag of a field."""
    start = rf"(?<![\w/.'-]){name}"
    assigned = rf"{start}=('[^']*'|[\w.-]*\w|)"

    def replacement(found: re.Match[str]) -> str:
        value = found[1].strip("'")
        if value in ("True", "False"):
            return flag(field if value == "True" else f"no_{field}")
        return f"{flag(field)} {shlex.quote(value)}" if value else flag(field)

    if re.search(assigned, message):
        return re.sub(assigned, replacement, message)
    return re.sub(rf"{start}(?![\w/-]|\.\w)", flag(field), message)


def model_first(command: str, arguments: list[str]) -> list[str]:
    """Turn a model given as the first argument into `--model`. It must not come later."""
    if arguments and not arguments[0].startswith("-"):
        return ["--model", *arguments]
    named = any(word in HELP or word.partition("=")[0] == "--model" for word in arguments)
    if arguments and not named:
        raise InputError(
            f"the model must be the first argument, got {arguments[0]}; write "
            f"`cwdfm {command} MODEL {arguments[0]} ...`"
        )
    return arguments


def check_applies(
    options: object, given: set[str], choice: str, effective: Mapping[str, tuple[str, ...]]
) -> None:
    """Reject options that were given but have no effect with the chosen values.

    `effective[field]` are the values of the option `choice` with which `field` has an effect. If
    `choice` has several values, one of them is enough.
    """
    chosen = getattr(options, choice)
    chosen = (chosen,) if isinstance(chosen, str) else chosen
    for name, values in effective.items():
        if name in given and not set(chosen) & set(values):
            raise InputError(
                f"{flag(name)} applies only with {flag(choice)} {' and '.join(values)}, got "
                f"{flag(choice)} {' and '.join(chosen)}; omit {flag(name)}, or change "
                f"{flag(choice)}"
            )


def check_empty(arguments: list[str]) -> None:
    """Reject empty arguments, except for texts: an empty path would be the current directory."""
    name = ""
    for word in arguments:
        name = word.partition("=")[0] if word.startswith("--") else name
        if word in ("", f"{name}=") and name not in TEXTS:
            what = name or "an argument"
            raise InputError(f"{what} is empty; check that the shell variable is set, or omit it")


def parse(command: str, arguments: list[str], defaults: Callable[[Any], T]) -> T:
    """Fill a dataclass from the command line; an unknown flag exits with code 2.

    `defaults(missing)` returns the options with `missing` in place of required values. Fields of
    nested dataclasses become flags without a prefix. An unavailable `device` is rejected.
    """
    check_empty(arguments)
    tyro = load_extra("tyro", "cli")
    default = defaults(tyro.MISSING)
    settings = {"prog": f"cwdfm {command}", "config": (tyro.conf.OmitArgPrefixes,)}
    with by_flags(type(default)):
        with _own_errors():
            filled: T = tyro.cli(type(default), args=arguments, default=default, **settings)
        _check_device(filled)  # before an output folder is created
    return filled


@contextmanager
def _own_errors() -> Iterator[None]:
    """Re-raise an InputError of a nested config; tyro would print it in a frame and exit."""
    output = io.StringIO()
    try:
        with redirect_stderr(output):
            yield
    except SystemExit as stop:
        error: BaseException | None = stop
        while error is not None:
            if isinstance(error, InputError):
                raise error from None
            error = error.__cause__ or error.__context__
        sys.stderr.write(output.getvalue())
        raise


def _check_device(options: Any) -> None:
    """Reject an unavailable device, in the options or in nested ones."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name == "device":
            find_device(value)
        elif is_dataclass(value):
            _check_device(value)
