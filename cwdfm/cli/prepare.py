"""`cwdfm prepare CORPUS --out DIR`: tokenise and pack a corpus once, for many runs."""

import os
from dataclasses import dataclass
from pathlib import Path

from cwdfm.cli.options import parse
from cwdfm.cli.progress import Progress
from cwdfm.data import CORPORA, find_corpus, prepare
from cwdfm.data.text.records import Unit
from cwdfm.errors import InputError


@dataclass(frozen=True)
class Options:
    """Prepare text into a folder of memory-mapped windows. Interrupted, the same command goes on.

    A corpus is one by name (openwebtext, fineweb-edu, wikitext-103, ...), a file (.txt, .jsonl,
    .parquet, .tar; also .gz, .xz, .zst, .bz2), a folder, or a pattern in quotes.
    """

    corpus: str  # a name, file, folder or pattern
    out: Path  # the folder to write
    tokenizer: str | None = None  # gpt2, bytes, chars, a folder, a hub name; None: the corpus's own
    length: int | None = None  # tokens a window; None: the corpus's own
    column: str | None = None  # of parquet and JSON lines; None for `text`
    documents: Unit | None = None  # what is one document in plain text; None for the file
    part: str | None = None  # one part alone, such as test, to evaluate on
    folder: Path | None = None  # that holds the files of a corpus by name
    streaming: bool = False  # from the hub, without storing it first
    limit: int | None = None  # documents; None for all
    workers: int = os.cpu_count() or 1  # processes that tokenise


def main(arguments: list[str]) -> None:
    """Parse, prepare, say what came of it."""
    first = bool(arguments) and not arguments[0].startswith("-")
    asked = ["--corpus", arguments[0], *arguments[1:]] if first else arguments
    options = parse("prepare CORPUS", asked, lambda missing: Options(missing, missing))
    if options.out.is_file():
        raise InputError(f"{options.out} is a file; give a folder to write")
    corpus = find_corpus(
        options.corpus,
        CORPORA,
        column=options.column,
        documents=options.documents,
        folder=options.folder,
        streaming=options.streaming,
    )
    with Progress("documents", None) as progress:
        tokens = prepare(
            corpus,
            options.tokenizer or corpus.tokenizer,
            options.length or corpus.length,
            options.out,
            workers=options.workers,
            part=options.part,
            limit=options.limit,
            progress=progress.reach,
        )
    print(tokens.summary())
    print(f"written: {options.out}")
