"""Typed options from dataclasses, by tyro."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from cwdfm.errors import InputError, load_extra

T = TypeVar("T")
HELP = ("-h", "--help")


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def parse(verb: str, arguments: list[str], defaults: Callable[[Any], T]) -> T:
    """Fill a dataclass from the command line; a wrong flag ends the program with code 2.

    `defaults(missing)` returns the options with `missing` in place of what must be given. Fields
    of nested dataclasses become flags without a prefix.
    """
    tyro = load_extra("tyro", "cli")
    default = defaults(tyro.MISSING)
    filled: T = tyro.cli(
        type(default),
        args=arguments,
        prog=f"cwdfm {verb}",
        default=default,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return filled
