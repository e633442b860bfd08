"""`cwdfm prepare CORPUS --out PATH`: tokenize and pack a dataset once, for use in many runs."""

import glob
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from cwdfm.cli.options import by_flags, cores, parse, positional_first
from cwdfm.cli.progress import Progress, stages
from cwdfm.data import (
    CORPORA,
    DATASETS,
    Standardize,
    TokenData,
    find_corpus,
    is_prepared,
    prepare,
    randomize,
    reads_text,
    unknown_dataset,
)
from cwdfm.data.loader import Representation, given, load_molecules
from cwdfm.data.molecule_files import PARQUET, SDF
from cwdfm.data.randomized import check_randomized, randomized_source
from cwdfm.data.readers import file_type, is_table
from cwdfm.data.text.files import Unit, is_text
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.distributed import output_file
from cwdfm.errors import InputError, reject_options
from cwdfm.files import check_output_file, check_writable


@dataclass(frozen=True)
class Options:
    """Tokenize text into a folder of memory-mapped sequences, or molecules into a .npz file.

    Text can be the name of a corpus (openwebtext, fineweb-edu, wikitext-103, ...), a file, a folder
    or a quoted glob pattern. Files are txt, jsonl, parquet, fasta or tar, and may be compressed as
    gz, xz, zst or bz2. Run the same command again to resume an interrupted preparation.

    Molecules can be qm9, moses, or a file (smi, csv, tsv, sdf, or parquet with a column `smiles`).

    Pass the result to other commands as --data. They also accept raw data, but preparing it first
    saves time and guarantees the same options in every run.
    """

    corpus: str  # CORPUS (first argument): a name, file, folder or glob pattern
    out: Path  # output folder for text, output .npz file for molecules
    # Text: gpt2, bytes, chars, a folder or a hub name; default: that of the corpus, usually gpt2.
    # Molecules: the trained model whose vocabulary and length to use, to fine-tune it.
    tokenizer: str | None = None
    # Tokens per sequence; default: 1024 for text, or the longest sequence for molecules and rows.
    length: int | None = None
    column: str | None = None  # column to read, or field of JSON lines; default: `smiles` or `text`
    # Representation of molecules: smiles (default) or selfies. Setting it also makes any parquet
    # file be read as molecules.
    representation: Representation | None = None
    # Conditions to train with: columns of a table, fields of an .sdf file, or computed properties
    # of molecules (logp, qed, sa, tpsa, rings, weight).
    condition: tuple[str, ...] = ()
    # How to treat salts, mixtures, charges, isotopes and stereochemistry of molecules.
    standardize: Standardize = field(default_factory=Standardize)
    # Number of randomized SMILES per molecule; default: only canonical SMILES.
    randomized: int | None = None
    seed: int | None = None  # seed of the randomized SMILES (default: 0)
    # What one document of plain text is; default: the whole file. With rows, each line, record or
    # table row becomes its own sequence.
    documents: Unit | None = None
    part: str | None = None  # prepare only this part, such as test, for evaluation
    folder: Path | None = None  # folder with downloaded files of the named corpus
    streaming: bool = False  # stream the corpus from the hub instead of downloading it first
    limit: int | None = None  # maximum number of documents or molecules; default: all
    workers: int = cores()  # processes for reading molecules, their properties, and tokenization
    force: bool = False  # overwrite an existing .npz file


def main(arguments: list[str]) -> None:
    """Run the command."""
    argv = positional_first("corpus", arguments)
    options = parse("prepare CORPUS", argv, lambda missing: Options(missing, missing))
    with by_flags(Options):
        data = _molecules(options) if _is_molecules(options) else _text(options)
    print(data.summary())
    print(f"written: {options.out}")


def _is_molecules(options: Options) -> bool:
    """Whether the corpus is a molecule dataset, based on its name, suffix and options."""
    path = Path(options.corpus)
    if is_table(path):
        return options.documents != "rows"
    if file_type(path) == PARQUET:
        requested = options.tokenizer, options.documents, options.representation
        return path.is_file() and not reads_text(path, *requested)
    suffixes = (".smi", ".smiles", ".npz", *SDF)
    return options.corpus in DATASETS or file_type(path) in suffixes


