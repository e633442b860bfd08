"""Typed options from dataclasses, by tyro."""

from collections.abc import Callable
from typing import Any, TypeVar

from cwdfm.errors import InputError

T = TypeVar("T")


def parse(verb: str, arguments: list[str], defaults: Callable[[Any], T]) -> T:
    """Fill a dataclass from the command line; a wrong flag ends the program with code 2.

    `defaults(missing)` returns the options with `missing` in place of what must be given. Fields
    of nested dataclasses become flags without a prefix.
    """
    try:
        import tyro
    except ImportError as error:
        raise InputError(
            "the command line needs tyro; install it with pip install 'cwdfm[cli]'"
        ) from error
    default = defaults(tyro.MISSING)
    return tyro.cli(
        type(default),
        args=arguments,
        prog=f"cwdfm {verb}",
        default=default,
        config=(tyro.conf.OmitArgPrefixes,),
    )
