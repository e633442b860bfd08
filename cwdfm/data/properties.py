"""Molecular properties computed with RDKit, and a parallel map over molecules."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from cwdfm.data.smiles import parse, rdkit
from cwdfm.data.text.encode import GUARD, exit_with_parent
from cwdfm.errors import RunError

T = TypeVar("T")
Report = Callable[[int], object]  # receives the number of molecules done
_CHUNK = 128  # molecules sent to a worker at a time


# Properties of an RDKit molecule. SA: synthetic accessibility from 1 (easy) to 10 (Ertl and
# Schuffenhauer 2009). QED: drug-likeness from 0 to 1 (Bickerton et al. 2012). TPSA: polar surface
# area in square angstroms (Ertl et al. 2000).
PROPERTIES: dict[str, Callable[[Any], float]] = {
    "logP": lambda m: float(rdkit("Chem.Crippen").MolLogP(m)),
    "SA": lambda m: float(rdkit("Contrib.SA_Score.sascorer").calculateScore(m)),
    "QED": lambda m: float(rdkit("Chem.QED").qed(m)),
    "weight": lambda m: float(rdkit("Chem.Descriptors").MolWt(m)),
    "TPSA": lambda m: float(rdkit("Chem.rdMolDescriptors").CalcTPSA(m)),
    "rings": lambda m: float(m.GetRingInfo().NumRings()),
}


def property_of(name: str, smiles: str) -> float:
    """One of the `PROPERTIES` of a valid SMILES."""
    return PROPERTIES[name](parse(smiles))


def map_molecules(
    function: Callable[[str], T], texts: Sequence[str], workers: int, progress: Report
) -> Iterable[T]:
    """Apply `function` to each text, in order, in several processes.

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
            for results in pool.map(_map_chunk, [function] * len(chunks), chunks):
                done += results
                progress(len(done))
        except BrokenProcessPool as error:
            raise RunError(f"a worker process died; {GUARD}") from error
    return done


def _map_chunk(function: Callable[[str], T], texts: Sequence[str]) -> list[T]:
    return list(map(function, texts))
