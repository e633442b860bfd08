"""`cwdfm prepare CORPUS --out PLACE`: tokenise and pack a corpus once, for many runs."""

import glob
from dataclasses import dataclass
from pathlib import Path

from cwdfm.cli.options import by_flags, cores, parse
from cwdfm.cli.progress import Progress
from cwdfm.data import CORPORA, DATASETS, TokenData, find_corpus, load, no_data, prepare, respelled
from cwdfm.data.randomized import check_spellings
from cwdfm.data.readers import is_table, kind_of
from cwdfm.data.text import is_prepared
from cwdfm.data.text.records import Unit
from cwdfm.errors import InputError
from cwdfm.files import check_output_file, check_writable


@dataclass(frozen=True)
class Options:
    """Prepare text into a folder of memory-mapped windows, or molecules into one .npz file.

    Text is a corpus by name (openwebtext, fineweb-edu, wikitext-103, ...), a file (.txt, .jsonl,
    .parquet, .tar; also .gz, .xz, .zst, .bz2), a folder, or a pattern in quotes. Interrupted, the
    same command goes on. Molecules are qm9, moses, or a file (.smi, .smiles, .csv, .tsv). What is
    written is given to other commands as their --data. They read raw data as well: this saves them
    the time, and settles how.
    """

    corpus: str  # CORPUS, the first word: a name, file, folder or pattern
    out: Path  # the folder to write; of molecules, the .npz file
    tokenizer: str | None = None  # gpt2, bytes, chars, a folder, a hub name; None: the corpus's own
    length: int | None = None  # tokens a sequence; None: the corpus's own
    column: str | None = None  # of tables, parquet, JSON lines; None for `smiles` or `text`
    spellings: int | None = None  # of molecules: random SMILES of each; None: the canonical one
    seed: int | None = None  # of the spellings; None for 0
    documents: Unit | None = None  # what is one document in plain text; None for the file
    part: str | None = None  # one part alone, such as test, to evaluate on
    folder: Path | None = None  # that holds the files of a corpus by name
    streaming: bool = False  # from the hub, without storing it first
    limit: int | None = None  # documents or molecules; None for all
    workers: int = cores()  # processes that tokenise
    force: bool = False  # of molecules: overwrite the file


def main(arguments: list[str]) -> None:
    """Parse, prepare, say what came of it."""
    first = bool(arguments) and not arguments[0].startswith("-")
    asked = ["--corpus", arguments[0], *arguments[1:]] if first else arguments
    options = parse("prepare CORPUS", asked, lambda missing: Options(missing, missing))
    with by_flags(Options):
        tokens = molecules(options) if is_molecules(options.corpus) else text(options)
    print(tokens.summary())
    print(f"written: {options.out}")


def is_molecules(corpus: str) -> bool:
    """Whether the corpus is one of molecules, by its name or ending."""
    path = Path(corpus)
    return corpus in DATASETS or is_table(path) or kind_of(path) in (".smi", ".smiles", ".npz")


def molecules(options: Options) -> TokenData:
    """Read, spell, write one file."""
    if options.out.suffix != ".npz":
        raise InputError(f"molecules are written as .npz, got --out {options.out}; add the ending")
    there = None if options.force else prepared_before(options.out)
    if there is None:
        check_output_file(options.out, force=options.force)
    only_text = {
        "--tokenizer": options.tokenizer,
        "--documents": options.documents,
        "--part": options.part,
        "--folder": options.folder,
        "--streaming": options.streaming or None,
    }
    if given := [flag for flag, value in only_text.items() if value is not None]:
        raise InputError(
            f"{', '.join(given)} is for text, and {options.corpus} holds molecules; leave it out"
        )
    if glob.has_magic(options.corpus):
        raise InputError(f"{options.corpus} is a pattern; give molecules as one file")
    if options.spellings is not None:
        check_spellings(options.spellings, options.seed or 0)
    elif options.seed is not None:
        raise InputError("--seed is that of --spellings, which is not given; leave it out")
    with Progress("rows", None) as progress:
        tokens = load(
            options.corpus,
            length=options.length,
            limit=options.limit,
            column=options.column,
            progress=progress.reach,
        )
    if there is not None:
        if same(there, tokens, options):
            return there
        raise InputError(
            f"{options.out} holds molecules that were prepared from something else or in another "
            f"way; give another name, or --force to overwrite it"
        )
    if options.spellings is not None:
        with Progress("molecules", None) as progress:
            tokens = respelled(
                tokens, options.spellings, seed=options.seed or 0, progress=progress.reach
            )
    tokens.save(options.out)
    return tokens


def prepared_before(out: Path) -> TokenData | None:
    """What lies there, where it is prepared data."""
    try:
        return TokenData.load(out) if out.is_file() else None
    except InputError:
        return None


def same(there: TokenData, tokens: TokenData, options: Options) -> bool:
    """Whether what lies there is what these molecules, spelled as asked for, would become."""
    spelled = {"spellings": options.spellings, "spelling_seed": options.seed or 0}
    source = tokens.source | (spelled if options.spellings is not None else {})
    return (there.name, there.source) == (tokens.name, source)


def text(options: Options) -> TokenData:
    """Tokenise and pack into a folder."""
    only_molecules = {
        "--spellings": options.spellings,
        "--seed": options.seed,
        "--force": options.force or None,
    }
    if given := [flag for flag, value in only_molecules.items() if value is not None]:
        raise InputError(
            f"{', '.join(given)} is for molecules, and {options.corpus} is read as text; leave it "
            f"out"
        )
    if is_prepared(Path(options.corpus)):
        raise InputError(
            f"{options.corpus} is prepared already, with its tokenizer and length; give it to "
            f"other commands as it is, or prepare the raw text"
        )
    named = options.corpus in CORPORA or glob.has_magic(options.corpus)
    if not named and not Path(options.corpus).exists():
        raise no_data(options.corpus)
    if options.out.is_file():
        raise InputError(f"{options.out} is a file; give a folder to write")
    if not options.out.exists():
        check_writable(options.out)
    corpus = find_corpus(
        options.corpus,
        CORPORA,
        column=options.column,
        documents=options.documents,
        folder=options.folder,
        streaming=options.streaming,
    )
    with Progress("documents", None) as progress:
        return prepare(
            corpus,
            corpus.tokenizer if options.tokenizer is None else options.tokenizer,
            corpus.length if options.length is None else options.length,
            options.out,
            workers=options.workers,
            part=options.part,
            limit=options.limit,
            progress=progress.reach,
        )
