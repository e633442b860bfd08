"""From words between spaces back to text, for corpora that come tokenised into words.

Each undoes the marks that its corpus's tokeniser is known to make; what it cannot know, such as the
capitals that LAMBADA lost, stays lost.
"""

import re
from collections.abc import Callable

_Rules = tuple[tuple[re.Pattern[str], str], ...]


def _rules(*pairs: tuple[str, str]) -> _Rules:
    return tuple((re.compile(pattern), new) for pattern, new in pairs)


# Whole pairs only, within a line: one quotation mark alone does not say which side it belongs to.
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
    """`@-@`, `@,@` and `@.@` within words, spaces at line ends, and Moses's spaced punctuation."""
    return _apply(text, _WIKITEXT, _PAIRS, _SHORT, _PUNCTUATION)


def lambada(text: str) -> str:
    """Penn Treebank marks: two backticks and two apostrophes for quotation marks, n't, 's."""
    return _apply(text, _LAMBADA, _SHORT, _PUNCTUATION)


def lm1b(text: str) -> str:
    """Penn Treebank marks with plain quotation marks."""
    return _apply(text, _PAIRS, _SHORT, _PUNCTUATION)


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "wikitext": wikitext,
    "lambada": lambada,
    "lm1b": lm1b,
}
