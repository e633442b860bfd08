"""Molecular properties computed with RDKit, and a parallel map over molecules."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

from cwdfm.data.smiles import parse, rdkit
from cwdfm.data.text.encode import GUARD, exit_with_parent
from cwdfm.errors import RunError

T = TypeVar("T")
Report = Callable[[int], object]  # receives the number of molecules done
_CHUNK = 128  # molecules sent to a worker at a time
_IN_FLIGHT = 4  # chunks per worker that are sent or computed, but not yet used


def _qed(molecule: Any) -> float:
    """The same value as RDKit's QED in less time.

    The molecule is not copied, so RDKit computes its logP only once, and all alerts are matched in
    one call.
    """
    qed, descriptors = rdkit("Chem.QED"), rdkit("Chem.rdMolDescriptors")
    if molecule.GetNumHeavyAtoms() < molecule.GetNumAtoms():
        return float(qed.qed(molecule))  # it removes hydrogen atoms first
    aromatic = rdkit().DeleteSubstructs(molecule, qed.AliphaticRings)
    rotatable = descriptors.NumRotatableBondsOptions.Strict
    properties = qed.QEDproperties(
        MW=PROPERTIES["weight"](molecule),
        ALOGP=PROPERTIES["logP"](molecule),
        HBA=sum(len(molecule.GetSubstructMatches(pattern)) for pattern in qed.Acceptors),
        HBD=descriptors.CalcNumHBD(molecule),
        PSA=PROPERTIES["TPSA"](molecule),
        ROTB=descriptors.CalcNumRotatableBonds(molecule, rotatable),
        AROM=len(rdkit().GetSSSR(aromatic)),
        ALERTS=len(_alerts().GetMatches(molecule)),
    )
    return float(qed.qed(molecule, qedProperties=properties))


@cache
def _alerts() -> Any:
    """A catalog of QED's structural alerts."""
    catalogs = rdkit("Chem.FilterCatalog")
    catalog = catalogs.FilterCatalog()
    for pattern in rdkit("Chem.QED").StructuralAlerts:
        catalog.AddEntry(catalogs.FilterCatalogEntry("", catalogs.SmartsMatcher("", pattern, 1)))
    return catalog


# Properties of an RDKit molecule. SA: synthetic accessibility from 1 (easy) to 10 (Ertl and
# Schuffenhauer 2009). QED: drug-likeness from 0 to 1 (Bickerton et al. 2012). TPSA: polar surface
# area in square angstroms (Ertl et al. 2000).
PROPERTIES: dict[str, Callable[[Any], float]] = {
    "logP": lambda m: float(rdkit("Chem.Crippen").MolLogP(m)),
    "SA": lambda m: float(rdkit("Contrib.SA_Score.sascorer").calculateScore(m)),
    "QED": _qed,
    "weight": lambda m: float(rdkit("Chem.Descriptors").MolWt(m)),
    "TPSA": lambda m: float(rdkit("Chem.rdMolDescriptors").CalcTPSA(m)),
    "rings": lambda m: float(m.GetRingInfo().NumRings()),
}


def properties_of(names: Sequence[str], smiles: str) -> list[float]:
    """Some of the `PROPERTIES` of a valid SMILES."""
    molecule = parse(smiles)
    return [PROPERTIES[name](molecule) for name in names]


def map_molecules(
    function: Callable[[str], T],
    texts: Iterable[str],
    workers: int,
    progress: Report = lambda _: None,
) -> Iterator[T]:
    """Apply `function` to each text, in order, in several processes.

    Few texts are in flight, so `texts` may be read from a large file. With more than one worker, a
    script needs an `if __name__ == "__main__":` guard.
    """
    texts = iter(texts)
    chunks = iter(lambda: list(islice(texts, _CHUNK)), [])
    first = list(islice(chunks, 2 * max(1, workers)))  # fewer are not worth a pool
    chunks = chain(first, chunks)
    compute = partial(_map_chunk, function)
    several = workers > 1 and len(first) == 2 * workers
    done = 0
    for results in _parallel(compute, chunks, workers) if several else map(compute, chunks):
        done += len(results)
        progress(done)
        yield from results


def _map_chunk(function: Callable[[str], T], texts: list[str]) -> list[T]:
    return list(map(function, texts))


def _parallel(
    compute: Callable[[list[str]], list[T]], chunks: Iterable[list[str]], workers: int
) -> Iterator[list[T]]:
    spawn = multiprocessing.get_context("spawn")  # fork is unsafe with torch's threads
    pool = ProcessPoolExecutor(workers, spawn, exit_with_parent)
    pending: deque[Future[list[T]]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(compute, chunk))
            if len(pending) > _IN_FLIGHT * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise RunError(f"a worker process died; {GUARD}") from error
    finally:
        pool.shutdown(cancel_futures=True)
