"""MOSES: drug-like molecules from ZINC with a fixed split (Polykovskiy et al. 2020).

1,584,663 training and 176,074 held-out molecules, all distinct, with at most 54 tokens each and a
vocabulary of 23 tokens. Another 176,225 molecules (TestSF) have scaffolds that occur in neither
set. Only the data files of the package `molsets` are used, so its dependencies are not required.
"""

import pickle
import zipfile
from typing import Any

import numpy as np

from cwdfm.data.dataset import damaged
from cwdfm.data.molecules import PackagedMolecules
from cwdfm.data.readers import read_column, readable
from cwdfm.files import DAMAGED_ZIP

# fmt: off
TOKENS = (
    "#", "(", ")", "-", "1", "2", "3", "4", "5", "6", "=",
    "Br", "C", "Cl", "F", "N", "O", "S", "[nH]", "c", "n", "o", "s",
)
# fmt: on

MOSES = PackagedMolecules(
    name="moses",
    length=64,
    tokens=TOKENS,
    package="molsets",
    module="moses",
    install="pip install 'cwdfm[molecules]' && pip install --no-deps molsets",
    files=(("dataset/data/train.csv.gz", "train"), ("dataset/data/test.csv.gz", "valid")),
)

TEST_SETS = {"Test": "test", "TestSF": "test_scaffolds"}  # the test sets of the benchmark
_DAMAGE: tuple[type[Exception], ...] = (*DAMAGED_ZIP, pickle.UnpicklingError)


def read_test_set(name: str) -> list[str]:
    """The canonical SMILES of a test set."""
    path = MOSES.path(f"dataset/data/{TEST_SETS[name]}.csv.gz")
    return [smiles for _, smiles in read_column(path, MOSES.column)]


def published_statistics(name: str) -> dict[str, dict[str, Any]]:
    """The precomputed statistics of a test set, as published with MOSES.

    They are pickled inside an `.npz` file; only arrays and counters are unpickled.
    """
    path = MOSES.path(f"dataset/data/{TEST_SETS[name]}_stats.npz")
    try:
        with readable(path), zipfile.ZipFile(path) as archive, archive.open("stats.npy") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            statistics: dict[str, dict[str, Any]] = _ArrayUnpickler(file).load().item()
            return statistics
    except _DAMAGE as error:
        raise damaged(path, str(error)) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays and counters only, because a pickle can execute arbitrary code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("_codecs", "encode"),  # used to pickle bytes
            ("collections", "Counter"),
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy.core.multiarray", "scalar"),
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it contains {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
