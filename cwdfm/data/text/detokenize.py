"""Detokenizers for corpora that are distributed as space-separated words.

Each one undoes the conventions of its corpus. Lost information, such as LAMBADA's capitalization,
cannot be restored.
"""

import re

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


DETOKENIZERS: dict[str, _Rules] = {
    # `@-@`, `@,@` and `@.@` in words, spaces at line ends, spaced punctuation.
    "wikitext": (*_WIKITEXT, *_PAIRS, *_SHORT, *_PUNCTUATION),
    # Penn Treebank conventions, including double backticks for quotation marks.
    "lambada": (*_LAMBADA, *_SHORT, *_PUNCTUATION),
    # Penn Treebank conventions, with plain quotation marks.
    "lm1b": (*_PAIRS, *_SHORT, *_PUNCTUATION),
}


def detokenize(text: str, name: str | None) -> str:
    """Undo the tokenization into words by the conventions of a corpus; None for none."""
    for pattern, new in DETOKENIZERS[name] if name else ():
        text = pattern.sub(new, text)
    return text
