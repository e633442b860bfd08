"""Sampled molecules as a table of text: valid or not, known or novel, and why not."""

from collections.abc import Collection, Sequence

from cwdfm.data.smiles import canonical, invalid_reason
from cwdfm.report.table import Table

LISTED = 200  # samples in a table


def molecule_table(texts: Sequence[str], training: Collection[str] | None = None) -> Table:
    """One row per sample, in order, at most `LISTED`.

    A valid sample is "novel" or "known" if the training set is given, or else "valid". It is a
    repetition if the same molecule occurred before.
    """
    first: dict[str, int] = {}
    rows = []
    for number, text in enumerate(texts[:LISTED], start=1):
        smiles = canonical(text)
        if smiles is None:
            found = f"invalid: {invalid_reason(text)}"
        elif (before := first.setdefault(smiles, number)) < number:
            found = f"repeats {before}"
        elif training is None:
            found = "valid"
        else:
            found = "known" if smiles in training else "novel"
        rows.append((str(number), text, found))
    return Table(("number", "SMILES", "result"), tuple(rows))
