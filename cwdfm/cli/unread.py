"""Settings of a training that nothing reads are refused, not passed over."""

from collections.abc import Collection

from cwdfm.cli.options import flag
from cwdfm.errors import InputError
from cwdfm.train.methods import OF_ITS_OWN, READ_WITH
from cwdfm.train.recipe import Recipe

# What comes from the model that a run goes on from, and is compared with nothing.
_OF_THE_MODEL = {"model": "network", "tokenizer": "tokenizer"}


def check_unread(recipe: Recipe, given: Collection[str]) -> None:
    """Refuse fields that were given, by name, and that the recipe's choices do not read.

    One that asks for what the method has anyway is no mistake.
    """
    settled = () if recipe.init is None else ("method",)
    for name, read_with in READ_WITH.items():
        own = OF_ITS_OWN.get(recipe.method, {})
        if name not in given or (name in own and own[name] == getattr(recipe, name)):
            continue
        for choice, readers in read_with.items():
            chosen = getattr(recipe, choice)
            if chosen not in readers:
                has = f", whose {name} is {own[name]}" if choice == "method" and name in own else ""
                other = "" if choice in settled else f", or choose a {choice} that reads it"
                raise InputError(
                    f"{flag(name)} is read with {flag(choice)} {_listed(readers)} alone, and the "
                    f"{choice} is {chosen}{has}; leave it out{other}"
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
