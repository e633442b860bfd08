"""Datasets: one file each, all through `load`.

data = load("qm9")                                  # a dataset by name
data = load("mine.smi", tokenizer=data.tokenizer)   # molecules of one's own, QM9's vocabulary
data.save("qm9.npz"); load("qm9.npz")               # prepared: needs neither RDKit nor packages
"""

from collections.abc import Callable
from pathlib import Path

from cwdfm.chemistry import canonical
from cwdfm.data.cache import cache_folder, cached
from cwdfm.data.dataset import Split, TokenData
from cwdfm.data.molecules import Molecules, Row
from cwdfm.data.moses import MOSES
from cwdfm.data.packaged import PackagedMolecules
from cwdfm.data.qm9 import QM9
from cwdfm.data.smiles import SmilesTokenizer, split_smiles
from cwdfm.data.smiles_file import SmilesFile
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.errors import InputError, describe

DATASETS: dict[str, Molecules] = {dataset.name: dataset for dataset in (QM9, MOSES)}
SPLIT_SEED = 42

__all__ = [
    "DATASETS",
    "Molecules",
    "PackagedMolecules",
    "Row",
    "SmilesFile",
    "SmilesTokenizer",
    "Split",
    "TokenData",
    "Tokenizer",
    "cache_folder",
    "canonical",
    "load",
    "split_smiles",
    "tokenizer_from_json",
]


def load(
    name_or_path: str | Path,
    *,
    length: int | None = None,
    limit: int | None = None,
    column: str | None = None,
    seed: int | None = None,
    tokenizer: Tokenizer | None = None,
    cache: bool = True,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """A dataset by name, a file of molecules, or a prepared `.npz`.

    length: tokens a sequence, `<bos>` and `<eos>` included; None for the dataset's own (QM9 and
        files 32, MOSES 64). Longer molecules are left out and counted.
    limit: read only so many rows, the first ones; of each part, for a dataset with its own split.
        A dataset may be sorted (QM9 is, by size), so this is for trying things out.
    column: of a table; None for `smiles`.
    seed: of the split; None for 42. 5% are held out.
    tokenizer: a vocabulary to keep to, for a model that exists; molecules with other tokens are
        left out and counted.
    cache: keep the prepared data under `$CWDFM_CACHE`, or `~/.cache/cwdfm`, and find them there.
    progress: is told how many rows have been read, every 1,000.

    A prepared file is what it is: options that would change it are refused.
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"give a dataset by name ({', '.join(map(repr, DATASETS))}) or by path, "
            f"got {describe(name_or_path)}"
        )
    path = Path(name_or_path)
    if path.suffix == ".npz":
        return _prepared(path, length, limit, column, seed, tokenizer)
    dataset = _find(name_or_path, column)
    length = _whole("length", dataset.length if length is None else length, 3)
    seed = _whole("seed", SPLIT_SEED if seed is None else seed, 0)
    limit = None if limit is None else _whole("limit", limit, 1)
    if tokenizer is not None and not isinstance(tokenizer, SmilesTokenizer):
        raise InputError(
            f"molecules need a SmilesTokenizer, got {tokenizer!r}; leave tokenizer out to have "
            f"one made"
        )

    def make() -> TokenData:
        return dataset.prepare(
            length=length, limit=limit, seed=seed, tokenizer=tokenizer, progress=progress
        )

    if not cache:
        return make()
    vocabulary = tokenizer.tokens if tokenizer is not None else dataset.tokens
    source = dataset.source(length=length, limit=limit, seed=seed)
    return cached(dataset.name, [dataset.name, source, vocabulary], make)


def _find(name_or_path: str | Path, column: str | None) -> Molecules:
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        if column is not None:
            raise InputError(
                f"column={column!r} is for tables of one's own, {name_or_path!r} knows its "
                f"column; leave column out"
            )
        return DATASETS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is neither a dataset nor a file"
        raise InputError(
            f"{str(name_or_path)!r} {what}; give one of {', '.join(map(repr, DATASETS))}, "
            f"or the path of a file (.smi, .txt, .csv, .tsv, also .gz; or a prepared .npz)"
        )
    return SmilesFile.of(path, column)


def _prepared(
    path: Path,
    length: int | None,
    limit: int | None,
    column: str | None,
    seed: int | None,
    tokenizer: Tokenizer | None,
) -> TokenData:
    data = TokenData.load(path)
    asked = {"length": length, "limit": limit, "column": column, "seed": seed}
    for name, value in asked.items():
        if value is not None and value != (has := data.source.get(name)):
            raise InputError(
                f"{path} was prepared with {name}={has!r}, asked for is {value!r}; "
                f"leave {name} out, or prepare the raw data again"
            )
    if tokenizer is not None and tokenizer != data.tokenizer:
        raise InputError(
            f"{path} was prepared with another vocabulary than the one asked for; "
            f"prepare the raw data again with tokenizer="
        )
    return data


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be an integer >= {least}, got {value!r}")
    return value
