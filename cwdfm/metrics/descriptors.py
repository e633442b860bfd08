"""What the distribution metrics need to know of each molecule, computed with RDKit."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.smiles import canonical, parse
from cwdfm.data.text.encode import GUARD, exit_with_parent
from cwdfm.errors import RunError, load_extra
from cwdfm.metrics.filters import passes_filters
from cwdfm.metrics.tanimoto import pack_bits

BITS = 1024  # of a Morgan fingerprint of radius 2
_CHUNK = 128  # molecules sent to a worker at a time

T = TypeVar("T")
Report = Callable[[int], object]  # receives the number of molecules done


def _rdkit(module: str) -> Any:
    return load_extra(f"rdkit.{module}", "molecules")


# Properties of an RDKit molecule. SA: synthetic accessibility from 1 (easy) to 10 (Ertl and
# Schuffenhauer 2009). QED: drug-likeness from 0 to 1 (Bickerton et al. 2012).
PROPERTIES: dict[str, Callable[[Any], float]] = {
    "logP": lambda m: float(_rdkit("Chem.Crippen").MolLogP(m)),
    "SA": lambda m: float(_rdkit("Contrib.SA_Score.sascorer").calculateScore(m)),
    "QED": lambda m: float(_rdkit("Chem.QED").qed(m)),
    "weight": lambda m: float(_rdkit("Chem.Descriptors").MolWt(m)),
}


class Described(NamedTuple):
    """One molecule."""

    smiles: str  # canonical
    fingerprint: NDArray[np.uint8]  # [BITS]
    fragments: list[str]  # parts between the BRICS bonds
    scaffold: str | None  # of Bemis and Murcko; None with fewer than two rings
    properties: list[float]  # in the order of PROPERTIES
    passes: bool  # the filters


@dataclass(frozen=True, eq=False)
class Bags:
    """Names that belong to molecules: name `names[ids[k]]` to molecule `owners[k]`."""

    names: list[str]
    ids: NDArray[np.intp]
    owners: NDArray[np.intp]

    @classmethod
    def of(cls, lists: Sequence[Sequence[str]]) -> Self:
        """The names of each molecule."""
        flat = list(chain.from_iterable(lists))
        index = {name: i for i, name in enumerate(dict.fromkeys(flat))}
        owners = np.repeat(np.arange(len(lists)), [len(names) for names in lists])
        return cls(list(index), np.array([index[name] for name in flat], np.intp), owners)

    def counts(self, weights_N: NDArray[Any]) -> NDArray[Any]:
        """How often each name occurs, if molecule n counts `weights_N[n]` times."""
        return np.bincount(self.ids, weights_N[self.owners], len(self.names))


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The valid molecules among SMILES strings, in order."""

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
        """Describe the valid molecules. Without `filters`, which take half the time, all pass."""
        work = _describe if filters else _describe_unfiltered
        rows = [row for row in map_molecules(work, texts, workers, progress) if row is not None]
        bits = [row.fingerprint for row in rows]
        values = np.array([row.properties for row in rows]).reshape(-1, len(PROPERTIES)).T
        return cls(
            [row.smiles for row in rows],
            pack_bits(np.array(bits, np.uint8).reshape(-1, BITS)),
            Bags.of([row.fragments for row in rows]),
            Bags.of([[row.scaffold] if row.scaffold else [] for row in rows]),
            dict(zip(PROPERTIES, values, strict=True)),
            np.array([row.passes for row in rows], bool),
        )

    def __len__(self) -> int:
        return len(self.smiles)


def _describe(text: str) -> Described | None:
    """Describe one molecule; None if it is invalid."""
    row = _describe_unfiltered(text)
    return row and row._replace(passes=passes_filters(parse(row.smiles)))


def _describe_unfiltered(text: str) -> Described | None:
    if (smiles := canonical(text)) is None or (molecule := parse(smiles)) is None:
        return None
    return Described(
        smiles,
        _morgan().GetFingerprintAsNumPy(molecule),
        fragments(molecule),
        scaffold(molecule),
        [of(molecule) for of in PROPERTIES.values()],
        passes=True,
    )


@cache
def _morgan() -> Any:
    return _rdkit("Chem.rdFingerprintGenerator").GetMorganGenerator(radius=2, fpSize=BITS)


def fragments(molecule: Any) -> list[str]:
    """The parts of a molecule between its BRICS bonds (Degen et al. 2008), as SMILES."""
    chem = _rdkit("Chem")
    return str(chem.MolToSmiles(chem.FragmentOnBRICSBonds(molecule))).split(".")


def scaffold(molecule: Any) -> str | None:
    """The rings of a molecule and what links them, as SMILES; None for fewer than two rings."""
    found = _rdkit("Chem.Scaffolds.MurckoScaffold").GetScaffoldForMol(molecule)
    rings = found.GetRingInfo().NumRings() if found.GetNumAtoms() else 0
    return str(_rdkit("Chem").MolToSmiles(found)) if rings > 1 else None


def synthetic_accessibility(text: str) -> float:
    """The SA score of a valid SMILES."""
    return PROPERTIES["SA"](parse(text))


def map_molecules(
    function: Callable[[str], T], texts: Sequence[str], workers: int, progress: Report
) -> Iterable[T]:
    """`function` of each text, in order, computed by several processes.

    With more than one worker, a script needs an `if __name__ == "__main__":` guard.
    """
    chunks = [texts[i : i + _CHUNK] for i in range(0, len(texts), _CHUNK)]
    done: list[T] = []
    if workers == 1 or len(chunks) < 2 * workers:
        for chunk in chunks:
            done += map(function, chunk)
            progress(len(done))
        return done
    spawn = multiprocessing.get_context("spawn")  # fork is unsafe with torch's threads
    with ProcessPoolExecutor(workers, spawn, exit_with_parent) as pool:
        try:
            for found in pool.map(_chunk, [function] * len(chunks), chunks):
                done += found
                progress(len(done))
        except BrokenProcessPool as error:
            raise RunError(f"a worker process died; {GUARD}") from error
    return done


def _chunk(function: Callable[[str], T], texts: Sequence[str]) -> list[T]:
    return list(map(function, texts))
