"""Counts of valid, unique and novel molecules, and histograms of their features.

Conventions differ between code bases. Here:

- valid: RDKit parses the whole string, of at most 5,000 characters, and finds at least one atom;
- unique: distinct canonical SMILES among the valid molecules of a fold;
- novel: distinct canonical SMILES of a fold that are not in the training set. Both sides are
  canonicalized, so a different SMILES string of a training molecule is not novel.

The strings come from the tokenizer's `decode`, which stops at the first end token.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cwdfm.data.smiles import CanonicalSet, canonical, parse
from cwdfm.errors import InputError, check_integer, check_strings
from cwdfm.metrics.folds import spread

SCORES = ("valid", "unique", "novel")

# Values of an RDKit molecule to count: one per molecule, atom or ring.
_FEATURES: dict[str, Callable[[Any], Iterable[Hashable]]] = {
    "heavy_atoms": lambda m: [m.GetNumHeavyAtoms()],
    "atom_types": lambda m: [a.GetSymbol() for a in m.GetAtoms() if a.GetAtomicNum() > 1],
    "ring_counts": lambda m: [m.GetRingInfo().NumRings()],
    "ring_sizes": lambda m: [len(ring) for ring in m.GetRingInfo().AtomRings()],
}


def canonical_set(smiles: Iterable[str]) -> CanonicalSet:
    """Canonicalize a training set, to reuse it for many scores. Invalid strings are dropped.

    This takes about ten seconds for the 130,000 molecules of QM9. If the strings are canonical
    already, use `CanonicalSet(smiles)`.
    """
    return CanonicalSet(s for s in map(canonical, smiles) if s is not None)


@dataclass(frozen=True)
class FoldCounts:
    """One count per fold."""

    counts: tuple[int, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.counts)

    @property
    def std(self) -> float | None:
        """The standard deviation over folds."""
        return spread(self.counts)

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}" if self.std is not None else f"{self.mean:.0f}"


@dataclass(frozen=True)
class MoleculeScores:
    """Valid, unique and novel molecules, counted in folds of `fold_size` consecutive samples.

    If there are fewer samples than the requested fold size, they form one fold: `short` is true,
    `fold_size` equals `samples`, and counts are not scaled up.
    """

    valid: FoldCounts
    unique: FoldCounts
    novel: FoldCounts | None  # None without a training set
    samples: int
    fold_size: int
    remainder: int  # samples at the end that do not fill a fold, and are not counted
    short: bool

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.valid.counts)

    def counts(self) -> dict[str, FoldCounts | None]:
        """The three scores by name."""
        return {"valid": self.valid, "unique": self.unique, "novel": self.novel}

    def noise(self, name: str) -> float | None:
        """The standard deviation of the count in one fold.

        It is estimated over folds. For a single fold it is the binomial sqrt(p (1 - p) n), which is
        exact for `valid`, and a good approximation for the others if duplicates are rare.
        """
        counts = self.counts()[name]
        if counts is None or counts.std is not None:
            return None if counts is None else counts.std
        share = counts.mean / self.fold_size
        return math.sqrt(share * (1 - share) * self.fold_size)

    def percent(self, name: str) -> str:
        """The mean count as a percentage of the fold, such as "97.2%"; "-" if not computed."""
        counts = self.counts()[name]
        return "-" if counts is None else f"{counts.mean / self.fold_size:.1%}"

    def __str__(self) -> str:
        counts = ((name, count) for name, count in self.counts().items() if count)
        text = ", ".join(f"{name} {count} ({self.percent(name)})" for name, count in counts)
        folds = f"{self.folds} fold" + ("s" if self.folds > 1 else "")
        remainder = f", {self.remainder:,} samples in no fold" if self.remainder else ""
        return f"{text} of {self.fold_size:,} ({folds}{remainder})"

    def to_json(self) -> dict[str, Any]:
        scores = {
            name: count and {"mean": count.mean, "std": count.std, "counts": list(count.counts)}
            for name, count in self.counts().items()
        }
        return asdict(self) | scores | {"folds": self.folds}


def score_molecules(
    samples: Sequence[str], training: Collection[str] | None, *, fold_size: int = 1024
) -> MoleculeScores:
    """Count valid, unique and novel molecules per fold; the paper uses 5 folds of 1,024.

    To score several sets against the same training set, pass `canonical_set(training)`, which
    canonicalizes it only once. If `training` is None, novelty is not computed.
    """
    check_strings("samples", samples, "SMILES strings")
    check_integer("fold_size", fold_size)
    known = None if training is None else _canonical_training(training)
    size = min(fold_size, len(samples))
    valid, unique, novel = [], [], []
    for start in range(0, len(samples) - size + 1, size):
        molecules = [canonical(text) for text in samples[start : start + size]]
        distinct = {s for s in molecules if s is not None}
        valid.append(sum(s is not None for s in molecules))
        unique.append(len(distinct))
        novel.append(len(distinct - (known or frozenset())))
    return MoleculeScores(
        FoldCounts(tuple(valid)),
        FoldCounts(tuple(unique)),
        None if known is None else FoldCounts(tuple(novel)),
        samples=len(samples),
        fold_size=size,
        remainder=len(samples) % size,
        short=len(samples) < fold_size,
    )


def _canonical_training(training: Collection[str]) -> CanonicalSet:
    if isinstance(training, CanonicalSet) and training:  # of strings that RDKit wrote
        return training
    check_strings("training", training, "SMILES strings", Collection)
    known = canonical_set(training)
    if not known:
        raise InputError(
            f"none of the {len(training):,} strings in training is a valid molecule; the first is "
            f"{next(iter(training))!r}; pass SMILES strings, or None to skip novelty"
        )
    return known


def histograms(samples: Sequence[str], reference: Sequence[str]) -> dict[str, Any]:
    """Histograms of length in characters, heavy atoms, atom types, ring counts and ring sizes.

    Only valid molecules are counted, duplicates included. Histograms of atom types are normalized
    by heavy atoms, those of ring sizes by rings (RDKit's symmetric set: cubane has six), and all
    others by molecules. The total variation distance is None if one side is empty.
    """
    check_strings("samples", samples, "SMILES strings")
    check_strings("reference", reference, "SMILES strings")
    ours, theirs = _count_features(samples), _count_features(reference)
    valid, valid_reference = ours["length"].total(), theirs["length"].total()
    if not valid_reference:
        raise InputError(
            f"none of the {len(reference):,} strings in reference is a valid molecule; the first "
            f"is {reference[0]!r}; pass the SMILES strings of the data"
        )
    return {
        "samples": {"given": len(samples), "valid": valid},
        "reference": {"given": len(reference), "valid": valid_reference},
        "features": {name: _compare(ours[name], theirs[name]) for name in ours},
    }


def _count_features(texts: Sequence[str]) -> dict[str, Counter[Any]]:
    counts: dict[str, Counter[Any]] = {name: Counter() for name in ("length", *_FEATURES)}
    for text in texts:
        if (molecule := parse(text)) is not None:
            counts["length"][len(text)] += 1
            for name, values in _FEATURES.items():
                counts[name].update(values(molecule))
    return counts


def _compare(ours: Counter[Any], theirs: Counter[Any]) -> dict[str, Any]:
    n, m = ours.total(), theirs.total()
    bins = sorted(ours | theirs)
    distance = sum(abs(ours[b] / n - theirs[b] / m) for b in bins) / 2 if n and m else None
    return {
        "samples": {str(b): ours[b] / n for b in bins if ours[b]},
        "reference": {str(b): theirs[b] / m for b in bins if theirs[b]},
        "total_variation": distance,
    }
