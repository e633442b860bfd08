"""Command-line options: dataclasses filled by tyro, and checks shared by the commands."""

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

from cwdfm.cli.streams import STREAM
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
    """The flag of a field: `--top-p` for `top_p`."""
    return f"--{name.replace('_', '-')}"


def flags_given(arguments: list[str]) -> set[str]:
    """The flags on a command line, without values, spelled with hyphens."""
    return {argument.partition("=")[0].replace("_", "-") for argument in arguments}


def arguments_of(values: Mapping[str, Any]) -> list[str]:
    """The arguments that set these fields; the values are strings or numbers."""
    argv = []
    for name, value in values.items():
        joined = str(value).startswith("-")  # --name=-1: a separate -1 would look like a flag
        argv += [f"{flag(name)}={value}"] if joined else [flag(name), str(value)]
    return argv


def fields_given(options: type, arguments: list[str]) -> set[str]:
    """The fields of `options`, including nested ones, that a command line sets."""
    given = flags_given(arguments)
    return {name for name in leaf_names(options) if given & {flag(name), flag(f"no_{name}")}}


def value_given(name: str, arguments: list[str]) -> str | None:
    """The value of a field on a command line; None if the field is not set."""
    result = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=False):
        key, equals, value = argument.partition("=")
        if key.replace("_", "-") == flag(name):
            result = value if equals else following
    return result


@contextmanager
def by_flags(options: type, **others: str) -> Iterator[None]:
    """Make errors of the library name flags instead of Python arguments.

    Only the names in `InputError.fields` are replaced: `name=value` becomes `--name value`,
    `name=False` becomes `--no-name`, and a bare `name` becomes `--name`. Advice such as
    `, or name='value'` is removed if the command has no such flag. `others` maps further argument
    names to fields.
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
        remaining = tuple(name for name in error.fields if name not in known)
        raise InputError(message, fields=remaining) from error


def _with_flag(message: str, name: str, field: str) -> str:
    """Replace the argument `name` in a message by the flag of a field."""
    start = rf"(?<![\w/.'-]){name}"
    assigned = rf"{start}=('[^']*'|[\w.-]*\w|)"

    def replacement(match: re.Match[str]) -> str:
        value = match[1].strip("'")
        if value in ("True", "False"):
            return flag(field if value == "True" else f"no_{field}")
        return f"{flag(field)} {shlex.quote(value)}" if value else flag(field)

    if re.search(assigned, message):
        return re.sub(assigned, replacement, message)
    return re.sub(rf"{start}(?![\w/-]|\.\w)", flag(field), message)


def positional_first(name: str, arguments: list[str]) -> list[str]:
    """Turn the positional arguments at the beginning, if any, into values of the flag of a field.

    `-` (standard input) is a value.
    """
    starts = bool(arguments) and (arguments[0] == STREAM or not arguments[0].startswith("-"))
    return [flag(name), *arguments] if starts else arguments


def model_first(command: str, arguments: list[str]) -> list[str]:
    """Turn the first argument, the model, into `--model`; raise an error if it is missing."""
    arguments = positional_first("model", arguments)
    named = any(arg in HELP or arg.partition("=")[0] == "--model" for arg in arguments)
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

    `effective[field]` lists the values of the option `choice` for which `field` has an effect. If
    several values are chosen, one of them is enough.
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
    """Reject empty arguments other than texts.

    An empty path would mean the current directory.
    """
    name = ""
    for argument in arguments:
        name = argument.partition("=")[0] if argument.startswith("--") else name
        if argument in ("", f"{name}=") and name not in TEXTS:
            subject = name or "an argument"
            raise InputError(
                f"{subject} is empty; check that the shell variable is set, or omit it"
            )


def parse(
    command: str, arguments: list[str], defaults: Callable[[Any], T], program: str = "cwdfm"
) -> T:
    """Fill a dataclass from the command line; an unknown flag exits with code 2.

    `defaults(missing)` returns the default options, with `missing` for the required ones. Fields of
    nested dataclasses become flags without a prefix. An unavailable `device` is rejected.
    """
    check_empty(arguments)
    tyro = load_extra("tyro", "cli")
    default = defaults(tyro.MISSING)
    settings = {"prog": f"{program} {command}", "config": (tyro.conf.OmitArgPrefixes,)}
    with by_flags(type(default)):
        with _reraise_input_errors():
            filled: T = tyro.cli(type(default), args=arguments, default=default, **settings)
        _check_device(filled)  # before an output folder is created
    return filled


@contextmanager
def _reraise_input_errors() -> Iterator[None]:
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
    """Reject an unavailable device in the options or in nested dataclasses."""
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name == "device":
            find_device(value)
        elif is_dataclass(value):
            _check_device(value)
