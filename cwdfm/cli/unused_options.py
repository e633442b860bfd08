"""Settings that nothing reads are refused, not passed over."""

from collections.abc import Collection, Mapping

from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.options import flag
from cwdfm.errors import InputError
from cwdfm.method import Method


def check_read_with(
    options: object,
    given: Collection[str],
    read_with: Mapping[str, Mapping[str, tuple[str, ...]]],
) -> None:
    """Refuse fields of `options` that were given, by name, and that its choices do not read.

    `read_with[field][choice]` are the values of a choice that read the field; of a choice of
    several, one is enough.
    """
    for name in (name for name in read_with if name in given):
        for choice, readers in read_with[name].items():
            chosen = getattr(options, choice)
            several = isinstance(chosen, tuple)
            if set(chosen if several else (chosen,)) & set(readers):
                continue
            is_ = f"{choice} are {_listed(chosen)}" if several else f"{choice} is {chosen}"
            reading = f"{choice} that read it" if several else f"a {choice} that reads it"
            raise InputError(
                f"{flag(name)} is read with {flag(choice)} {_listed(readers)} alone, and the "
                f"{is_}; leave it out, or choose {reading}"
            )


def check_exact(given: Collection[str], model: str, method: Method) -> None:
    """Refuse fields of random draws, by name, where a likelihood is exact: nothing is drawn."""
    for name in ("draws", "seed"):
        if name in given and method.exact:
            raise InputError(
                f"{flag(name)} is read for bounds alone, and the perplexity of {model}, trained as "
                f"{type(method).__name__}, is exact; leave it out"
            )


def check_steps(
    given: Collection[str], model: str, method: Method, asked: int, length: int
) -> None:
    """Refuse a number of steps that was given, where a method takes its own whatever it is."""
    if "steps" in given and isinstance(method, Autoregressive) and asked != length:
        raise InputError(
            f"--steps {asked} is not read for {model}, trained as Autoregressive, which takes one "
            f"for each of its {length} tokens; leave it out"
        )


def _listed(names: tuple[str, ...]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
