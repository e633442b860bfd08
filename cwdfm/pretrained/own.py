"""Saved models with a custom network.

The weights are stored as tensors. Only the import path and the arguments of the class are stored.
Reading a model never imports that path: the caller passes the class as `network=`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from cwdfm.config import to_config
from cwdfm.errors import InputError, describe
from cwdfm.files import check_fields
from cwdfm.model.transformer import DiT

Builder = Callable[..., nn.Module] | str  # a class, or its import path `package.module:Class`


@dataclass(frozen=True)
class OwnNetwork:
    """The import path of a network's class, and the keyword arguments to build the network."""

    path: str
    arguments: dict[str, Any]

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "OwnNetwork":
        """Read what `network_config` returns; raises ValueError for invalid data."""
        check_fields("model", stored, network=str, arguments=dict)
        return cls(stored["network"], stored["arguments"])

    def build(self, builder: Builder | None, weights: dict[str, Tensor]) -> nn.Module:
        """Create the network with a class that the caller provides, and load its weights."""
        if builder is None:
            raise InputError(
                f"this model has a custom network, {self.path}; if you trust its code, pass the "
                f"class or its import path, network={self.path!r}",
                fields=("network",),
            )
        network = (_imported(builder) if isinstance(builder, str) else builder)(**self.arguments)
        if not isinstance(network, nn.Module):
            raise InputError(
                f"network must be a subclass of torch.nn.Module, but {builder} created "
                f"{describe(network)}",
                fields=("network",),
            )
        network.load_state_dict(weights)
        return network


def network_config(network: nn.Module) -> Any:
    """The entry of a network in config.json.

    The attribute `config` of a custom network, if any, has its keyword arguments.
    """
    if isinstance(network, DiT):
        return to_config(network.config)
    network_class, arguments = type(network), getattr(network, "config", {})
    try:
        stored = json.loads(json.dumps(dict(arguments)))
    except (TypeError, ValueError):
        stored = None
    if stored is None or not isinstance(arguments, Mapping):
        raise InputError(
            f"the network's config must be a dictionary of the keyword arguments that "
            f"{network_class.__name__} was created with, all of them JSON values, got "
            f"{describe(arguments)}; set self.config in its __init__"
        )
    path = f"{network_class.__module__}:{network_class.__qualname__}"
    return {"network": path, "arguments": stored}


def _imported(path: str) -> Callable[..., nn.Module]:
    """Import the class at an import path."""
    module, _, name = path.partition(":")
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"network {path!r} cannot be imported ({error}); pass package.module:Class, and add "
            f"its folder to PYTHONPATH",
            fields=("network",),
        ) from error
    if not callable(value):
        raise InputError(f"network {path!r} is not a class; pass package.module:Class")
    return value  # type: ignore[no-any-return]
