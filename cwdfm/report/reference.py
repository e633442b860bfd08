"""The data that molecules are compared with: the known ones, and how they are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from cwdfm.data import load
from cwdfm.data.readers import package_version
from cwdfm.errors import InputError
from cwdfm.metrics.molecule import CanonicalSet, canonical_set

_HISTOGRAM = 2000  # molecules: shares to about one percent, and a quarter of a second


@dataclass(frozen=True)
class MoleculeReference:
    """Novel is what is not in `known`; histograms are drawn beside those of `shown`."""

    known: CanonicalSet
    shown: list[str]
    about: dict[str, Any]  # where it comes from, for scores.json

    @classmethod
    def load(
        cls,
        name: str,
        progress: Callable[[int], object] | None = None,
        length: int | None = None,
    ) -> Self | None:
        """From a dataset, a file of molecules or a prepared `.npz`; None for the name "none".

        Known are the molecules to train on. Shown are held-out ones, if there are any.
        """
        if name == "none":
            return None
        found = load(name, length=length, progress=progress)
        if found.tokenizer.kind != "smiles":
            raise InputError(
                f"{name!r} holds no molecules but {found.tokenizer.kind} tokens; give molecules, "
                f"or none to leave novelty and histograms out"
            )
        train = found.texts("train")
        # Another RDKit may spell a molecule in another way.
        own = found.source.get("rdkit") == package_version("rdkit")
        same = own and "spellings" not in found.source
        about = {"name": found.name, "rows": found.report, "source": found.source}
        return cls(
            known=CanonicalSet(train) if same else canonical_set(train),
            shown=(found.texts("valid") or train)[:_HISTOGRAM],
            about=about | {"fingerprint": found.fingerprint},
        )

    @property
    def left_out(self) -> int:
        """Molecules of the data that are not known here, being too long or of other tokens."""
        rows = self.about["rows"]
        return int(rows.get("too_long", 0) + rows.get("unknown_tokens", 0))
