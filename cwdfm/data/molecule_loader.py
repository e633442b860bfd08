"""What `cwdfm.data.load` does for molecules: find the dataset, prepare it once, read it."""

from collections.abc import Callable
from pathlib import Path

from cwdfm.cache import Cache, cache_folder, cached
from cwdfm.data.dataset import FORMAT, CacheMode, TokenData
from cwdfm.data.molecules import Molecules
from cwdfm.data.moses import MOSES
from cwdfm.data.qm9 import QM9
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.data.smiles_file import SmilesFile
from cwdfm.data.text import CORPORA
from cwdfm.data.text.load import brief, differing
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError, check_integer

DATASETS: dict[str, Molecules] = {dataset.name: dataset for dataset in (QM9, MOSES)}
SPLIT_SEED = 42
LONGEST_SMILES = 10**4  # every molecule takes as much room; no SMILES is as long


def find_molecules(name_or_path: str | Path, column: str | None) -> Molecules:
    """A dataset by name, or that of a file; `column` is that of `cwdfm.data.load`."""
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        if column is not None:
            raise InputError(
                f"column={column!r} is for tables of one's own, {name_or_path!r} knows its "
                f"column; leave column out"
            )
        return DATASETS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise no_data(name_or_path)
    return SmilesFile.of(path, column)


def no_data(name_or_path: str | Path) -> InputError:
    """The message where there are no data of that name or path."""
    return InputError(
        f"{str(name_or_path)!r} is neither a dataset nor a file; give one of "
        f"{', '.join(map(repr, [*DATASETS, *CORPORA]))}, or the path of a file (molecules: "
        f".smi, .txt, .csv, .tsv, a prepared .npz; text: .txt with a tokenizer of text, "
        f".jsonl, .parquet, .tar, a folder; also compressed)"
    )


def load_molecules(
    dataset: Molecules,
    tokenizer: Tokenizer | str | None,
    cache: CacheMode,
    progress: Callable[[int], object] | None,
    *,
    length: int | None,
    limit: int | None,
    seed: int | None,
) -> TokenData:
    """A dataset prepared and kept in the cache, or read from there."""
    length = dataset.length if length is None else length
    seed = SPLIT_SEED if seed is None else seed
    check_integer("length", length, 3, LONGEST_SMILES)
    check_integer("seed", seed, 0)
    if limit is not None:
        check_integer("limit", limit)
    if tokenizer is not None and not isinstance(tokenizer, SmilesTokenizer):
        out = "leave it out (`tokenizer=None`) to have one made, or "
        raise InputError(
            f"molecules need a SmilesTokenizer, and {dataset.name} is read as molecules, got "
            f"{brief(tokenizer)}; {out if isinstance(tokenizer, str) else ''}give other data (text "
            f"in a table: as .jsonl or .parquet)"
        )

    def make() -> TokenData:
        return dataset.prepare(
            length=length, limit=limit, seed=seed, tokenizer=tokenizer, progress=progress
        )

    if not cache:
        return make()
    vocabulary = tokenizer.tokens if tokenizer is not None else dataset.tokens
    source = dataset.source(length=length, limit=limit, seed=seed)
    key = {"format": FORMAT, "key": [dataset.name, source, vocabulary]}
    path = Cache(cache_folder()).path(dataset.name, key, ".npz")
    if cache == "read" and not path.exists():
        return make()
    return cached(path, make, read=TokenData.load, write=TokenData.save)


def load_npz(
    path: Path,
    tokenizer: Tokenizer | str | None,
    column: str | None,
    *,
    length: int | None,
    limit: int | None,
    seed: int | None,
) -> TokenData:
    """A prepared file is what it is: options that would change it are refused."""
    data = TokenData.load(path)
    asked = {"length": length, "limit": limit, "column": column, "seed": seed}
    wrong, right = differing(asked, data)
    ask = f"ask for what it has ({', '.join(right)}), or "
    if tokenizer is not None and tokenizer != data.tokenizer:
        wrong.append("with another vocabulary than the one asked for")
        ask = ""  # a vocabulary is a model's, which cannot ask for another
    if wrong:
        raise InputError(
            f"{path} was prepared {', and '.join(wrong)}; {ask}give the raw data, which are read "
            f"with what is asked for"
        )
    return data
