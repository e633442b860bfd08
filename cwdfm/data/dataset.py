"""Token sequences ready for training, and the portable `.npz` file that stores them."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.readers import readable
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.errors import InputError, check_choice, check_instance, describe
from cwdfm.files import DAMAGED_ZIP, check_fields, check_regular, replacing, write_errors

FORMAT = 1  # version of the format of prepared data
SEED = 42  # default seed of the split
_MAGIC = "cwdfm.TokenData"
_ROWS = 1 << 12  # rows hashed at a time
_TOKEN_COUNTS = ("tokens", "filled")  # in the report of text; the others count documents

Split = Literal["train", "valid"]
SPLITS: tuple[Split, ...] = ("train", "valid")
CacheMode = bool | Literal["read"]  # "read": use existing cache entries, but write none
_METADATA = ("name", "report", "examples", "source")
Tokens = NDArray[np.int16] | NDArray[np.uint16] | NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TokenData:
    """Training and held-out sequences.

    Molecules: each row is `<bos> tokens <eos> <pad> ...`. The rows of a split are in random order,
    so any prefix is a random sample. `report` counts rows: `read` is the sum of `kept` and of the
    counts of all reasons for dropping rows, and `kept` = `train` + `valid`. Counts that are not
    passed to the constructor are set from the number of sequences. `changed_...` counts the rows
    that each standardization rule changed. `examples` has a few rows per reason.

    Text: each row is a window of documents joined by end-of-text tokens. The arrays are
    memory-mapped. Training windows are in corpus order, held-out windows in random order. See
    `cwdfm.data.text.pack` for the counts in `report`.
    """

    name: str
    train: Tokens  # [n, N]; integers of another type are converted to `token_dtype`
    valid: Tokens  # [m, N]
    tokenizer: Tokenizer
    report: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    # All that determines the data: package or file, sha256, seed, ...
    source: dict[str, Any] = field(default_factory=dict)
    # Values [n + m] of the training and then the held-out sequences, by name: float64 with NaN for
    # missing values, or strings with "".
    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_instance("tokenizer", self.tokenizer, Tokenizer, "ByteTokenizer()")
        size = self.tokenizer.vocab_size
        for split, x in self._arrays().items():
            integers = isinstance(x, np.ndarray) and x.dtype.kind in "iu"
            if not integers or x.ndim != 2 or x.shape[1:] != self.train.shape[1:]:
                raise InputError(
                    f"{split} must be an integer array [rows, length], with the same length for "
                    f"both splits, got {describe(x)}"
                )
            # Memory-mapped files were checked when written, and may be larger than memory.
            checked = isinstance(x, np.memmap) and x.dtype == token_dtype(size)
            if x.size and not checked and not (x.min() >= 0 and x.max() < size):
                raise InputError(
                    f"{split} contains ids from {x.min()} to {x.max()}, but the ids of the "
                    f"tokenizer are 0..{size - 1}; use the tokenizer that encoded the data"
                )
            object.__setattr__(self, split, x.astype(token_dtype(size), copy=False))
        if not len(self.train) and not len(self.valid):
            raise InputError("train and valid are empty; pass at least one sequence")
        train, valid = len(self.train), len(self.valid)
        for name, values in self.columns.items():
            if values.shape != (train + valid,) or values.dtype.kind not in "fU":
                raise InputError(
                    f"column {name!r} must hold a number or a string for each of the "
                    f"{train + valid} sequences, got {values.dtype} of shape {values.shape}"
                )
            if values.dtype.kind == "f" and np.isinf(values).any():
                raise InputError(
                    f"column {name!r} contains infinite values; NaN is a missing value"
                )
        counts = {"read": train + valid, "kept": train + valid, "train": train, "valid": valid}
        missing = {name: count for name, count in counts.items() if name not in self.report}
        object.__setattr__(self, "report", self.report | missing)

    @property
    def length(self) -> int:
        """The sequence length N, including special tokens."""
        return int(self.train.shape[1])

    def texts(self, split: Split, limit: int | None = None) -> list[str]:
        """The first `limit` sequences of a split, decoded; SMILES for molecules."""
        check_choice("split", split, SPLITS)
        return self.tokenizer.decode_rows(self._arrays()[split][:limit])

    def summary(self) -> str:
        """A readable summary: what was read, kept and left out, with examples."""
        kept, read = self.report["kept"], max(self.report["read"], 1)
        train, valid = len(self.train), len(self.valid)
        lines = [
            f"{self.name}: {kept:,} of {self.report['read']:,} {self.source.get('unit', 'rows')} "
            f"({kept / read:.1%}) kept; {train:,} training sequences, {valid:,} "
            f"({valid / (train + valid):.1%}) held out; length {self.length}, vocabulary of "
            f"{self.tokenizer.vocab_size:,} tokens"
        ]
        for reason, count in self.report.items():
            if reason not in ("read", "kept", *SPLITS) and count:
                share = "" if reason in _TOKEN_COUNTS else f" ({count / read:.1%})"
                lines.append(f"  {reason}: {count:,}{share}")
                advice = ["a larger length (--length) keeps them"] * (reason == "too_long")
                lines += [f"    {example}" for example in self.examples.get(reason, advice)]
        return "\n".join(lines)

    @cached_property  # hashing large data takes minutes
    def fingerprint(self) -> str:
        """The SHA-256 of the sequences and the tokenizer, the same on all machines."""
        columns = {"columns": list(self.columns)} if self.columns else {}
        return _checksum({"tokenizer": self.tokenizer.identity, **columns}, self._members())

    def _arrays(self) -> dict[Split, Tokens]:
        return {"train": self.train, "valid": self.valid}

    def _members(self) -> dict[str, NDArray[Any]]:
        columns = {f"column_{i}": values for i, values in enumerate(self.columns.values())}
        return {"train": self.train, "valid": self.valid, **columns}

    def save(self, path: str | Path) -> None:
        """Write a `.npz` file atomically. Loading it requires neither RDKit nor other packages."""
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(
                f"prepared data are stored as .npz files, got {str(path)!r}; add the suffix"
            )
        metadata = {"magic": _MAGIC, "format": FORMAT, "tokenizer": self.tokenizer.to_json()}
        metadata |= {name: getattr(self, name) for name in _METADATA}
        if self.columns:
            metadata["columns"] = list(self.columns)
        metadata["sha256"] = _checksum(metadata, self._members())
        with write_errors(path), replacing(path) as temporary, temporary.open("xb") as file:
            stored = np.array(json.dumps(metadata))
            np.savez_compressed(file, **self._members(), metadata=stored)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`.

        Raises InputError if it is damaged or was not written by cwdfm.
        """
        path = Path(path)
        metadata, arrays = _read(path)
        if metadata.pop("sha256", None) != _checksum(metadata, arrays):
            raise damaged(path, "wrong checksum")
        check_metadata(path, metadata, examples=dict)
        tokenizer = tokenizer_from_json(metadata.get("tokenizer"))
        fields = {name: metadata[name] for name in _METADATA}
        columns = zip(metadata.get("columns", []), list(arrays.values())[2:], strict=True)
        train, valid = arrays["train"], arrays["valid"]
        return cls(train=train, valid=valid, tokenizer=tokenizer, columns=dict(columns), **fields)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of int16, uint16 and int32 that can represent every id."""
    if vocab_size <= 1 << 15:
        return np.dtype(np.int16)
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def _checksum(metadata: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, x in arrays.items():
        dtype = x.dtype.newbyteorder("<")
        digest.update(f"{name} {dtype.str} {x.shape}".encode())
        for start in range(0, len(x), _ROWS):  # in chunks: the array may be larger than memory
            digest.update(np.ascontiguousarray(x[start : start + _ROWS], dtype=dtype).data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the metadata and the arrays of a `.npz` file."""
    try:
        with readable(path):
            check_regular(path)
        with readable(path), path.open("rb") as file:
            if file.read(4) not in (b"PK\x03\x04", b""):  # np.load also reads other formats
                raise _not_prepared(path)
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                if "metadata" not in members.files:
                    raise _not_prepared(path)
                metadata = json.loads(str(members["metadata"]))
                check_format(path, metadata, _MAGIC)
                columns = metadata.get("columns", [])
                if not isinstance(columns, list) or not all(isinstance(c, str) for c in columns):
                    raise damaged(path, "its columns are not a list of names")
                names = (*SPLITS, *(f"column_{i}" for i in range(len(columns))))
                return metadata, {name: members[name] for name in names}
    except InputError:
        raise
    except DAMAGED_ZIP as error:
        raise damaged(path, str(error)) from error


