"""Configs: frozen dataclasses that nest, flatten to named fields, and are stored as JSON.

A nested config flattens to the leaf fields of all its sub-configs. Leaf names are unique, so the
same name serves as a Python keyword, a command-line flag and a key in a checkpoint. A sub-config
with alternatives (a training method, a loss) is declared with `one_of`; each alternative has a
field of the same name that identifies it.

`to_config` describes an object of the library by its class name and fields. `from_config` builds
only the classes that its caller lists, so a config file cannot instantiate anything else.
"""

import dataclasses
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from cwdfm.errors import InputError, check_choice

C = TypeVar("C")


def added(default: Any) -> Any:
    """A field added to a class after release: `to_config` omits it while it has its default.

    Configs stored before the field existed, and their checksums, therefore stay the same.
    """
    return dataclasses.field(default=default, metadata={"added": True})


def one_of(choices: Mapping[str, type], default: str) -> Any:
    """A sub-config with alternatives: `choices` maps the name of each alternative to its class."""
    return dataclasses.field(default_factory=choices[default], metadata={"choices": choices})


def choices_of(field: "dataclasses.Field[Any]") -> Mapping[str, type]:
    """The alternatives of a field declared with `one_of`; empty for other fields."""
    choices: Mapping[str, type] = field.metadata.get("choices", {})
    return choices


def _subconfig(field: "dataclasses.Field[Any]") -> type | None:
    """The class of a field that is itself a config; None for a leaf."""
    factory = field.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def flatten(config: Any) -> dict[str, Any]:
    """The leaf fields of a nested config, or of its `asdict` dictionary, by name."""
    nested = config if isinstance(config, dict) else dataclasses.asdict(config)
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= flatten(value) if isinstance(value, dict) else {name: value}
    return flat


def from_flat(config_class: type[C], fields: Mapping[str, Any]) -> C:
    """Build a nested config from its flat form. Missing fields keep their defaults.

    Fields of alternatives that are not selected are ignored.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        subconfig = _subconfig(field)
        if choices := choices_of(field):
            selected = fields.get(field.name, getattr(subconfig, field.name))
            check_choice(field.name, selected, tuple(choices))
            values[field.name] = from_flat(choices[selected], fields)
        elif subconfig is not None:
            values[field.name] = from_flat(subconfig, fields)
        elif field.name in fields:
            values[field.name] = fields[field.name]
    return config_class(**values)


def _leaves(config_class: type) -> Iterator[tuple[str, dict[str, str]]]:
    """Every leaf field of a nested config, with the choices that it depends on."""
    for field in dataclasses.fields(config_class):
        subconfig = _subconfig(field)
        if choices := choices_of(field):
            for selected, alternative in choices.items():
                for name, nested in _leaves(alternative):
                    yield name, ({} if name == field.name else {field.name: selected}) | nested
        elif subconfig is not None:
            yield from _leaves(subconfig)
        else:
            yield field.name, {}


def choice_names(config_class: type) -> list[str]:
    """The names of the sub-configs that have alternatives, outermost first."""
    return list(dict.fromkeys(choice for _, choices in _leaves(config_class) for choice in choices))


def leaf_names(config_class: type) -> set[str]:
    """The names of all leaf fields of a nested config, including those of every alternative."""
    return {name for name, _ in _leaves(config_class)}


def conditions(config_class: type, name: str) -> list[dict[str, str]]:
    """The combinations of choices under which a nested config has the leaf field `name`.

    `loss_radius` of a training config gives [{"method": "flow", "loss": "sce"}]; a field that does
    not depend on a choice gives [{}], an unknown one [].
    """
    return [choices for leaf, choices in _leaves(config_class) if leaf == name]


def check_applies(config: Any, name: str, settled: Collection[str] = ()) -> None:
    """Reject a field that this nested config does not have; the error says which choice adds it.

    `settled` lists choices that the user cannot change.
    """
    alternatives, selected = conditions(type(config), name), flatten(config)
    if not alternatives:
        raise InputError(f"unknown field {name!r}; this config has {', '.join(sorted(selected))}")
    if name in selected:
        return
    for choice in alternatives[0]:
        allowed = list(dict.fromkeys(choices[choice] for choices in alternatives))
        if selected[choice] not in allowed:
            change = "" if choice in settled else f" or change {choice}"
            raise InputError(
                f"{name} applies only to {choice} {' or '.join(allowed)}, not to {choice} "
                f"{selected[choice]}; remove it{change}",
                fields=(name, choice),
            )


def field_comments(config_class: type) -> dict[str, str]:
    """The comment behind or above each field that has one; these are the help texts of flags."""
    comments: dict[str, str] = {}
    for cls in filter(dataclasses.is_dataclass, reversed(config_class.__mro__)):
        above: list[str] = []
        for line in inspect.getsource(cls).splitlines():
            code, _, behind = line.strip().partition("# ")
            name = code.partition(":")[0]
            if name in cls.__annotations__ and (text := behind or " ".join(above)):
                comments[name] = text
            above = [] if code else [*above, behind]
    return comments


def to_config(value: Any) -> Any:
    """A JSON-compatible description of a value built from the library's dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        stored = {"class": type(value).__name__}
        for field in dataclasses.fields(value):
            field_value = getattr(value, field.name)
            if not (field.metadata.get("added") and field_value == field.default):
                stored[field.name] = to_config(field_value)
        return stored
    if isinstance(value, tuple | list):
        return [to_config(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"{value!r} cannot be written to a config file; use numbers, strings, booleans, None, "
        f"lists of them, or the library's dataclasses"
    )


def from_config(config: Any, classes: Mapping[str, type]) -> Any:
    """Rebuild a value from its `to_config` form. `classes` maps names to the allowed classes."""
    if isinstance(config, list):
        return tuple(from_config(item, classes) for item in config)
    if not isinstance(config, dict):
        return config
    fields = dict(config)
    name = fields.pop("class", None)
    if name not in classes:
        raise InputError(
            f"the config names the class {name!r}, which this version does not support; "
            f"supported: {', '.join(sorted(classes))}"
        )
    known = {f.name for f in dataclasses.fields(classes[name])}
    if unknown := set(fields) - known:
        raise InputError(
            f"the config sets {', '.join(sorted(unknown))} of {name}, which this version does not "
            f"support; it may have been written by a newer version"
        )
    return classes[name](**{key: from_config(value, classes) for key, value in fields.items()})
