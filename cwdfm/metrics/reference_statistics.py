"""Statistics of the reference molecules for the distribution metrics, computed once and cached."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.cache import cache_path, cached, content_digest
from cwdfm.data.dataset import damaged
from cwdfm.data.moses import MOSES, TEST_SETS, published_statistics, read_test_set
from cwdfm.data.properties import map_molecules, properties_of
from cwdfm.data.readers import Progress, readable
from cwdfm.data.reference import ReferenceMolecules
from cwdfm.errors import InputError
from cwdfm.files import DAMAGED_ZIP, replacing
from cwdfm.metrics.chemnet import Moments, activations
from cwdfm.metrics.descriptors import SCORED, Bags, Descriptors
from cwdfm.metrics.tanimoto import pack_bits
from cwdfm.provenance import package_version

MAX_MOLECULES = 20_000  # for data without a benchmark test set; molecules are in random order
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class ReferenceStatistics:
    """Statistics of a reference set of molecules for the distribution metrics."""

    moments: Moments  # of ChemNet's activations
    fingerprints: NDArray[np.uint64]  # [n, W]
    fragments: dict[str, int]  # counts
    scaffolds: dict[str, int]
    properties: dict[str, NDArray[np.float64]]  # [n] each

    def __len__(self) -> int:
        return len(self.fingerprints)

    @classmethod
    def of(
        cls, smiles: Sequence[str], workers: int = 1, progress: Progress = lambda *_: None
    ) -> Self:
        """Statistics of valid molecules."""
        n = len(smiles)
        described = Descriptors.of(
            smiles,
            filters=False,
            workers=workers,
            progress=lambda done: progress("describing the data", done, n),
        )
        if len(described.smiles) < 2:
            raise InputError(
                f"distributions are compared with at least 2 valid molecules, got "
                f"{len(described.smiles)} among {n:,} strings; pass more data, or "
                f"distribution=False",
                fields=("distribution",),
            )
        x_ND = activations(described.smiles, lambda done: progress("ChemNet of the data", done, n))
        counts = _counts(described.fragments), _counts(described.scaffolds)
        return cls(Moments.of(x_ND), described.fingerprints, *counts, described.properties)

    @classmethod
    def of_moses(cls, name: str, workers: int, progress: Progress) -> Self:
        """The statistics that MOSES publishes for a test set and uses for its results table.

        SA is recomputed, because its definition in RDKit has changed since.
        """
        smiles, published = read_test_set(name), published_statistics(name)

        def report(done: int) -> None:
            progress(f"SA of {name}", done, len(smiles))

        values = {key: np.array(published[key]["values"]) for key in SCORED}
        compute = partial(properties_of, ["SA"])
        values["SA"] = np.array(list(map_molecules(compute, smiles, workers, report)))[:, 0]
        moments = Moments(published["FCD"]["mu"].astype(np.float64), published["FCD"]["sigma"])
        counts = dict(published["Frag"]["frag"]), dict(published["Scaf"]["scaf"])
        return cls(moments, pack_bits(published["SNN"]["fps"]), *counts, values)

    def save(self, path: Path) -> None:
        """Write a `.npz` file atomically."""
        arrays: dict[str, Any] = {f"property_{name}": x for name, x in self.properties.items()}
        arrays |= {"mean": self.moments.mean, "covariance": self.moments.covariance}
        arrays["names"] = np.array(json.dumps([self.fragments, self.scaffolds]))
        with replacing(path) as temporary, temporary.open("xb") as file:
            np.savez(file, fingerprints=self.fingerprints, **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`; raises InputError if it is damaged."""
        try:
            with (
                readable(path),
                path.open("rb") as file,
                np.load(file, allow_pickle=False) as stored,
            ):
                fragments, scaffolds = json.loads(str(stored["names"]))
                return cls(
                    Moments(stored["mean"], stored["covariance"]),
                    stored["fingerprints"],
                    fragments,
                    scaffolds,
                    {name: stored[f"property_{name}"] for name in SCORED},
                )
        except DAMAGED_ZIP as error:
            raise damaged(path, str(error)) from error


def _counts(bags: Bags) -> dict[str, int]:
    return dict(zip(bags.names, np.bincount(bags.ids).tolist(), strict=True))


def reference_statistics(
    reference: ReferenceMolecules, *, workers: int = 1, progress: Progress = lambda *_: None
) -> dict[str, ReferenceStatistics]:
    """Statistics by name: Test and TestSF (new scaffolds) for MOSES, otherwise Test.

    Test has at most `MAX_MOLECULES` held-out molecules, or molecules of a file without a split.
    """
    cls = ReferenceStatistics
    versions = {name: package_version(name) for name in ("rdkit", "fcd_torch")}

    def load(name: str, data: object, make: Callable[[], ReferenceStatistics]) -> Any:
        key = {"format": _FORMAT, "statistics": data, **versions}
        path = cache_path(f"{reference.name}-{name}-statistics", key, ".npz")
        return cached(path, make, read=cls.load, write=cls.save)

    if reference.source.get("package") == MOSES.package:
        return {
            name: load(name, MOSES.origin(), partial(cls.of_moses, name, workers, progress))
            for name in TEST_SETS
        }
    smiles = reference.compared(MAX_MOLECULES)
    make = partial(cls.of, smiles, workers, progress)
    return {"Test": load("Test", content_digest(smiles), make)}
