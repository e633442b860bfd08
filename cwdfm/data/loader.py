"""`load`: read a named dataset or a user's files as token sequences.

Prepared data is cached, so each dataset is canonicalized or tokenized only once.
"""

import glob
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from cwdfm.cache import cache_path, cached
from cwdfm.data.columns import with_columns
from cwdfm.data.dataset import FORMAT, CacheMode, TokenData
from cwdfm.data.molecule_files import PARQUET, has_molecules
from cwdfm.data.molecules import MoleculeOptions, Molecules, SmilesFile
from cwdfm.data.moses import MOSES
from cwdfm.data.qm9 import QM9
from cwdfm.data.readers import Progress, file_type
from cwdfm.data.smiles import REPRESENTATIONS, MoleculeTokenizer, SmilesTokenizer
from cwdfm.data.standardize import KEEP, Standardize
from cwdfm.data.text.corpora import CORPORA, find_corpus
from cwdfm.data.text.fast_tokenizer import GPT2_SHA256, FastTokenizer, find_tokenizer
from cwdfm.data.text.files import Unit, is_text
from cwdfm.data.text.prepared import (
    default_length,
    is_prepared,
    open_prepared,
    prepare,
    text_source,
)
from cwdfm.data.text.row_tokenizer import RowTokenizer
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError, check_choice, check_instance, describe, reject_options

DATASETS: dict[str, Molecules] = {dataset.name: dataset for dataset in (QM9, MOSES)}
Representation = Literal["smiles", "selfies"]


