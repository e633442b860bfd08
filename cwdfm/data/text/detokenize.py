"""Detokenizers for corpora that are distributed as space-separated words.

Each one undoes the conventions of its corpus. Lost information, such as LAMBADA's capitalization,
cannot be restored.
"""

import re
from collections.abc import Callable

_Rules = tuple[tuple[re.Pattern[str], str], ...]


def _rules(*pairs: tuple[str, str]) -> _Rules:
    return tuple((re.compile(pattern), new) for pattern, new in pairs)


# Only complete pairs within a line: a single quotation mark may open or close a quotation.
_PAIRS = _rules((r'" ([^"\n]*?) "', r'"\1"'))
_SHORT = _rules((r" n't\b", "n't"), (r" '(s|t|m|d|re|ve|ll|S|T|M|D|RE|VE|LL)\b", r"'\1"))
_PUNCTUATION = _rules(
    (r" ([,.;:!?%])(?=[\s\"'),.;:!?\]]|$)", r"\1"),
    (r"([(\[$£]) ", r"\1"),
    (r" ([)\]])", r"\1"),
)
_WIKITEXT = _rules((r" @([-,.])@ ", r"\1"), (r"(?<==) (?==)", ""), (r"(?m)^ | $", ""))
_LAMBADA = _rules((r"`` ?", '"'), (r" ?''", '"'), (r"` ", "'"))


def _apply(text: str, *tables: _Rules) -> str:
    for table in tables:
        for pattern, new in table:
            text = pattern.sub(new, text)
    return text


def wikitext(text: str) -> str:
    """Undo `@-@`, `@,@` and `@.@` in words, spaces at line ends, and spaced punctuation."""
    return _apply(text, _WIKITEXT, _PAIRS, _SHORT, _PUNCTUATION)


def lambada(text: str) -> str:
    """Undo Penn Treebank conventions, including double backticks for quotation marks."""
    return _apply(text, _LAMBADA, _SHORT, _PUNCTUATION)


def lm1b(text: str) -> str:
    """Undo Penn Treebank conventions, with plain quotation marks."""
    return _apply(text, _PAIRS, _SHORT, _PUNCTUATION)


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext": wikitext,
    "lambada": lambada,
    "lm1b": lm1b,
}
