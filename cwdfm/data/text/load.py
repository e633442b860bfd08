"""`cwdfm.data.load` for text: find the corpus, and prepare it or open the prepared windows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cwdfm.cache import Cache, cache_folder
from cwdfm.data.dataset import CacheMode, TokenData
from cwdfm.data.text import CORPORA
from cwdfm.data.text.corpus import Corpus
from cwdfm.data.text.fast_tokenizer import GPT2_SHA256, find_tokenizer
from cwdfm.data.text.files import TextFiles, Unit
from cwdfm.data.text.hub import HubCorpus
from cwdfm.data.text.prepared import SEED, describe, is_prepared, open_prepared, prepare
from cwdfm.data.text.text8 import Text8
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError


def find_corpus(
    name_or_path: str | Path,
    *,
    column: str | None = None,
    documents: Unit | None = None,
    folder: str | Path | None = None,
    streaming: bool = False,
) -> Corpus:
    """The corpus of a name, or of a user's files. The options are those of `cwdfm.data.load`."""
    for_files = given_options(column=column, documents=documents)
    for_hub = given_options(folder=folder, streaming=streaming or None)
    corpus = CORPORA.get(str(name_or_path))
    if corpus is None:
        if for_hub:
            raise InputError(
                f"{for_hub} only for corpora by name ({', '.join(CORPORA)}), got "
                f"{str(name_or_path)!r}; omit it",
                fields=("folder", "streaming"),
            )
        return TextFiles.of(name_or_path, column, documents)
    if for_files:
        raise InputError(
            f"{for_files} only for a user's files, but {corpus.name!r} has a fixed format; omit it",
            fields=("column", "documents"),
        )
    local = None if folder is None else Path(folder)
    if isinstance(corpus, Text8):
        return replace(corpus, hub=replace(corpus.hub, folder=local, streaming=streaming))
    if isinstance(corpus, HubCorpus):
        return replace(corpus, folder=local, streaming=streaming)
    if for_hub:
        raise InputError(
            f"{for_hub} only for corpora on the hub, which {corpus.name!r} is not; omit it",
            fields=("folder", "streaming"),
        )
    return corpus


def given_options(**options: object) -> str:
    """The options that are not None, as the subject of an error message; "" if there are none."""
    names = [f"{name}=" for name, value in options.items() if value is not None]
    return " and ".join(names) + (" are" if len(names) > 1 else " is") if names else ""


def load_text(
    corpus: Corpus,
    tokenizer: TextTokenizer | str | None,
    part: str | None,
    workers: int,
    cache: CacheMode,
    progress: Callable[[int], object] | None,
    *,
    length: int | None,
    limit: int | None,
    seed: int | None,
) -> TokenData:
    """Prepare a corpus in the cache folder, or open it from there."""
    found = corpus.tokenizer if tokenizer is None else tokenizer
    if isinstance(found, str) and found != "chars":
        found = find_tokenizer(found)
    length = corpus.length if length is None else length
    seed = SEED if seed is None else seed

    def make(out: Path) -> TokenData:
        return prepare(
            corpus,
            found,
            length,
            out,
            workers=workers,
            part=part,
            limit=limit,
            seed=seed,
            progress=progress,
        )

    if cache:
        source = describe(corpus, found, length, part=part, limit=limit, seed=seed)
        entry = Cache(cache_folder()).path(corpus.name, source)
        if cache != "read" or is_prepared(entry):
            return make(entry)
    with TemporaryDirectory(prefix="cwdfm-") as folder:
        return make(Path(folder) / corpus.name)  # the mapping keeps the deleted files alive


def load_prepared(
    folder: Path,
    tokenizer: TextTokenizer | str | None,
    part: str | None,
    *,
    length: int | None,
    limit: int | None,
    seed: int | None,
) -> TokenData:
    """Open a prepared folder; InputError if an option contradicts it."""
    data = open_prepared(folder)
    requested = {"length": length, "part": part, "limit": limit, "seed": seed}
    wrong, right = differences(requested, data)
    if not _same_tokenizer(tokenizer, data):
        wrong.append(
            f"with a different tokenizer ({summarize_tokenizer(data.tokenizer)}) than the one "
            f"requested ({summarize_tokenizer(tokenizer)})"
        )
        right += ["`tokenizer=None`"] if isinstance(tokenizer, str) else []
    if wrong:
        advice = f"use its values ({', '.join(right)}), or " if right else ""
        raise InputError(
            f"{folder} was prepared {', and '.join(wrong)}; {advice}prepare the text again with "
            f"the requested values",
            fields=(*requested, "tokenizer") if isinstance(tokenizer, str) else tuple(requested),
        )
    return data


def differences(requested: Mapping[str, object], data: TokenData) -> tuple[list[str], list[str]]:
    """Compare requested options with those of prepared data; None requests nothing.

    Returns descriptions of the differences, and the options as they were prepared, for a message.
    """
    has = {name: data.source.get(name) for name in requested}
    wrong = [name for name, value in requested.items() if value is not None and value != has[name]]
    return (
        [f"with {name}={has[name]!r}, requested was {requested[name]!r}" for name in wrong],
        [f"`{name}={has[name]}`" for name in wrong],
    )


def _same_tokenizer(requested: TextTokenizer | str | None, data: TokenData) -> bool:
    """Whether the requested tokenizer is that of the data. GPT-2's files are not required."""
    if not isinstance(requested, str):
        return requested is None or requested == data.tokenizer
    used = data.source["tokenizer"]
    if requested == "gpt2" and isinstance(used, dict) and used.get("sha256") == GPT2_SHA256:
        return True
    return used == requested or (
        requested != "chars" and find_tokenizer(requested) == data.tokenizer
    )


def summarize_tokenizer(tokenizer: Tokenizer | str | None) -> str:
    """A short description of a tokenizer for messages."""
    if isinstance(tokenizer, Tokenizer):
        return f"{tokenizer.kind!r}, {tokenizer.vocab_size:,} tokens"
    return repr(tokenizer)