def load(
    name_or_path: str | Path,
    *,
    length: int | None = None,
    limit: int | None = None,
    column: str | None = None,
    seed: int | None = None,
    tokenizer: Tokenizer | str | None = None,
    representation: Representation | None = None,
    standardize: Standardize | None = None,
    condition: Sequence[str] = (),
    part: str | None = None,
    documents: Unit | None = None,
    folder: str | Path | None = None,
    streaming: bool = False,
    workers: int = 1,
    cache: CacheMode = True,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """Load a dataset or corpus by name, a user's files, or prepared data.

    Molecules: the datasets "qm9" and "moses", `.smi`, `.smiles`, `.csv`, `.tsv` and `.sdf` files,
    and prepared `.npz` files. Text: the named corpora, all other files, folders, glob patterns, and
    folders written by `prepare`. A `.txt` file is read as one SMILES per line, or as text if a text
    tokenizer is given. A `.parquet` file is read as molecules if it has a column `smiles` and no
    column `text`, or if a representation is given.

    length: tokens per sequence. The default depends on the dataset: 32 for QM9 and files of
        molecules, 64 for MOSES, 1024 for text, 128 for LM1B, and 256 for text8. Rows of text use
        the length of the longest row, up to 1024. For molecules the length includes `<bos>` and
        `<eos>`, and longer molecules are dropped. Text is cut into windows.
    limit: read only the first rows or documents (of each split, if the dataset defines one). Some
        datasets are sorted (QM9 by size), so use this for quick trials only.
    column: the column of a table or parquet file, or the field of JSON lines. The default is
        `smiles` for molecules and `text` for text.
    seed: seed of the split, 42 by default. If the dataset does not define a split, 5% of the data
        is held out.
    tokenizer: for molecules, a fixed vocabulary, such as that of an existing model; molecules with
        other tokens are dropped. For text, a tokenizer or a name for `find_tokenizer`; "chars"
        uses the characters of the corpus. None selects the corpus's default, usually GPT-2's.
    representation: for molecules, tokenize as "smiles" (default) or "selfies".
    standardize: for molecules, how to treat salts, mixtures, charges, isotopes and
        stereochemistry. By default everything is kept.
    condition: for molecules, the columns to keep for conditional training: columns of the table,
        fields of the .sdf file, or properties to compute (logp, sa, qed, weight, tpsa, rings). If
        both exist, the column is used. A column is numeric if all its values are numbers, with
        decimal points or decimal commas, else categorical. Molecules without a value are kept.
    cache: whether to cache the prepared data in `$CWDFM_CACHE` or `~/.cache/cwdfm`. "read" uses
        existing entries but does not write new ones.
    workers: number of processes for reading molecules and computing their properties, or for
        tokenization of text. With more than one, a script needs an `if __name__ == "__main__":`
        guard.
    progress: called periodically with the number of rows or documents read, then with the number
        of molecules whose properties are computed.

    For text only:

    part: load only "train", "valid" or "test" ("all" for a user's files), entirely as the held-out
        split, for evaluation.
    documents: what one document of a plain text file is: "file" (default), "paragraphs" separated
        by blank lines, or "lines". With "rows", each line, JSON or parquet record, or table row is
        its own sequence: text, end-of-text token, padding. Rows that are too long are dropped. The
        sequences of FASTA files are always rows.
    folder: the folder with the corpus's files. The default is `$CWDFM_DATA/NAME` if it exists, else
        the Hugging Face hub.
    streaming: stream the corpus from the hub instead of downloading it first.

    Options that contradict prepared data raise an InputError.
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"name_or_path must be the name of a dataset ({_names()}) or a path, got "
            f"{describe(name_or_path)}"
        )
    if cache not in (True, False, "read"):
        raise InputError(f"cache must be True, False or 'read', got {describe(cache)}")
    path, name = Path(name_or_path), str(name_or_path)
    if representation is not None:
        check_choice("representation", representation, tuple(REPRESENTATIONS))
    if standardize is not None:
        check_instance("standardize", standardize, Standardize, "Standardize(components='largest')")
    if documents is None and isinstance(tokenizer, RowTokenizer):
        prepared = path.suffix == ".npz" or is_prepared(path)
        documents = None if name in CORPORA or prepared else "rows"
    cut = given(length=length, limit=limit, seed=seed, part=part)
    text: dict[str, Any] = {"documents": documents, "folder": folder, "streaming": streaming}
    molecules: dict[str, Any] = {"representation": representation, "standardize": standardize}
    if reads_text(name, tokenizer, documents, representation):
        reason = f"for molecules, but {name!r} is read as text"
        reject_options(reason, **molecules, condition=" ".join(condition) or None)
        execution: dict[str, Any] = {"workers": workers, "progress": progress}
        return _load_text(name, tokenizer, cache, cut, execution, column=column, **text)
    reason = f"for text, but {name!r} is read as molecules (.txt is text with a text tokenizer)"
    reject_options(reason, part=part, **text)

    def report(stage: str, done: int, total: int | None) -> None:
        if progress is not None:
            progress(done)

    return load_molecules(
        name,
        tokenizer,
        cache,
        cut,
        column=column,
        condition=condition,
        workers=workers,
        progress=report,
        **molecules,
    )


def reads_text(
    name_or_path: str | Path,
    tokenizer: Tokenizer | str | None,
    documents: Unit | None = None,
    representation: Representation | None = None,
) -> bool:
    """Whether `load` reads text rather than molecules."""
    path, name = Path(name_or_path), str(name_or_path)
    if name in DATASETS:
        return False
    if file_type(path) == PARQUET and path.is_file() and documents is None:
        if representation is not None or isinstance(tokenizer, MoleculeTokenizer):
            return False
        return tokenizer is not None or not has_molecules(path)
    if name in CORPORA or path.is_dir() or glob.has_magic(name):
        return True
    if file_type(path) == ".txt":
        return documents is not None or isinstance(tokenizer, TextTokenizer | str)
    return path.is_file() and is_text(path, tables=documents == "rows")


def open_if_prepared(name_or_path: str | Path) -> TokenData | None:
    """Open the data at a path if it is prepared; None for other data."""
    path = Path(name_or_path)
    if str(name_or_path) in DATASETS:
        return None
    if path.suffix == ".npz" and path.is_file():
        return TokenData.load(path)
    return open_prepared(path) if is_prepared(path) else None


def unknown_dataset(name_or_path: str | Path) -> InputError:
    """The error for a name that is neither a dataset nor a file of a supported format."""
    exists = Path(name_or_path).is_file()
    problem = "has an unknown format" if exists else "is neither a dataset nor a file"
    return InputError(
        f"{str(name_or_path)!r} {problem}; pass one of {_names()}, or the path of a file "
        f"(molecules: .smi, .txt, .csv, .tsv, .sdf, .parquet with a column smiles, or a prepared "
        f".npz; text: .txt with a text tokenizer, .jsonl, .parquet, .fasta, .tar, or a folder; "
        f"also compressed)"
    )


def _names() -> str:
    return ", ".join(map(repr, [*DATASETS, *CORPORA]))


def find_molecules(name: str, column: str | None) -> Molecules:
    """The molecule dataset of a name or a file."""
    if name in DATASETS:
        reject_options(f"for a user's tables, but {name!r} has a fixed column", column=column)
        return DATASETS[name]
    if not Path(name).is_file():
        raise unknown_dataset(name)
    return SmilesFile.of(Path(name), column)


def load_molecules(
    name: str,
    tokenizer: Tokenizer | str | None,
    cache: CacheMode,
    cut: dict[str, Any],
    *,
    column: str | None,
    condition: Sequence[str],
    representation: Representation | None,
    standardize: Standardize | None,
    workers: int,
    progress: Progress,
) -> TokenData:
    """Prepare a molecule dataset, or read it from a file or the cache; see `load`.

    cut: those of `length`, `limit` and `seed` that are given.
    progress: called with the stage, the rows or molecules done, and their total if known.
    """
    execution: dict[str, Any] = {"workers": workers, "progress": progress}
    if (path := Path(name)).suffix == ".npz":
        rules = standardize and standardize.to_json()
        fixed = given(column=column, standardize=rules, representation=representation)
        return with_columns(_open(path, tokenizer, cut | fixed), condition, **execution)
    dataset = find_molecules(name, column)
    if tokenizer is not None and not isinstance(tokenizer, MoleculeTokenizer):
        raise _wrong_tokenizer(
            dataset.name, tokenizer, "molecules, which require a SmilesTokenizer"
        )
    tokenizer_class = (
        type(tokenizer) if tokenizer else REPRESENTATIONS[representation or SmilesTokenizer.kind]
    )
    if representation not in (None, tokenizer_class.kind):
        raise InputError(
            f"representation={representation!r} differs from that of the tokenizer, "
            f"{tokenizer_class.kind!r}; omit it, or omit the tokenizer",
            fields=("representation",),
        )
    options = MoleculeOptions(
        **{"length": dataset.length, **cut},
        representation=tokenizer_class,
        standardize=standardize or KEEP,
        condition=condition,
    )
    make = partial(dataset.prepare, options, tokenizer, **execution)
    if not cache:
        return make()
    fixed_tokens = dataset.tokens if tokenizer_class is SmilesTokenizer else None
    vocabulary = tokenizer.tokens if tokenizer is not None else fixed_tokens
    key = {"format": FORMAT, "key": [dataset.name, dataset.source(options), vocabulary]}
    entry = cache_path(dataset.name, key, ".npz")
    if cache == "read" and not entry.exists():
        return make()
    return cached(entry, make, read=TokenData.load, write=TokenData.save)


def _load_text(
    name: str,
    tokenizer: Tokenizer | str | None,
    cache: CacheMode,
    cut: dict[str, Any],
    execution: dict[str, Any],
    **options: Any,
) -> TokenData:
    """Prepare a corpus in the cache folder, or open prepared text.

    cut: those of `length`, `limit`, `seed` and `part` that are given.
    execution: `workers` and `progress`, which do not affect the result.
    options: of `find_corpus`.
    """
    if is_prepared(path := Path(name)):
        reject_options(f"for raw text, but {path} is already prepared", **options)
        return _open(path, tokenizer, cut)
    corpus = find_corpus(name, **options)
    tokenizer = corpus.tokenizer if tokenizer is None else tokenizer
    if isinstance(tokenizer, str) and tokenizer != "chars":
        tokenizer = find_tokenizer(tokenizer)
    if not isinstance(tokenizer, TextTokenizer | str):
        expected = "a text tokenizer such as 'gpt2', 'bytes', 'chars' or a path"
        raise _wrong_tokenizer(corpus.name, tokenizer, f"text, which requires {expected}")
    if "length" not in cut:
        cut["length"] = default_length(corpus, tokenizer, cut.get("part"), cut.get("limit"))

    def make(out: Path) -> TokenData:
        return prepare(corpus, tokenizer, out=out, **execution, **cut)

    if cache:
        key = text_source(corpus, tokenizer, **cut)
        entry = cache_path(corpus.name, key)
        if cache != "read" or is_prepared(entry):
            return make(entry)
    with TemporaryDirectory(prefix="cwdfm-") as folder:
        return make(Path(folder) / corpus.name)  # the mapping keeps the deleted files alive


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def _open(path: Path, tokenizer: Tokenizer | str | None, requested: dict[str, Any]) -> TokenData:
    """Open prepared data; raises InputError if an option that was passed differs from the data."""
    data = TokenData.load(path) if path.suffix == ".npz" else open_prepared(path)
    used = {name: data.source.get(name) for name in requested}
    if "length" in requested:
        used["length"] = data.length
    if "representation" in requested:
        used["representation"] = data.tokenizer.kind
    differing = [n for n, value in requested.items() if value != used[n]]
    reasons = [f"with {n}={used[n]!r}, but {requested[n]!r} was requested" for n in differing]
    values = [f"`{name}={used[name]}`" for name in differing]
    if not is_tokenizer_of(data, tokenizer):
        reasons.append(
            f"with a different tokenizer ({_summary(data.tokenizer)}) than the one requested "
            f"({_summary(tokenizer)})"
        )
        # If the tokenizer belongs to a model, changing other values does not help.
        values = [*values, "`tokenizer=None`"] if isinstance(tokenizer, str) else []
    if reasons:
        advice = f"use its values ({', '.join(values)}), or " if values else ""
        molecules = isinstance(tokenizer, MoleculeTokenizer)
        how = "for the model (`cwdfm prepare --tokenizer MODEL`)"
        how = how if molecules else "with the requested values"
        raise InputError(
            f"{path} was prepared {', and '.join(reasons)}; {advice}pass the raw data, or "
            f"prepare it again {how}",
            fields=(*requested, "tokenizer") if isinstance(tokenizer, str) else tuple(requested),
        )
    return data


def is_tokenizer_of(data: TokenData, requested: Tokenizer | str | None) -> bool:
    """Whether the data was prepared with the requested tokenizer. GPT-2's files are not needed."""
    used, tokenizer = data.source.get("tokenizer"), data.tokenizer  # None for molecules
    if not isinstance(requested, str) or used is None:
        return requested is None or requested == tokenizer
    if isinstance(tokenizer, RowTokenizer):
        tokenizer = tokenizer.inner
        used = used["of"] if isinstance(used, dict) else used
    if requested == "gpt2":
        if not isinstance(used, dict) or used.get("kind") != FastTokenizer.kind:
            return False
        if used.get("sha256") == GPT2_SHA256:
            return True
    return used == requested or (requested != "chars" and find_tokenizer(requested) == tokenizer)


def _wrong_tokenizer(name: str, tokenizer: object, expected: str) -> InputError:
    """The error for a tokenizer of the wrong kind."""
    is_name = isinstance(tokenizer, str)
    advice = "use `tokenizer=None` to create one, or " if is_name else ""
    return InputError(
        f"{name} is read as {expected}, got {_summary(tokenizer)}; {advice}pass other data (text "
        f"in a table must be .jsonl or .parquet)",
        fields=("tokenizer",) if is_name else (),
    )


def _summary(tokenizer: object) -> str:
    if isinstance(tokenizer, Tokenizer):
        return f"{tokenizer.kind!r}, {tokenizer.vocab_size:,} tokens"
    return repr(tokenizer)
