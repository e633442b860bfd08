"""WikiText-2 and WikiText-103: good articles of Wikipedia, by Merity et al. (2016).

The hub has a row for each line. A document is an article: it begins with a heading of the first
level, ` = Title = `, with a blank line before it.
"""

import re
from collections.abc import Iterable, Iterator

from cwdfm.data.text.hub import HubCorpus

_TITLE = re.compile(r" ?= [^=](.*[^=])? = ?")


def articles(rows: Iterable[str]) -> Iterator[str]:
    """Lines joined to articles."""
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


def _wikitext(size: int) -> HubCorpus:
    return HubCorpus(
        name=f"wikitext-{size}",
        path="Salesforce/wikitext",
        config=f"wikitext-{size}-raw-v1",
        parts=(("train", "train"), ("valid", "validation"), ("test", "test")),
        detokenizer="wikitext",
        unit="lines",
        group=articles,
    )


WIKITEXT_2 = _wikitext(2)
WIKITEXT_103 = _wikitext(103)
