"""Configs: frozen dataclasses that nest, flatten to named fields, and are stored as JSON.

A nested config has one flat form: the leaves of all its parts, by name. The names are unique, so
the same name serves as a keyword in Python, a command-line flag and a key in a checkpoint. A part
with alternatives (a training method, a loss) is declared with `one_of`; the alternative carries a
field named after the part that says which one it is.

Objects of the library are written with `to_config` as their class name and fields. `from_config`
builds only classes that its caller lists, so a config file cannot name anything else.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from cwdfm.errors import InputError, check_choice

C = TypeVar("C")


def added(default: Any) -> Any:
    """A field that was added to a class later. It is stored only where it is not the default.

    This keeps the stored form, and every checksum of it, the same as before the field existed.
    """
    return dataclasses.field(default=default, metadata={"added": True})


def one_of(choices: Mapping[str, type], default: str) -> Any:
    """A nested config with alternatives: `choices` maps the name of each to its class."""
    return dataclasses.field(default_factory=choices[default], metadata={"choices": choices})


def choices_of(field: "dataclasses.Field[Any]") -> Mapping[str, type]:
    """The alternatives of a field declared with `one_of`; empty for other fields."""
    found: Mapping[str, type] = field.metadata.get("choices", {})
    return found


def _part(field: "dataclasses.Field[Any]") -> type | None:
    """The class of a nested config; None for a leaf."""
    kind = field.default_factory
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def flatten(config: Any) -> dict[str, Any]:
    """The leaves of a nested config, or of its `asdict` dictionary."""
    nested = config if isinstance(config, dict) else dataclasses.asdict(config)
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= flatten(value) if isinstance(value, dict) else {name: value}
    return flat


def from_flat(kind: type[C], fields: Mapping[str, Any]) -> C:
    """Build a nested config from its flat form. Missing fields keep their defaults.

    Fields of alternatives that are not chosen are ignored.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        part = _part(field)
        if choices := choices_of(field):
            chosen = fields.get(field.name, getattr(part, field.name))
            check_choice(field.name, chosen, tuple(choices))
            values[field.name] = from_flat(choices[chosen], fields)
        elif part is not None:
            values[field.name] = from_flat(part, fields)
        elif field.name in fields:
            values[field.name] = fields[field.name]
    return kind(**values)


def _leaves(kind: type) -> Iterator[tuple[str, dict[str, str]]]:
    """Each leaf of a nested config, with the choices under which the config has it."""
    for field in dataclasses.fields(kind):
        part = _part(field)
        if choices := choices_of(field):
            for chosen, alternative in choices.items():
                for name, deeper in _leaves(alternative):
                    yield name, ({} if name == field.name else {field.name: chosen}) | deeper
        elif part is not None:
            yield from _leaves(part)
        else:
            yield field.name, {}


def choice_names(kind: type) -> list[str]:
    """The parts of a nested config that have alternatives, outer ones first."""
    return list(dict.fromkeys(choice for _, choices in _leaves(kind) for choice in choices))


def leaf_names(kind: type) -> set[str]:
    """The names of all leaves of a nested config, those of every alternative included."""
    return {name for name, _ in _leaves(kind)}


def conditions(kind: type, name: str) -> list[dict[str, str]]:
    """The choices under which a nested config has the leaf `name`: one dictionary for each place.

    `loss_radius` of a training config gives [{"method": "flow", "loss": "sce"}]; a leaf that does
    not depend on a choice gives [{}], an unknown one [].
    """
    return [choices for leaf, choices in _leaves(kind) if leaf == name]


def check_applies(config: Any, name: str, settled: Collection[str] = ()) -> None:
    """Reject a field that a nested config does not have, and say which choice would have it.

    `settled` are choices that cannot be changed.
    """
    places, chosen = conditions(type(config), name), flatten(config)
    if not places:
        raise InputError(f"unknown field {name!r}; this config has {', '.join(sorted(chosen))}")
    if name in chosen:
        return
    for choice in places[0]:
        allowed = list(dict.fromkeys(place[choice] for place in places))
        if chosen[choice] not in allowed:
            change = "" if choice in settled else f" or change {choice}"
            raise InputError(
                f"{name} applies only to {choice} {' or '.join(allowed)}, not to {choice} "
                f"{chosen[choice]}; remove it{change}",
                fields=(name, choice),
            )


def to_config(value: Any) -> Any:
    """A JSON-compatible description of a value built from the library's dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        stored = {"class": type(value).__name__}
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            if not (field.metadata.get("added") and each == field.default):
                stored[field.name] = to_config(each)
        return stored
    if isinstance(value, tuple | list):
        return [to_config(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"{value!r} cannot be written to a config file")


def from_config(config: Any, classes: Mapping[str, type]) -> Any:
    """Rebuild a value from `to_config`. `classes` maps names to the classes it may build."""
    if isinstance(config, list):
        return tuple(from_config(item, classes) for item in config)
    if not isinstance(config, dict):
        return config
    fields = dict(config)
    name = fields.pop("class", None)
    if name not in classes:
        raise InputError(
            f"the config names the class {name!r}, which this version does not know; it knows "
            f"{', '.join(sorted(classes))}"
        )
    known = {f.name for f in dataclasses.fields(classes[name])}
    if unknown := set(fields) - known:
        raise InputError(
            f"the config sets {', '.join(sorted(unknown))} of {name}, which this version does not "
            f"know; it may have been written by a newer version"
        )
    return classes[name](**{key: from_config(value, classes) for key, value in fields.items()})
