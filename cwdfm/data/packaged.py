"""Molecules that come inside an installed package, as CSV files."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from cwdfm.data.dataset import Split
from cwdfm.data.molecules import Molecules, Row
from cwdfm.data.readers import column, package_files, package_version, sha256


@dataclass(frozen=True)
class PackagedMolecules(Molecules):
    """CSV files of one package. They are read in place; the package's code is not imported."""

    package: str
    module: str
    install: str  # the command that installs it
    column: str
    files: tuple[tuple[str, Split | None], ...]  # path inside the module, the split it belongs to

    def rows(self, limit: int | None) -> Iterator[Row]:
        for own, files in groupby(self._paths(), key=lambda item: item[1]):
            yield from islice(chain.from_iterable(self._file(p, own) for p, _ in files), limit)

    def origin(self) -> dict[str, Any]:
        return {
            "package": self.package,
            "version": package_version(self.package),
            "sha256": {
                path.name: _sha256(path, path.stat().st_mtime_ns) for path, _ in self._paths()
            },
        }

    def _paths(self) -> list[tuple[Path, Split | None]]:
        names = [name for name, _ in self.files]
        paths = package_files(self.module, self.package, self.install, names)
        return [(path, own) for path, (_, own) in zip(paths, self.files, strict=True)]

    def _file(self, path: Path, own: Split | None) -> Iterator[Row]:
        for line, smiles in column(path, self.column):
            yield Row(f"{path.name}, line {line}", smiles, own)


@lru_cache(maxsize=64)
def _sha256(path: Path, modified: int) -> str:
    """Read once a process: experiments load the same data dozens of times."""
    return sha256(path)
