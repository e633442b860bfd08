"""Settings that nothing reads are refused, not passed over."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.options import flag
from cwdfm.errors import InputError
from cwdfm.method import Method
from cwdfm.train.methods import OF_ITS_OWN, READ_WITH
from cwdfm.train.recipe import Recipe

# What comes from the model that a run goes on from, and is compared with nothing.
_OF_THE_MODEL = {"model": "network", "tokenizer": "tokenizer"}


def check_unread(recipe: Recipe, given: Collection[str]) -> None:
    """Refuse fields that were given, by name, and that the recipe's choices do not read.

    One that asks for what the method has anyway is no mistake.
    """
    own = OF_ITS_OWN.get(recipe.method, {})
    asked = {name for name in given if name not in own or own[name] != getattr(recipe, name)}
    settled = () if recipe.init is None else ("method",)
    check_read_with(recipe, asked, READ_WITH, own=own, settled=settled)


def check_read_with(
    options: object,
    given: Collection[str],
    read_with: Mapping[str, Mapping[str, tuple[str, ...]]],
    *,
    own: Mapping[str, object] = MappingProxyType({}),
    settled: Collection[str] = (),
) -> None:
    """Refuse fields of `options` that were given, by name, and that its choices do not read.

    `read_with[field][choice]` are the values of a choice that read the field; of a choice of
    several, one is enough. `own` is what a method has in the place of fields that it does not read,
    and `settled` are choices that cannot be made otherwise.
    """
    for name in (name for name in read_with if name in given):
        for choice, readers in read_with[name].items():
            chosen = getattr(options, choice)
            several = isinstance(chosen, tuple)
            if set(chosen if several else (chosen,)) & set(readers):
                continue
            is_ = f"{choice} are {_listed(chosen)}" if several else f"{choice} is {chosen}"
            has = f", whose {name} is {own[name]}" if choice == "method" and name in own else ""
            reading = f"{choice} that read it" if several else f"a {choice} that reads it"
            other = "" if choice in settled else f", or choose {reading}"
            raise InputError(
                f"{flag(name)} is read with {flag(choice)} {_listed(readers)} alone, and the "
                f"{is_}{has}; leave it out{other}"
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


def check_of_the_model(given: Collection[str]) -> None:
    """Refuse fields, by name, in whose place stands what the model to go on from has."""
    for name, what in _OF_THE_MODEL.items():
        if name in given:
            raise InputError(
                f"{flag(name)} is not read with --init, which brings the model's own {what}; leave "
                f"it out, or train from the beginning"
            )


def _listed(names: tuple[str, ...]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
