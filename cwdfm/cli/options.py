"""Typed options from dataclasses, by tyro."""

import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
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
TEXTS = ("--prompt", "--template")  # flags that may be followed by nothing


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_window(weight: object, length: int) -> None:
    """Raise an InputError if a weight's context window does not fit sequences of `length`."""
    if isinstance(weight, ContextWeight):
        weight(torch.zeros(1, length, dtype=torch.bool))


def flag(name: str) -> str:
    """The flag that sets a field of options."""
    return f"--{name.replace('_', '-')}"


def fields_given(options: type, arguments: list[str]) -> set[str]:
    """The fields of `options`, nested ones included, that a command line sets."""
    words = {word.partition("=")[0].replace("_", "-") for word in arguments}
    return {name for name in leaf_names(options) if words & {flag(name), flag(f"no_{name}")}}


def value_given(name: str, arguments: list[str]) -> str | None:
    """The value that a command line gives to a field; None if it does not set it."""
    found = None
    for place, word in enumerate(arguments):
        given, equals, value = word.partition("=")
        if given.replace("_", "-") == flag(name):
            following = arguments[place + 1 : place + 2]
            found = value if equals else next(iter(following), None)
    return found


def words(options: Any) -> list[str]:
    """The command line that says what flat options do where they differ from defaults."""
    found: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, tuple) and value:
            found += [flag(field.name), *map(str, value)]
        elif value != field.default:  # by "=": a value may begin with a dash
            found.append(f"{flag(field.name)}={value}")
    return found


@contextmanager
def by_flags(options: type, **others: str) -> Iterator[None]:
    """Errors that name fields of `options` name their flags instead.

    Fields are known where a message begins with `name must` or `name NUMBER`, as a file of that
    name would not, and as `name=` or `name='value'`, in backquotes also as `name=value`.
    `others` are names that the objects behind the options have for what a field of `options` sets.
    What the library could do instead and the options cannot, `, or name='value'` at the end of an
    advice, is left out.
    """
    own = {name: name for name in leaf_names(options)} | others

    def offered(found: re.Match[str]) -> str:
        return found[0] if found[1] in own else ""

    def told(found: re.Match[str]) -> str:
        name, value = found.groups()
        with_value = f" {shlex.quote(value)}" if value else ""
        return flag(own[name]) + with_value if name in own else found[0]

    def switched(found: re.Match[str]) -> str:
        name, value = found.groups()
        return (
            flag(f"no_{own[name]}" if value == "False" else own[name]) if name in own else found[0]
        )

    try:
        yield
    except InputError as error:
        named = {name: flag(own[name]) for name in error.fields if name in own}
        if named:
            pattern = rf"(?<![\w/.-])({'|'.join(named)})(?![\w/-]|\.\w)"
            raise InputError(re.sub(pattern, lambda m: named[m[1]], str(error))) from error
        message = re.sub(r", or (?:[^,;']*\s)?(\w+)='[^']*'(?=;|$)", offered, str(error))
        message = re.sub(r"^(\w+)()(?= must | -?\d)", told, message)
        message = re.sub(r"(?<=`)(\w+)=([^`']+)(?=`)", told, message)
        message = re.sub(r"\b(\w+)=(?:'([^']+)'|(?=[\s,;)]|$))", told, message)
        message = re.sub(r"\b(\w+)=(True|False)\b", switched, message)
        raise InputError(message) from error


def model_first(verb: str, arguments: list[str]) -> list[str]:
    """The first word is the model, unless a flag names it; a model that comes later is refused."""
    if arguments and not arguments[0].startswith("-"):
        return ["--model", *arguments]
    named = any(word in HELP or word.partition("=")[0] == "--model" for word in arguments)
    if arguments and not named:
        raise InputError(
            f"the model comes first, and the first word is {arguments[0]}; write "
            f"`cwdfm {verb} MODEL {arguments[0]} ...`"
        )
    return arguments


def check_empty(arguments: list[str]) -> None:
    """Refuse empty words that are no text: as a path, one would be the folder one is in."""
    name = ""
    for word in arguments:
        name = word.partition("=")[0] if word.startswith("--") else name
        if word in ("", f"{name}=") and name not in TEXTS:
            raise InputError(
                f"{name or 'a word'} is empty, as where a variable of the shell is not set; give a "
                f"name or path, or leave it out"
            )


def parse(verb: str, arguments: list[str], defaults: Callable[[Any], T]) -> T:
    """Fill a dataclass from the command line; an unknown flag exits with code 2.

    `defaults(missing)` returns the options with `missing` in place of required values. Fields of
    nested dataclasses become flags without a prefix. An unavailable `device` is rejected.
    """
    check_empty(arguments)
    tyro = load_extra("tyro", "cli")
    default = defaults(tyro.MISSING)
    with by_flags(type(default)):
        with _own_errors():
            filled: T = tyro.cli(
                type(default),
                args=arguments,
                prog=f"cwdfm {verb}",
                default=default,
                config=(tyro.conf.OmitArgPrefixes,),
            )
        _check_device(filled)  # before an output folder is created
    return filled


@contextmanager
def _own_errors() -> Iterator[None]:
    """Re-raise an InputError of a nested config, which tyro would print in a box and exit."""
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
