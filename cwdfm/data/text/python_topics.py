"""Python's help topics: English prose included in every Python, for trials without a network."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cwdfm.data.text.corpus import Corpus, Document


@dataclass(frozen=True, kw_only=True)
class PythonTopics(Corpus):
    """The texts of `help("STRINGS")` and others: about 80 documents, 500,000 characters."""

    @property
    def part_names(self) -> tuple[str, ...]:
        return ("all",)

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        from pydoc_data.topics import topics

        split = None if part is None else "valid"
        for name, text in islice(sorted(topics.items()), limit):
            yield Document(f"topic {name}", text, split)  # type: ignore[arg-type]

    def origin(self) -> dict[str, Any]:
        return {"python": platform.python_version()}


PYTHON_TOPICS = PythonTopics(name="python-topics", tokenizer="bytes", length=128)
