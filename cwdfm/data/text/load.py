"""What `cwdfm.data.load` does for text: find the corpus, prepare it once, open it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cwdfm.cache import Cache, cache_folder
from cwdfm.data.dataset import CacheMode, TokenData
from cwdfm.data.text import gpt2
from cwdfm.data.text.corpus import Corpus
from cwdfm.data.text.files import TextFiles
from cwdfm.data.text.find import find_tokenizer
from cwdfm.data.text.hub import HubCorpus
from cwdfm.data.text.prepare import SEED, describe, prepare
from cwdfm.data.text.prepared import is_prepared, open_prepared
from cwdfm.data.text.records import Unit
from cwdfm.data.text.text8 import Text8
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError


def find_corpus(
    name_or_path: str | Path,
    corpora: dict[str, Corpus],
    *,
    column: str | None = None,
    documents: Unit | None = None,
    folder: str | Path | None = None,
    streaming: bool = False,
) -> Corpus:
    """A corpus by name, or that of files; options are those of `cwdfm.data.load`."""
    of_files = options_given(column=column, documents=documents)
    of_names = options_given(folder=folder, streaming=streaming or None)
    corpus = corpora.get(str(name_or_path))
    if corpus is None:
        if of_names:
            raise InputError(
                f"{of_names} for corpora by name ({', '.join(corpora)}), got "
                f"{str(name_or_path)!r}; leave that out"
            )
        return TextFiles.of(name_or_path, column, documents)
    if of_files:
        raise InputError(
            f"{of_files} for files of one's own, {corpus.name!r} knows its own; leave that out"
        )
    where = None if folder is None else Path(folder)
    if isinstance(corpus, Text8):
        return replace(corpus, hub=replace(corpus.hub, folder=where, streaming=streaming))
    if isinstance(corpus, HubCorpus):
        return replace(corpus, folder=where, streaming=streaming)
    if of_names:
        raise InputError(
            f"{of_names} for corpora of the hub, and {corpus.name!r} is none; leave that out"
        )
    return corpus


def options_given(**options: object) -> str:
    """The options that are given, as what a message begins with; empty for none."""
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
    """A corpus prepared under the cache folder, or opened where it lies there."""
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
        place = Cache(cache_folder()).path(corpus.name, source)
        if cache != "read" or is_prepared(place):
            return make(place)
    with TemporaryDirectory(prefix="cwdfm-") as folder:
        return make(Path(folder) / corpus.name)  # the mapping keeps what the folder loses


def load_prepared(
    folder: Path,
    tokenizer: TextTokenizer | str | None,
    part: str | None,
    *,
    length: int | None,
    limit: int | None,
    seed: int | None,
) -> TokenData:
    """A prepared folder is what it is: options that would change it are refused."""
    data = open_prepared(folder)
    asked = {"length": length, "part": part, "limit": limit, "seed": seed}
    wrong, right = differing(asked, data)
    if not _is_tokenizer(tokenizer, data):
        wrong.append(
            f"with another tokenizer ({brief(data.tokenizer)}) than the one asked for "
            f"({brief(tokenizer)})"
        )
        right += ["`tokenizer=None`"] if isinstance(tokenizer, str) else []
    if wrong:
        ask = f"ask for what it has ({', '.join(right)}), or " if right else ""
        raise InputError(
            f"{folder} was prepared {', and '.join(wrong)}; {ask}prepare the text again with what "
            f"is asked for"
        )
    return data


def differing(asked: Mapping[str, object], data: TokenData) -> tuple[list[str], list[str]]:
    """For a message: how data were prepared otherwise than asked for, and what they have instead;
    None asks for nothing."""
    has = {name: data.source.get(name) for name in asked}
    wrong = [name for name, value in asked.items() if value is not None and value != has[name]]
    return (
        [f"with {name}={has[name]!r}, asked for is {asked[name]!r}" for name in wrong],
        [f"`{name}={has[name]}`" for name in wrong],
    )


def _is_tokenizer(asked: TextTokenizer | str | None, data: TokenData) -> bool:
    """Whether the tokenizer asked for is the data's; GPT-2's is known without being at hand."""
    if not isinstance(asked, str):
        return asked is None or asked == data.tokenizer
    made_with = data.source["tokenizer"]
    if asked == "gpt2" and isinstance(made_with, dict) and made_with.get("sha256") == gpt2.SHA256:
        return True
    return made_with == asked or (asked != "chars" and find_tokenizer(asked) == data.tokenizer)


def brief(tokenizer: Tokenizer | str | None) -> str:
    """A tokenizer for messages: its vocabulary may be long."""
    if isinstance(tokenizer, Tokenizer):
        return f"{tokenizer.kind!r}, {tokenizer.vocab_size:,} kinds of tokens"
    return repr(tokenizer)
