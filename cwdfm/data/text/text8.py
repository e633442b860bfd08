"""text8: 100 million lowercase letters and spaces from Wikipedia (Mahoney 2006).

A single text without documents. The first 90% are for training, the next 5% for validation and the
last 5% for testing. A local folder contains it as `text8.txt`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cwdfm.data.dataset import Split
from cwdfm.data.text.corpus import Corpus, Document
from cwdfm.data.text.hub import HubCorpus

_CUTS = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}  # percent


@dataclass(frozen=True, kw_only=True)
class Text8(Corpus):
    """The text of the hub or a local folder, joined and split again: copies are cut differently."""

    hub: HubCorpus

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(_CUTS)

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        text = "".join(document.text for document in self.hub.documents("all", limit)).strip("\n")
        for name in ("train", "valid") if part is None else (part,):
            start, stop = (len(text) * percent // 100 for percent in _CUTS[name])
            split: Split = "train" if part is None and name == "train" else "valid"
            yield Document(name, text[start:stop], split)

    def origin(self) -> dict[str, Any]:
        return self.hub.origin()


TEXT8 = Text8(
    name="text8",
    tokenizer="chars",
    length=256,
    hub=HubCorpus(name="text8", path="afmck/text8", parts=(("all", "all"),)),
)
