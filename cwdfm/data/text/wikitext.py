"""WikiText-2 and WikiText-103: verified good Wikipedia articles (Merity et al. 2016).

The hub has one row per line. A document is an article; it starts with a first-level heading,
` = Title = `, after a blank line.
"""

import re
from collections.abc import Iterable, Iterator

from cwdfm.data.text.hub import HubCorpus

_TITLE = re.compile(r" ?= [^=](.*[^=])? = ?")


def articles(rows: Iterable[str]) -> Iterator[str]:
    """Join lines to articles."""
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
