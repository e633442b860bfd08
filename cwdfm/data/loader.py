"""`load`: a dataset by name, or a user's files, as token sequences.

The prepared data are cached, so each dataset is canonicalized or tokenized only once.
"""

import glob
from collections.abc import Callable
from pathlib import Path

from cwdfm.cache import Cache, cache_folder, cached
from cwdfm.data.dataset import FORMAT, CacheMode, TokenData
from cwdfm.data.molecules import Molecules, SmilesFile
from cwdfm.data.moses import MOSES
from cwdfm.data.qm9 import QM9
from cwdfm.data.readers import file_type
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.data.text import CORPORA
from cwdfm.data.text.files import Unit, is_text
from cwdfm.data.text.load import (
    differences,
    find_corpus,
    given_options,
    load_prepared,
    load_text,
    summarize_tokenizer,
)
from cwdfm.data.text.prepared import is_prepared
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError, check_integer, describe

DATASETS: dict[str, Molecules] = {dataset.name: dataset for dataset in (QM9, MOSES)}
SPLIT_SEED = 42
MAX_SMILES_LENGTH = 10**4  # every row is padded to the length, which costs memory


def load(
    name_or_path: str | Path,
    *,
    length: int | None = None,
    limit: int | None = None,
    column: str | None = None,
    seed: int | None = None,
    tokenizer: Tokenizer | str | None = None,
    part: str | None = None,
    documents: Unit | None = None,
    folder: str | Path | None = None,
    streaming: bool = False,
    workers: int = 1,
    cache: CacheMode = True,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """Load a dataset or corpus by name, a user's files, or prepared data.

    Molecules: the datasets "qm9" and "moses", `.smi`, `.smiles`, `.csv` and `.tsv` files, and
    prepared `.npz` files. Text: the corpora by name, all other files, folders, glob patterns, and
    folders written by `prepare`. A `.txt` file contains one SMILES per line, unless a text
    tokenizer is given; then it is text.

    length: tokens per sequence. None selects the dataset's default: 32 for QM9 and files of
        molecules, 64 for MOSES, 1024 for text, 128 for LM1B, 256 for text8. For molecules, `<bos>`
        and `<eos>` are included, and longer molecules are left out. Text is cut into windows.
    limit: read only the first rows or documents (of each split, if the dataset has its own). Some
        datasets are sorted, as QM9 is by size, so this is meant for quick trials.
    column: the column of a table or parquet file, or the field of JSON lines. The default is
        `smiles` for molecules and `text` for text.
    seed: seed of the split, 42 by default. 5% of the data are held out if the dataset has no split
        of its own.
    tokenizer: for molecules, a fixed vocabulary, such as that of an existing model; molecules with
        other tokens are left out. For text, a tokenizer or a name for `find_tokenizer`; "chars"
        uses the characters of the corpus. None selects the corpus's default, usually GPT-2's.
    cache: whether to cache the prepared data in `$CWDFM_CACHE` or `~/.cache/cwdfm`. "read" uses
        existing entries but does not write new ones.
    progress: called now and then with the number of rows or documents read.

    For text only:

    part: load only "train", "valid" or "test" ("all" for a user's files), all of it as the
        held-out split, for evaluation.
    documents: what forms one document in plain text files: "file" (default), "paragraphs"
        separated by blank lines, or "lines".
    folder: the folder with the corpus's files. The default is `$CWDFM_DATA/NAME` if it exists, else
        the Hugging Face hub.
    streaming: stream the corpus from the hub instead of downloading it first.
    workers: number of tokenizing processes. With more than one, a script needs an
        `if __name__ == "__main__":` guard.

    Options that contradict prepared data raise an InputError.
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"name_or_path must be the name of a dataset ({_names()}) or a path, got "
            f"{describe(name_or_path)}"
        )
    if cache not in (True, False, "read"):
        raise InputError(f"cache must be True, False or 'read', got {describe(cache)}")
    path = Path(name_or_path)
    cut = {"length": length, "limit": limit, "seed": seed}
    hub = {"folder": folder, "streaming": streaming or None}
    if not reads_text(name_or_path, tokenizer):
        if given := given_options(part=part, documents=documents, **hub):
            raise InputError(
                f"{given} only for text, but {str(name_or_path)!r} is read as molecules; omit it "
                f"(a .txt file is text if a text tokenizer is given)",
                fields=("part", "documents", *hub),
            )
        if path.suffix == ".npz":
            return load_npz(path, tokenizer, column, **cut)
        dataset = find_molecules(name_or_path, column)
        return load_molecules(dataset, tokenizer, cache, progress, **cut)
    text_tokenizer = _text_tokenizer(name_or_path, tokenizer)
    if is_prepared(path):
        if given := given_options(column=column, documents=documents, **hub):
            raise InputError(
                f"{given} only for raw text, but {path} is already prepared; omit it, or "
                f"prepare the text again",
                fields=("column", "documents", *hub),
            )
        return load_prepared(path, text_tokenizer, part, **cut)
    corpus = find_corpus(
        name_or_path, column=column, documents=documents, folder=folder, streaming=streaming
    )
    return load_text(corpus, text_tokenizer, part, workers, cache, progress, **cut)


def reads_text(name_or_path: str | Path, tokenizer: Tokenizer | str | None) -> bool:
    """Whether `load` reads text rather than molecules."""
    if str(name_or_path) in DATASETS:
        return False
    path = Path(name_or_path)
    if str(name_or_path) in CORPORA or path.is_dir() or glob.has_magic(str(name_or_path)):
        return True
    if file_type(path) == ".txt":
        return isinstance(tokenizer, TextTokenizer | str)
    return path.is_file() and is_text(path)


def unknown_dataset(name_or_path: str | Path) -> InputError:
    """The error for a name that is neither a dataset nor a file."""
    return InputError(
        f"{str(name_or_path)!r} is neither a dataset nor a file; give one of {_names()}, or the "
        f"path of a file (molecules: .smi, .txt, .csv, .tsv, or a prepared .npz; text: .txt with a "
        f"text tokenizer, .jsonl, .parquet, .tar, or a folder; also compressed)"
    )


def _names() -> str:
    return ", ".join(map(repr, [*DATASETS, *CORPORA]))


def _text_tokenizer(
    name_or_path: str | Path, tokenizer: Tokenizer | str | None
) -> TextTokenizer | str | None:
    if tokenizer is None or isinstance(tokenizer, TextTokenizer | str):
        return tokenizer
    given = tokenizer.kind if isinstance(tokenizer, Tokenizer) else describe(tokenizer)
    raise InputError(
        f"{str(name_or_path)!r} is read as text, which requires a text tokenizer such as 'gpt2', "
        f"'bytes', 'chars' or a path, got a tokenizer of {given}; give other data or a text "
        f"tokenizer"
    )


def find_molecules(name_or_path: str | Path, column: str | None) -> Molecules:
    """The molecule dataset of a name or a file."""
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        if column is not None:
            raise InputError(
                f"column={column!r} is only for a user's tables, but {name_or_path!r} has a fixed "
                f"column; leave column out",
                fields=("column",),
            )
        return DATASETS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise unknown_dataset(name_or_path)
    return SmilesFile.of(path, column)


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
    """Prepare a molecule dataset, or read it from the cache."""
    length = dataset.length if length is None else length
    seed = SPLIT_SEED if seed is None else seed
    check_integer("length", length, 3, MAX_SMILES_LENGTH)
    check_integer("seed", seed, 0)
    if limit is not None:
        check_integer("limit", limit)
    if tokenizer is not None and not isinstance(tokenizer, SmilesTokenizer):
        advice = "use `tokenizer=None` to create one, or "
        raise InputError(
            f"{dataset.name} is read as molecules, which require a SmilesTokenizer, got "
            f"{summarize_tokenizer(tokenizer)}; {advice if isinstance(tokenizer, str) else ''}give "
            f"other data (text in a table must be .jsonl or .parquet)",
            fields=("tokenizer",) if isinstance(tokenizer, str) else (),
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
    """Load a prepared file; InputError if an option contradicts it."""
    data = TokenData.load(path)
    requested = {"length": length, "limit": limit, "column": column, "seed": seed}
    wrong, right = differences(requested, data)
    advice = f"use its values ({', '.join(right)}), or "
    if tokenizer is not None and tokenizer != data.tokenizer:
        wrong.append("with a different vocabulary than the one requested")
        advice = ""  # the vocabulary is that of a model, which cannot change it
    if wrong:
        raise InputError(
            f"{path} was prepared {', and '.join(wrong)}; {advice}give the raw data instead",
            fields=tuple(requested),
        )
    return data
