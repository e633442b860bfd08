"""The named corpora, and `find_corpus`, which also accepts a user's files.

To add a corpus, list it in `_ALL`.
"""

import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from cwdfm.data.dataset import Split
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.data.text.files import TextFiles, Unit
from cwdfm.data.text.hub import HubCorpus
from cwdfm.errors import reject_options

_TITLE = re.compile(r" ?= [^=](.*[^=])? = ?")
_THREE_PARTS = (("train", "train"), ("valid", "validation"), ("test", "test"))


def articles(rows: Iterable[str]) -> Iterator[str]:
    """Join the lines of WikiText into articles.

    An article starts at a first-level heading, ` = Title = `, that follows a blank line.
    """
    article: list[str] = []
    blank = True
    for row in rows:
        line = row.rstrip("\n")
        if blank and _TITLE.fullmatch(line) and any(map(str.strip, article)):
            yield "\n".join(article).strip("\n")
            article = []
        article.append(line)
        blank = not line.strip()
    if any(map(str.strip, article)):
        yield "\n".join(article).strip("\n")


@dataclass(frozen=True, kw_only=True)
class PythonTopics(Corpus):
    """Python's help topics: English prose shipped with Python, for offline trials.

    The texts of `help("STRINGS")` and other topics: about 80 documents, 500,000 characters.
    """

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        from pydoc_data.topics import topics

        split: Split | None = None if part is None else "valid"
        return (Document(text, split) for _, text in islice(sorted(topics.items()), limit))

    def origin(self) -> dict[str, Any]:
        return {"python": platform.python_version()}


_ALL: tuple[Corpus, ...] = (
    # 8,013,769 web pages linked from Reddit (Gokaslan and Cohen 2019), without a split. The last
    # 100,000 documents are used for validation, as is common in work on discrete diffusion.
    HubCorpus(name="openwebtext", path="Skylion007/openwebtext", held_out=100_000),
    # Educational web pages from Common Crawl (Penedo et al. 2024): the sample of 10 billion tokens.
    # It has no split, so one document in 20 is held out (see `pack`).
    HubCorpus(name="fineweb-edu", path="HuggingFaceFW/fineweb-edu", config="sample-10BT"),
    # Verified good Wikipedia articles (Merity et al. 2016). The hub has one row per line.
    *(
        HubCorpus(
            name=f"wikitext-{size}",
            path="Salesforce/wikitext",
            config=f"wikitext-{size}-raw-v1",
            parts=_THREE_PARTS,
            detokenizer="wikitext",
            unit="lines",
            group=articles,
        )
        for size in (2, 103)
    ),
    # Passages whose last word depends on the entire passage (Paperno et al. 2016); each is a
    # document. The original is lowercased and word-tokenized. The word tokenization is undone.
    HubCorpus(
        name="lambada",
        path="cimec/lambada",
        config="plain_text",
        parts=_THREE_PARTS,
        detokenizer="lambada",
        unit="lines",
    ),
    # 30 million news sentences in random order (Chelba et al. 2013); each is a document. As is
    # common, the test split on the hub is used for validation. The revision is the hub's conversion
    # to parquet, because `datasets` no longer runs the dataset's loading script.
    HubCorpus(
        name="lm1b",
        length=128,
        path="billion-word-benchmark/lm1b",
        revision="refs/convert/parquet",
        parts=(("train", "train"), ("valid", "test")),
        detokenizer="lm1b",
        unit="lines",
    ),
    # 100 million lowercase letters and spaces from Wikipedia (Mahoney 2006), a single text.
    # Published copies differ in their splits, so the text from the hub or a local folder
    # (`text8.txt`) is joined and split again.
    HubCorpus(
        name="text8",
        tokenizer="chars",
        length=256,
        path="afmck/text8",
        parts=(("all", "all"),),
        ranges=(("train", (0, 90)), ("valid", (90, 95)), ("test", (95, 100))),
    ),
    PythonTopics(name="python-topics", tokenizer="bytes", length=128),
)
CORPORA = {corpus.name: corpus for corpus in _ALL}


def find_corpus(
    name_or_path: str | Path,
    *,
    column: str | None = None,
    documents: Unit | None = None,
    folder: str | Path | None = None,
    streaming: bool = False,
) -> Corpus:
    """Find a corpus by name, or make one of a user's files; see `cwdfm.data.load` for options."""
    corpus = CORPORA.get(str(name_or_path))
    if corpus is None:
        named = f"for corpora by name ({', '.join(CORPORA)}), not for {str(name_or_path)!r}"
        reject_options(named, folder=folder, streaming=streaming)
        return TextFiles.of(name_or_path, column, documents)
    fixed = f"for a user's files, but {corpus.name!r} has a fixed format"
    reject_options(fixed, column=column, documents=documents)
    local = None if folder is None else Path(folder)
    if isinstance(corpus, HubCorpus):
        return replace(corpus, folder=local, streaming=streaming)
    off_hub = f"for corpora on the hub, which {corpus.name!r} is not"
    reject_options(off_hub, folder=folder, streaming=streaming)
    return corpus