def check_format(path: Path, metadata: Any, magic: str) -> None:
    """Raise an InputError unless this version can read the format of the prepared data."""
    if not isinstance(metadata, dict) or metadata.get("magic") != magic:
        raise _not_prepared(path)
    version = metadata.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{path} has format {version}, but this version of cwdfm reads formats up to {FORMAT}; "
            f"upgrade cwdfm, or prepare the data again with this version"
        )


def check_metadata(path: Path, metadata: dict[str, Any], **more: type) -> None:
    """Raise an InputError if a required field of prepared data is missing or has the wrong type."""
    try:
        check_fields("its metadata", metadata, name=str, report=dict, source=dict, **more)
        check_fields("its report", metadata["report"], kept=int, read=int, train=int, valid=int)
        if not all(type(count) is int for count in metadata["report"].values()):
            raise ValueError("its report has values that are not integers")
    except ValueError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, reason: str) -> InputError:
    """The error for damaged or truncated data at `path`."""
    return InputError(
        f"{path} is damaged: {reason}; copy it again, or delete it and prepare the data again"
    )


def _not_prepared(path: Path) -> InputError:
    return InputError(
        f"{path} was not prepared by cwdfm; pass a .npz file written by TokenData.save, a folder "
        f"written by `prepare`, or raw data"
    )