def _molecules(options: Options) -> TokenData:
    """Check the options and write molecules to a .npz file."""
    if options.out.suffix != ".npz":
        raise InputError(f"for molecules, --out must end in .npz, got {options.out}")
    names = ("documents", "part", "folder", "streaming")
    text_only = {name: getattr(options, name) for name in names}
    reject_options(f"for text, but {options.corpus} contains molecules", **text_only)
    if glob.has_magic(options.corpus):
        raise InputError(f"{options.corpus} is a glob pattern; pass molecules as a single file")
    if options.randomized is not None:
        check_randomized(options.randomized, options.seed or 0)
    elif options.seed is not None:
        raise InputError("--seed is only for randomized SMILES; omit it, or set --randomized")
    tokenizer = None
    if options.tokenizer is not None:
        # Imported here because it takes seconds.
        from cwdfm.pretrained.model import load_trained

        model = load_trained(options.tokenizer)
        tokenizer = model.tokenizer
        options = replace(options, length=options.length or model.length)
    with output_file(options.out, force=True):
        return _write_molecules(options, tokenizer)


def _write_molecules(options: Options, tokenizer: Tokenizer | None) -> TokenData:
    """Write the file, unless it already has the requested content. The caller holds its lock."""
    existing = None
    if options.out.is_file() and not options.force:
        with suppress(InputError):  # not a dataset; check_output_file reports it below
            existing = TokenData.load(options.out)
    if existing is None:
        check_output_file(options.out, force=options.force)
    with stages() as progress:
        data = load_molecules(
            options.corpus,
            tokenizer=tokenizer,
            cache=True,
            cut=given(length=options.length, limit=options.limit),
            column=options.column,
            representation=options.representation,
            standardize=options.standardize,
            condition=options.condition,
            workers=options.workers,
            progress=progress,
        )
    if existing is not None:
        source = data.source
        if options.randomized is not None:
            source = source | randomized_source(options.randomized, options.seed or 0)
        same = (existing.name, existing.source) == (data.name, source)
        if same and existing.tokenizer == data.tokenizer:
            return existing
        raise InputError(
            f"{options.out} contains molecules prepared from different data or with different "
            f"options; choose a different path, or overwrite it with --force"
        )
    if options.randomized is not None:
        count, seed = options.randomized, options.seed or 0
        with Progress("randomizing", len(data.train) + len(data.valid)) as shown:
            data = randomize(data, count, seed=seed, progress=shown.reach)
    data.save(options.out)
    return data


def _text(options: Options) -> TokenData:
    """Tokenize and pack text into a folder."""
    names = ("representation", "randomized", "seed", "force")
    molecules_only = {name: getattr(options, name) for name in names}
    molecules_only |= options.standardize.to_json()
    molecules_only |= {"condition": " ".join(options.condition) or None}
    reject_options(f"for molecules, but {options.corpus} is read as text", **molecules_only)
    if is_prepared(Path(options.corpus)):
        raise InputError(
            f"{options.corpus} is already prepared, with its own tokenizer and length; pass it "
            f"to other commands as it is, or prepare the raw text instead"
        )
    path = Path(options.corpus)
    is_name = options.corpus in CORPORA or glob.has_magic(options.corpus)
    if not is_name and not path.is_dir() and not (path.is_file() and is_text(path, tables=True)):
        raise unknown_dataset(options.corpus)
    if options.out.is_file():
        raise InputError(f"{options.out} is a file; pass the path of a folder")
    if not options.out.exists():
        check_writable(options.out)
    corpus = find_corpus(
        options.corpus,
        column=options.column,
        documents=options.documents,
        folder=options.folder,
        streaming=options.streaming,
    )
    with Progress("documents", None) as progress:
        return prepare(
            corpus,
            corpus.tokenizer if options.tokenizer is None else options.tokenizer,
            options.length,
            options.out,
            workers=options.workers,
            part=options.part,
            limit=options.limit,
            progress=progress.reach,
        )
