"""Reject options that have no effect with the other options or with the model."""

from collections.abc import Collection, Mapping

from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.options import flag
from cwdfm.errors import InputError
from cwdfm.method import Method


def check_applies(
    options: object,
    given: Collection[str],
    applies_with: Mapping[str, Mapping[str, tuple[str, ...]]],
) -> None:
    """Reject options that were given but have no effect with the chosen values.

    `applies_with[field][choice]` are the values of the option `choice` with which `field` has an
    effect. If `choice` has several values, one of them is enough.
    """
    for name in (name for name in applies_with if name in given):
        for choice, effective in applies_with[name].items():
            chosen = getattr(options, choice)
            several = isinstance(chosen, tuple)
            if set(chosen if several else (chosen,)) & set(effective):
                continue
            current = _listed(chosen) if several else chosen
            raise InputError(
                f"{flag(name)} applies only with {flag(choice)} {_listed(effective)}, got "
                f"{flag(choice)} {current}; omit {flag(name)}, or change {flag(choice)}"
            )


def check_exact(given: Collection[str], model: str, method: Method) -> None:
    """Reject options of random draws if the likelihood is exact, without random draws."""
    for name in ("draws", "seed"):
        if name in given and method.exact:
            raise InputError(
                f"{flag(name)} applies only to likelihood bounds, but the likelihood of {model} "
                f"({type(method).__name__}) is exact; omit it"
            )


def check_steps(
    given: Collection[str], model: str, method: Method, steps: int, length: int
) -> None:
    """Reject a number of steps for a method that always takes one step per token."""
    if "steps" in given and isinstance(method, Autoregressive) and steps != length:
        raise InputError(
            f"--steps {steps} does not apply to {model} (Autoregressive), which takes one step for "
            f"each of its {length} tokens; omit it"
        )


def _listed(names: tuple[str, ...]) -> str:
    """Join names with commas and "and"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
