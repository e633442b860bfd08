"""Molecular properties computed with RDKit, and a parallel map over molecules."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from cwdfm.data.smiles import parse, rdkit
from cwdfm.data.text.encode import GUARD, exit_with_parent
from cwdfm.errors import RunError

T = TypeVar("T")
Report = Callable[[int], object]  # receives the number of molecules done
_CHUNK = 128  # molecules sent to a worker at a time
_FEW = 16  # up to this many chunks, starting processes takes longer than they save
_IN_FLIGHT = 4  # chunks per worker that are sent or computed, but not yet used


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
    first = list(islice(chunks, _FEW + 1))
    chunks = chain(first, chunks)
    compute = partial(_map_chunk, function)
    several = workers > 1 and len(first) > _FEW
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
