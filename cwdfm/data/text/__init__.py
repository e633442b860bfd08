"""Text corpora, one file each, and their preparation as memory-mapped windows of tokens."""

from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.data.text.fast_tokenizer import FastTokenizer, find_tokenizer
from cwdfm.data.text.files import TextFiles
from cwdfm.data.text.fineweb_edu import FINEWEB_EDU
from cwdfm.data.text.hub import HubCorpus
from cwdfm.data.text.lambada import LAMBADA
from cwdfm.data.text.lm1b import LM1B
from cwdfm.data.text.openwebtext import OPENWEBTEXT
from cwdfm.data.text.prepared import is_prepared, open_prepared, prepare
from cwdfm.data.text.python_topics import PYTHON_TOPICS
from cwdfm.data.text.text8 import TEXT8
from cwdfm.data.text.tokenizer import END, ByteTokenizer, CharacterTokenizer, TextTokenizer
from cwdfm.data.text.wikitext import WIKITEXT_2, WIKITEXT_103

_ALL: tuple[Corpus, ...] = (
    OPENWEBTEXT,
    FINEWEB_EDU,
    WIKITEXT_2,
    WIKITEXT_103,
    LAMBADA,
    LM1B,
    TEXT8,
    PYTHON_TOPICS,
)
CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in _ALL}

__all__ = [
    "CORPORA",
    "END",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Corpus",
    "Document",
    "FastTokenizer",
    "HubCorpus",
    "TextFiles",
    "TextTokenizer",
    "find_tokenizer",
    "is_prepared",
    "open_prepared",
    "prepare",
]
