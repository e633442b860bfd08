"""All cases by name, in the order of the table."""

from cwdfm.errors import InputError
from experiments.bench import pieces, sampling, training
from experiments.bench.case import Case

CASES: dict[str, Case] = {
    case.name: case for case in (*training.CASES, *sampling.CASES, *pieces.CASES)
}


def chosen(names: tuple[str, ...]) -> list[Case]:
    """The named cases in the order of the table; all if no name is given."""
    if unknown := [name for name in names if name not in CASES]:
        raise InputError(
            f"unknown case {', '.join(map(repr, unknown))}; choose from {', '.join(CASES)}"
        )
    return [case for name, case in CASES.items() if not names or name in names]
