"""Valid, unique and novel molecules among SMILES strings.

The conventions, since they differ between repositories:

- valid: RDKit parses the whole string and finds at least one atom;
- unique: distinct canonical SMILES among the valid ones of a fold;
- novel: distinct canonical SMILES of a fold that are not in the training set. Both sides are
  canonicalised: a training molecule spelt differently is not novel.

Strings are expected as the tokenizer decodes them, cut at the first end token.
"""

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from cwdfm.data.chemistry import canonical
from cwdfm.errors import InputError, describe


class CanonicalSet(frozenset[str]):
    """Molecules known to be canonical SMILES, so that nothing canonicalises them again."""


def canonical_set(smiles: Iterable[str]) -> CanonicalSet:
    """Canonicalise once what many scores are compared with; strings that do not parse drop out.

    About ten seconds for the 130,000 molecules of QM9. `CanonicalSet(smiles)` is instant, where
    the strings are canonical already.
    """
    return CanonicalSet(s for s in map(canonical, smiles) if s is not None)


@dataclass(frozen=True)
class FoldCounts:
    """One count for each fold."""

    counts: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean over folds."""
        return statistics.fmean(self.counts)

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample (n - 1 below the line); None for a single fold."""
        return statistics.stdev(self.counts) if len(self.counts) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}" if self.std is not None else f"{self.mean:.0f}"


@dataclass(frozen=True)
class MoleculeScores:
    """Valid, unique and novel molecules, counted in folds of `fold_size` samples.

    Consecutive samples make a fold. With fewer samples than were asked for in a fold there is one
    fold of all of them, `short` is true, and the counts are out of `fold_size` = `samples`:
    nothing is scaled up. The last `remainder` samples fill no fold and are in no count, since
    uniqueness in a smaller set is another quantity. `novel` is None without a training set.
    """

    valid: FoldCounts
    unique: FoldCounts
    novel: FoldCounts | None
    samples: int
    fold_size: int
    remainder: int
    short: bool

    @property
    def folds(self) -> int:
        """How many folds were counted."""
        return len(self.valid.counts)

    def noise(self, name: str) -> float | None:
        """How far a fold's count would stray by chance alone, one standard deviation.

        Of several folds it is theirs. Of one it is the binomial sqrt(p (1 - p) n), which takes the
        samples for independent: right for valid, near enough for the others where repeats are rare.
        """
        counts: FoldCounts | None = getattr(self, name)
        if counts is None:
            return None
        if counts.std is not None:
            return counts.std
        share = counts.mean / self.fold_size
        return float((share * (1 - share) * self.fold_size) ** 0.5)

    def __str__(self) -> str:
        parts = {"valid": self.valid, "unique": self.unique, "novel": self.novel}
        text = ", ".join(f"{name} {count}" for name, count in parts.items() if count is not None)
        folds = f"{self.folds} fold" + ("s" if self.folds > 1 else "")
        left = f", {self.remainder:,} samples in no fold" if self.remainder else ""
        return f"{text} of {self.fold_size:,} ({folds}{left})"

    def to_json(self) -> dict[str, Any]:
        """A plain dict: for each score mean, std and the folds' counts, and how they were made."""
        scores = {
            name: count and {"mean": count.mean, "std": count.std, "counts": list(count.counts)}
            for name, count in (
                ("valid", self.valid),
                ("unique", self.unique),
                ("novel", self.novel),
            )
        }
        return asdict(self) | scores | {"folds": self.folds}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The scores that `to_json` wrote."""
        fields = {name: data[name] for name in ("samples", "fold_size", "remainder", "short")}
        counts: dict[str, Any] = {
            name: data[name] and FoldCounts(tuple(data[name]["counts"]))
            for name in ("valid", "unique", "novel")
        }
        return cls(**counts, **fields)


def score_molecules(
    samples: Sequence[str], training: Collection[str] | None, *, fold_size: int = 1024
) -> MoleculeScores:
    """Count valid, unique and novel molecules in folds; the paper has 5 folds of 1,024.

    To score several sets against one training set, pass `canonical_set(training)`: it is then
    canonicalised once. Without a training set (None) novelty is not counted.
    """
    check_texts("samples", samples)
    if not isinstance(fold_size, int) or fold_size < 1:
        raise InputError(f"fold_size must be an integer >= 1, got {fold_size!r}; 1024 is usual")
    known = None if training is None else _known(training)
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


def _known(training: Collection[str]) -> CanonicalSet:
    check_texts("training", training, Collection)
    known = training if isinstance(training, CanonicalSet) else canonical_set(training)
    if not known:
        raise InputError(
            f"none of the {len(training):,} strings in training is a valid molecule, the first is "
            f"{next(iter(training))!r}; give SMILES, or None to leave novelty out"
        )
    return known


def check_texts(name: str, texts: Collection[str], kind: type = Sequence) -> None:
    """Refuse anything but a filled sequence (or other kind of collection) of strings."""
    if isinstance(texts, str) or not isinstance(texts, kind):
        raise InputError(
            f"{name} must be a {kind.__name__.lower()} of SMILES strings, such as a list, "
            f"got {describe(texts)}"
        )
    if not texts:
        raise InputError(f"{name} is empty; give at least one SMILES string")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{name} must hold strings, got {describe(text)}; decode tokens first")
