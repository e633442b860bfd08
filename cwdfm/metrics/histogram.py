"""How the samples' molecules are made, beside the data's: lengths, atoms and rings."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from cwdfm.data.chemistry import parse
from cwdfm.errors import InputError
from cwdfm.metrics.molecule import check_texts

# What is counted, from RDKit's molecule: one value for each molecule, atom or ring.
_FEATURES: dict[str, Callable[[Any], Iterable[Hashable]]] = {
    "heavy_atoms": lambda m: [m.GetNumHeavyAtoms()],
    "atom_types": lambda m: [a.GetSymbol() for a in m.GetAtoms() if a.GetAtomicNum() > 1],
    "ring_counts": lambda m: [m.GetRingInfo().NumRings()],
    "ring_sizes": lambda m: [len(ring) for ring in m.GetRingInfo().AtomRings()],
}


def histograms(
    samples: Sequence[str], reference: Sequence[str], *, length: Callable[[str], int] = len
) -> dict[str, Any]:
    """Shares of lengths, heavy atoms, atom types, ring counts and ring sizes, beside the data's.

    Valid molecules only, repeated ones as often as they occur. `length` measures a string as it
    is given: characters, or tokens with a tokenizer's function. Atom types are shares of the
    heavy atoms, ring sizes shares of the rings (RDKit's symmetric set: cubane has six), the rest
    shares of the molecules. The total variation, half the sum of the absolute differences, runs
    from 0 to 1; it is None where one side has nothing to count.
    """
    check_texts("samples", samples)
    check_texts("reference", reference)
    ours, valid = _count(samples, length)
    theirs, valid_reference = _count(reference, length)
    if not valid_reference:
        raise InputError(
            f"none of the {len(reference):,} strings in reference is a valid molecule, the first "
            f"is {reference[0]!r}; give the data's SMILES"
        )
    result: dict[str, Any] = {
        "samples": {"given": len(samples), "valid": valid},
        "reference": {"given": len(reference), "valid": valid_reference},
    }
    result["features"] = {name: _compare(ours[name], theirs[name]) for name in ours}
    return result


def _count(
    texts: Sequence[str], length: Callable[[str], int]
) -> tuple[dict[str, Counter[Any]], int]:
    counts: dict[str, Counter[Any]] = {name: Counter() for name in ("length", *_FEATURES)}
    for text in texts:
        if (molecule := parse(text)) is not None:
            counts["length"][length(text)] += 1
            for name, values in _FEATURES.items():
                counts[name].update(values(molecule))
    return counts, counts["length"].total()


def _compare(ours: Counter[Any], theirs: Counter[Any]) -> dict[str, Any]:
    n, m = ours.total(), theirs.total()
    bins = sorted(ours | theirs)
    apart = sum(abs(ours[b] / n - theirs[b] / m) for b in bins) / 2 if n and m else None
    return {
        "samples": {str(b): ours[b] / n for b in bins if ours[b]},
        "reference": {str(b): theirs[b] / m for b in bins if theirs[b]},
        "total_variation": apart,
    }
