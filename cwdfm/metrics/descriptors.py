"""Molecular descriptors for the distribution metrics, computed with RDKit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.properties import PROPERTIES, Report, map_molecules
from cwdfm.data.smiles import canonical, parse, rdkit, to_smiles
from cwdfm.metrics.filters import passes_filters
from cwdfm.metrics.tanimoto import pack_bits

BITS = 1024  # length of the Morgan fingerprints of radius 2
SCORED = ("logP", "SA", "QED", "weight")  # the properties whose distributions are compared


class Described(NamedTuple):
    """The descriptors of one molecule."""

    smiles: str  # canonical
    fingerprint: NDArray[np.uint8]  # [BITS]
    fragments: list[str]  # parts between BRICS bonds
    scaffold: str | None  # Bemis-Murcko scaffold; None with fewer than two rings
    properties: list[float]  # in the order of SCORED
    passes: bool  # passes the filters


@dataclass(frozen=True, eq=False)
class Bags:
    """Parts of molecules, by name: `names[ids[k]]` is a part of molecule `owners[k]`."""

    names: list[str]
    ids: NDArray[np.intp]
    owners: NDArray[np.intp]

    @classmethod
    def of(cls, lists: Sequence[Sequence[str]]) -> Self:
        """Build from one list of names per molecule."""
        flat = list(chain.from_iterable(lists))
        index = {name: i for i, name in enumerate(dict.fromkeys(flat))}
        owners = np.repeat(np.arange(len(lists)), [len(names) for names in lists])
        return cls(list(index), np.array([index[name] for name in flat], np.intp), owners)

    def counts(self, weights_N: NDArray[Any]) -> NDArray[Any]:
        """Count each name, with molecule n counted `weights_N[n]` times."""
        return np.bincount(self.ids, weights_N[self.owners], len(self.names))


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The descriptors of the valid molecules among SMILES strings, in order."""

    smiles: list[str]  # canonical
    fingerprints: NDArray[np.uint64]  # [n, BITS / 64]
    fragments: Bags
    scaffolds: Bags
    properties: dict[str, NDArray[np.float64]]  # [n] each
    passes: NDArray[np.bool_]  # [n]

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        *,
        filters: bool = True,
        workers: int = 1,
        progress: Report = lambda _: None,
    ) -> Self:
        """Describe the valid molecules.

        filters: apply the filters, which takes half of the time; otherwise all molecules pass.
        """
        describe = partial(_describe, filters=filters)
        rows = [row for row in map_molecules(describe, texts, workers, progress) if row is not None]
        bits = [row.fingerprint for row in rows]
        values = np.array([row.properties for row in rows]).reshape(-1, len(SCORED)).T
        return cls(
            [row.smiles for row in rows],
            pack_bits(np.array(bits, np.uint8).reshape(-1, BITS)),
            Bags.of([row.fragments for row in rows]),
            Bags.of([[row.scaffold] if row.scaffold else [] for row in rows]),
            dict(zip(SCORED, values, strict=True)),
            np.array([row.passes for row in rows], bool),
        )

    def __len__(self) -> int:
        return len(self.smiles)


def _describe(text: str, *, filters: bool) -> Described | None:
    """Describe one molecule; None if it is invalid."""
    if (smiles := canonical(text)) is None or (molecule := parse(smiles)) is None:
        return None
    return Described(
        smiles,
        _morgan().GetFingerprintAsNumPy(molecule),
        fragments(molecule),
        scaffold(molecule),
        [PROPERTIES[name](molecule) for name in SCORED],
        passes=not filters or passes_filters(molecule),
    )


@cache
def _morgan() -> Any:
    return rdkit("Chem.rdFingerprintGenerator").GetMorganGenerator(radius=2, fpSize=BITS)


def fragments(molecule: Any) -> list[str]:
    """The parts of a molecule between its BRICS bonds (Degen et al. 2008), as SMILES."""
    return to_smiles(rdkit().FragmentOnBRICSBonds(molecule)).split(".")


def scaffold(molecule: Any) -> str | None:
    """The Murcko scaffold (rings and linkers) as SMILES; None for fewer than two rings."""
    core = rdkit("Chem.Scaffolds.MurckoScaffold").GetScaffoldForMol(molecule)
    rings = core.GetRingInfo().NumRings() if core.GetNumAtoms() else 0
    return to_smiles(core) if rings > 1 else None
