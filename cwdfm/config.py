"""Objects as JSON: a frozen dataclass becomes its name and fields, and comes back from them.

Only the library's own classes come back, so that a config file cannot name anything else.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cwdfm.errors import InputError


def added(default: Any) -> Any:
    """A field that a class got later: a config tells it where it is not the default.

    So what was written and named by its config before is still the same.
    """
    return dataclasses.field(default=default, metadata={"added": True})


def later(of: type) -> dict[str, Any]:
    """The fields that a class got later, with their defaults: those of what was written before."""
    return {f.name: f.default for f in dataclasses.fields(of) if f.metadata.get("added")}


def to_config(value: Any) -> Any:
    """A JSON-able description of a value built from the library's dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        usual = [name for name, default in later(type(value)).items() if fields[name] == default]
        told = {name: to_config(each) for name, each in fields.items() if name not in usual}
        return {"class": type(value).__name__, **told}
    if isinstance(value, tuple | list):
        return [to_config(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"{value!r} cannot be written to a config file")


def from_config(config: Any, classes: Mapping[str, type]) -> Any:
    """The value that `to_config` described; `classes` are those that may be built, by name."""
    if isinstance(config, list):
        return tuple(from_config(item, classes) for item in config)
    if not isinstance(config, dict):
        return config
    fields = dict(config)
    name = fields.pop("class", None)
    if name not in classes:
        raise InputError(
            f"a config file names the class {name!r}, which this version does not know; it knows "
            f"{', '.join(sorted(classes))}"
        )
    known = {f.name for f in dataclasses.fields(classes[name])}
    unknown = set(fields) - known
    if unknown:
        raise InputError(
            f"a config file sets {', '.join(sorted(unknown))} of {name}, which this version does "
            f"not know; it may have been written by a newer one"
        )
    return classes[name](**{key: from_config(value, classes) for key, value in fields.items()})
