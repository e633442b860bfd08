"""From rows of SMILES to TokenData: canonicalise, account for every row, split, pack."""

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cwdfm.data.chemistry import canonical
from cwdfm.data.dataset import Split, TokenData, Tokens, token_dtype
from cwdfm.data.readers import package_version
from cwdfm.data.smiles import SmilesTokenizer, split_smiles
from cwdfm.errors import InputError

HELD_OUT = 20  # one row in so many, rounded up
REASONS = ("blank", "unparsable", "too_long", "unknown_tokens", "duplicate")
# Raise it whenever the same rows would be prepared differently: cached files are keyed by it.
PREPARATION = 1

_EXAMPLES = 5  # shown for each reason
_TICK = 1000  # rows between calls of `progress`


class Row(NamedTuple):
    """One row of a dataset as it was read."""

    place: str  # for messages: "line 7", "qm9_part1.csv, line 7"
    smiles: str
    split: Split | None = None  # where the dataset brings its own split


@dataclass(frozen=True)
class Molecules(ABC):
    """A dataset of molecules. To add one, say where its rows come from."""

    name: str
    length: int  # the default: fits the dataset's molecules, with <bos> and <eos>
    tokens: tuple[str, ...] | None  # a fixed vocabulary; None: that of the rows

    @abstractmethod
    def rows(self, limit: int | None) -> Iterator[Row]:
        """The rows in their own order, at most `limit` of them (of each split, if it has some)."""

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """What identifies the raw data: package and version or file name, and SHA-256."""

    def source(self, *, length: int, limit: int | None, seed: int) -> dict[str, Any]:
        """Where prepared data come from and how they were made; the cache is keyed by it."""
        return {
            **self.origin(),
            "length": length,
            "limit": limit,
            "seed": seed,
            "rdkit": package_version("rdkit"),
            "preparation": PREPARATION,
        }

    def prepare(
        self,
        *,
        length: int,
        limit: int | None,
        seed: int,
        tokenizer: SmilesTokenizer | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> TokenData:
        """Read, canonicalise, split and pack; `progress` hears how many rows have been read.

        Molecules of one canonical SMILES are one molecule: the first row is kept and the others
        count as duplicates. So no held-out molecule is also trained on. (A row of a dataset's own
        held-out part counts as a duplicate, too, where the training part has the molecule.)
        """
        if tokenizer is None and self.tokens is not None:
            tokenizer = SmilesTokenizer(self.tokens)
        source = self.source(length=length, limit=limit, seed=seed)
        counts: Counter[str] = Counter(read=0)
        examples: dict[str, list[str]] = {}
        kept: dict[str, Split | None] = {}  # canonical SMILES, in order
        for row in self.rows(limit):
            counts["read"] += 1
            if progress is not None and counts["read"] % _TICK == 0:
                progress(counts["read"])
            smiles, reason, detail = judge(row.smiles, length, tokenizer, kept)
            if not reason:
                kept[smiles] = row.split
                continue
            counts[reason] += 1
            if len(shown := examples.setdefault(reason, [])) < _EXAMPLES:
                shown.append(f"{row.place}: {row.smiles.strip()[:80]}{detail}")
        report = {"read": counts["read"]} | {reason: counts[reason] for reason in REASONS}
        if len(kept) < 2:
            raise _too_few(self.name, len(kept), report, examples)
        tokenizer = tokenizer or SmilesTokenizer.build(kept)
        train, valid = split(list(kept.values()), seed)
        x = pack(kept, tokenizer, length)
        report |= {"kept": len(kept), "train": len(train), "valid": len(valid)}
        return TokenData(
            name=self.name,
            train=x[train],
            valid=x[valid],
            tokenizer=tokenizer,
            report=report,
            examples=examples,
            source=source,
        )


def judge(
    text: str, length: int, tokenizer: SmilesTokenizer | None, kept: Collection[str]
) -> tuple[str, str, str]:
    """(canonical SMILES, "", "") of a row to keep, else ("", reason, detail for the example)."""
    text = text.strip()
    if not text:
        return "", "blank", "(nothing there)"
    smiles = canonical(text)
    if smiles is None:
        return "", "unparsable", ""
    try:
        tokens = split_smiles(smiles)
    except InputError as error:
        return "", "unparsable", f" ({error})"
    if tokenizer is not None and (unknown := tokenizer.unknown(tokens)):
        return "", "unknown_tokens", f" (unknown: {' '.join(unknown)})"
    if len(tokens) + 2 > length:
        return "", "too_long", f" ({len(tokens)} tokens, <bos> and <eos> for length {length})"
    if smiles in kept:
        return "", "duplicate", f" (again {smiles})"
    return smiles, "", ""


def split(own: list[Split | None], seed: int) -> tuple[list[int], list[int]]:
    """Row numbers to train on and to hold out, both in random order.

    Where the dataset has no split of its own, the permutation of numpy's `default_rng(seed)` is
    cut: its first ceil(n / 20) rows are held out, the others are for training.
    """
    order = [int(i) for i in np.random.default_rng(seed).permutation(len(own))]
    if None in own:
        cut = -(-len(own) // HELD_OUT)
        return order[cut:], order[:cut]
    train = [i for i in order if own[i] == "train"]
    return train, [i for i in order if own[i] == "valid"]


def pack(smiles: Iterable[str], tokenizer: SmilesTokenizer, length: int) -> Tokens:
    """`<bos> tokens <eos> <pad> ...`, [n, length]."""
    flat = array("i")
    for text in smiles:
        flat.extend(tokenizer.pack(tokenizer.encode(text), length))
    x: Tokens = np.frombuffer(flat, dtype=np.intc).astype(token_dtype(tokenizer.vocab_size))
    return x.reshape(-1, length)


def _too_few(
    name: str, kept: int, report: dict[str, int], examples: dict[str, list[str]]
) -> InputError:
    counts = ", ".join(
        f"{key} {value:,}" for key, value in report.items() if value or key == "read"
    )
    shown = [line for lines in examples.values() for line in lines]
    return InputError(
        f"{name} has {kept} usable molecules, at least 2 are needed (one to train on, one to hold "
        f"out); rows: {counts}"
        + (f"; for example {shown[0]}" if shown else "")
        + ". One SMILES a line, or a CSV column of them, is expected; a larger length or "
        "another vocabulary may keep more"
    )
