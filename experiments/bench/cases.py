"""All cases by name, in the order of the table."""

from cwdfm.errors import InputError
from experiments.bench import pieces, sampling, training
from experiments.bench.case import Case

CASES: dict[str, Case] = {
    case.name: case for case in (*training.CASES, *sampling.CASES, *pieces.CASES)
}


def chosen(names: tuple[str, ...]) -> list[Case]:
    """The cases of these names, in the table's order; all of them for none."""
    if unknown := [name for name in names if name not in CASES]:
        raise InputError(
            f"there is no case {', '.join(map(repr, unknown))}; choose from {', '.join(CASES)}"
        )
    return [case for name, case in CASES.items() if not names or name in names]
