"""Datasets: one file each, all through `load`.

data = load("qm9")                                  # a dataset by name
data = load("mine.smi", tokenizer=data.tokenizer)   # molecules of one's own, QM9's vocabulary
data.save("qm9.npz"); load("qm9.npz")               # prepared: needs neither RDKit nor packages
data = respelled(data, 8)                           # every molecule in eight random spellings

data = load("wikitext-103", length=1024)            # a corpus by name, with its default tokenizer
data = load("novels.tar.xz", tokenizer="gpt2")      # text of one's own
prepare(TextFiles.of("novels.tar.xz"), "gpt2", 1024, "novels"); load("novels")
"""

import glob
from collections.abc import Callable
from pathlib import Path

from cwdfm.cache import cache_folder
from cwdfm.data.chemistry import canonical
from cwdfm.data.dataset import CacheMode, Split, TokenData
from cwdfm.data.molecule_loader import DATASETS, find_molecules, load_molecules, load_npz, no_data
from cwdfm.data.molecules import Molecules, Row
from cwdfm.data.packaged import PackagedMolecules
from cwdfm.data.randomized import respelled
from cwdfm.data.readers import kind_of
from cwdfm.data.smiles import SmilesTokenizer, split_smiles
from cwdfm.data.smiles_file import SmilesFile
from cwdfm.data.text import (
    CORPORA,
    END,
    ByteTokenizer,
    CharacterTokenizer,
    Corpus,
    Document,
    FastTokenizer,
    HubCorpus,
    TextFiles,
    TextTokenizer,
    find_tokenizer,
    is_prepared,
    prepare,
)
from cwdfm.data.text.load import find_corpus, load_prepared, load_text, options_given
from cwdfm.data.text.records import Unit, is_text
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.errors import InputError, describe

__all__ = [
    "CORPORA",
    "DATASETS",
    "END",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Corpus",
    "Document",
    "FastTokenizer",
    "HubCorpus",
    "Molecules",
    "PackagedMolecules",
    "Row",
    "SmilesFile",
    "SmilesTokenizer",
    "Split",
    "TextFiles",
    "TextTokenizer",
    "TokenData",
    "Tokenizer",
    "cache_folder",
    "canonical",
    "find_corpus",
    "find_tokenizer",
    "load",
    "no_data",
    "prepare",
    "reads_text",
    "respelled",
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
    tokenizer: Tokenizer | str | None = None,
    part: str | None = None,
    documents: Unit | None = None,
    folder: str | Path | None = None,
    streaming: bool = False,
    workers: int = 1,
    cache: CacheMode = True,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """A dataset or corpus by name, files of one's own, or what was prepared from them.

    Molecules are the datasets QM9 and MOSES, `.smi`, `.smiles`, `.csv` and `.tsv` files, and
    prepared `.npz`; text is the corpora by name, every other kind of file, folders, globs, and
    folders that `prepare` wrote. A `.txt` file is one SMILES a line, unless a tokenizer of text is
    given, by name or as an object: then it is text.

    length: tokens a sequence; None for the dataset's own (QM9 and files of molecules 32, MOSES 64,
        text 1024, LM1B 128, text8 256). `<bos>` and `<eos>` of molecules count, and longer
        molecules are left out and counted; text is cut.
    limit: read only so many rows or documents, the first ones; of each part, for a dataset with its
        own split. A dataset may be sorted (QM9 is, by size), so this is for trying things out.
    column: of a table or parquet, the field of JSON lines; None for `smiles`, for text `text`.
    seed: of the split; None for 42. 5% are held out where the dataset has no split of its own.
    tokenizer: for molecules a vocabulary to keep to, for a model that exists; molecules with other
        tokens are left out and counted. For text one of `find_tokenizer`'s, or its name; "chars"
        for the characters of the corpus; None for the corpus's default, GPT-2's (text8: "chars").
    cache: keep the prepared data under `$CWDFM_CACHE`, or `~/.cache/cwdfm`, and find them there;
        "read": find them there, and keep none.
    progress: is told how many rows or documents have been read, every so often.

    Of text only:
    part: "train", "valid" or "test" (files of one's own: "all"), all of it as `valid`, to evaluate.
    documents: what is one document in plain text files: "file" (the default), "paragraphs" between
        blank lines, or "lines".
    folder: that holds the corpus's files; None for `$CWDFM_DATA/NAME`, if there is one, else the
        hub.
    streaming: from the hub, without storing it first.
    workers: processes that tokenise; a script of your own then needs `if __name__ == "__main__":`.

    What was prepared is what it is: options that would change it are refused.
    """
    _check_asked(name_or_path, cache)
    path = Path(name_or_path)
    cut = {"length": length, "limit": limit, "seed": seed}
    if not reads_text(name_or_path, tokenizer):
        _refuse_for_molecules(
            name_or_path, part=part, documents=documents, folder=folder, streaming=streaming or None
        )
        if path.suffix == ".npz":
            return load_npz(path, tokenizer, column, **cut)
        dataset = find_molecules(name_or_path, column)
        return load_molecules(dataset, tokenizer, cache, progress, **cut)
    of_text = _of_text(name_or_path, tokenizer)
    if is_prepared(path):
        _refuse_for_prepared(
            path, column=column, documents=documents, folder=folder, streaming=streaming or None
        )
        return load_prepared(path, of_text, part, **cut)
    corpus = find_corpus(
        name_or_path,
        CORPORA,
        column=column,
        documents=documents,
        folder=folder,
        streaming=streaming,
    )
    return load_text(corpus, of_text, part, workers, cache, progress, **cut)


def _check_asked(name_or_path: str | Path, cache: CacheMode) -> None:
    """Refuse what is no name or path, and a cache that is no choice."""
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"give a dataset by name ({', '.join(map(repr, [*DATASETS, *CORPORA]))}) or by path, "
            f"got {describe(name_or_path)}"
        )
    if cache not in (True, False, "read"):
        raise InputError(f"cache must be True, False or 'read', got {describe(cache)}")


