"""Typed options from dataclasses, by tyro."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from cwdfm.errors import load_extra

T = TypeVar("T")


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