def _of_text(
    name_or_path: str | Path, tokenizer: Tokenizer | str | None
) -> TextTokenizer | str | None:
    """The tokenizer, if text can be read with it."""
    if tokenizer is None or isinstance(tokenizer, TextTokenizer | str):
        return tokenizer
    what = tokenizer.kind if isinstance(tokenizer, Tokenizer) else describe(tokenizer)
    raise InputError(
        f"text needs a tokenizer of text, such as 'gpt2', 'bytes', 'chars' or a path, and "
        f"{str(name_or_path)!r} is read as text, got one of {what}; give other data or "
        f"another tokenizer"
    )


def _refuse_for_molecules(name_or_path: str | Path, **only_text: object) -> None:
    """Refuse options of text for molecules; None is one that is not given."""
    if given := options_given(**only_text):
        raise InputError(
            f"{given} for text, and {str(name_or_path)!r} is read as molecules; leave that out (a "
            f".txt file is text where a tokenizer of text is given)"
        )


def _refuse_for_prepared(path: Path, **of_raw_text: object) -> None:
    """Refuse options of how raw text is read for a prepared folder; None is one not given."""
    if given := options_given(**of_raw_text):
        raise InputError(
            f"{given} for raw text, and {path} is prepared already; leave that out, or prepare the "
            f"text again with it"
        )


def reads_text(name_or_path: str | Path, tokenizer: Tokenizer | str | None) -> bool:
    """Whether `load` reads text; molecules else."""
    if str(name_or_path) in DATASETS:
        return False
    path = Path(name_or_path)
    if str(name_or_path) in CORPORA or path.is_dir() or glob.has_magic(str(name_or_path)):
        return True
    if kind_of(path) == ".txt":
        return isinstance(tokenizer, TextTokenizer | str)
    return path.is_file() and is_text(path)
