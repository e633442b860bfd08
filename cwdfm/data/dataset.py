"""Token sequences ready for training, and the one portable file that holds them."""

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.readers import readable
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.errors import InputError
from cwdfm.files import replacing, write_advice

FORMAT = 1
_MAGIC = "cwdfm.TokenData"
_ARRAYS = ("train", "valid")
_ROWS = 1 << 12  # at a time

Split = Literal["train", "valid"]
CacheMode = bool | Literal["read"]  # "read": use existing entries, write none
Tokens = NDArray[np.int16] | NDArray[np.uint16] | NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TokenData:
    """Training and held-out sequences.

    Molecules: each `<bos> tokens <eos> <pad> ...`, the rows of each split in random order, so that
    a prefix of them is a fair sample. `report` counts rows: `read` is the sum of all the others but
    `kept`, and `kept` = `train` + `valid`. For each reason to leave rows out, `examples` shows a
    few of them.

    Text: windows over documents joined by end tokens, memory-mapped; those to train on in the
    corpus's order, the held-out ones in random order. `report` says what each of its counts is
    (see `cwdfm.data.text.pack`).
    """

    name: str
    train: Tokens  # [n, N], of `token_dtype`
    valid: Tokens  # [m, N]
    tokenizer: Tokenizer
    report: dict[str, int]
    examples: dict[str, list[str]]
    source: dict[str, Any]  # what it was made from and how: package or file, sha256, seed, ...

    def __post_init__(self) -> None:
        size = self.tokenizer.vocab_size
        for split, x in (("train", self.train), ("valid", self.valid)):
            if x.ndim != 2 or x.dtype != token_dtype(size) or x.shape[1] != self.train.shape[1]:
                raise InputError(
                    f"{split} must be a {token_dtype(size)} array [rows, length], both splits of "
                    f"one length, got {x.dtype} of shape {x.shape}"
                )
            # A mapped file was checked when it was written, and may be larger than the memory.
            if x.size and not isinstance(x, np.memmap) and not (x.min() >= 0 and x.max() < size):
                raise InputError(
                    f"{split} holds ids from {x.min()} to {x.max()}, the tokenizer has "
                    f"0..{size - 1}; encode the data with the tokenizer that goes with it"
                )
        if not len(self.train) and not len(self.valid):
            raise InputError("train and valid are empty; give at least one sequence")

    @property
    def length(self) -> int:
        """N, special tokens included."""
        return int(self.train.shape[1])

    def texts(self, split: Split, limit: int | None = None) -> list[str]:
        """The decoded sequences of a split, the first `limit`; for molecules, SMILES."""
        if split not in _ARRAYS:
            raise InputError(f"split must be one of 'train', 'valid', got {split!r}")
        rows: Tokens = self.train if split == "train" else self.valid
        return [self.tokenizer.decode(row) for row in rows[:limit].tolist()]

    def summary(self) -> str:
        """What was read, kept and left out, for people: one line a count, examples below it."""
        head = (
            f"{self.name}: {self.report['kept']:,} of {self.report['read']:,} "
            f"{self.source.get('unit', 'rows')} kept; {len(self.train):,} sequences to train on, "
            f"{len(self.valid):,} held out; length {self.length}, "
            f"{self.tokenizer.vocab_size:,} kinds of tokens"
        )
        lines = [head]
        for reason, count in self.report.items():
            if reason not in ("read", "kept", *_ARRAYS) and count:
                lines.append(f"  {reason}: {count:,}")
                lines += [f"    {example}" for example in self.examples.get(reason, [])]
        return "\n".join(lines)

    @cached_property  # hashing takes minutes where the data are large
    def fingerprint(self) -> str:
        """A SHA-256 of the sequences and the tokenizer: what a model sees, on every machine."""
        return _checksum({"tokenizer": self.tokenizer.identity}, self._arrays())

    def _arrays(self) -> dict[str, Tokens]:
        return {"train": self.train, "valid": self.valid}

    def _metadata(self) -> dict[str, Any]:
        return {
            "magic": _MAGIC,
            "format": FORMAT,
            "name": self.name,
            "tokenizer": self.tokenizer.to_json(),
            "report": self.report,
            "examples": self.examples,
            "source": self.source,
        }

    def save(self, path: str | Path) -> None:
        """Write one `.npz` file: the old file or the whole new one, never a part.

        It loads wherever numpy does; RDKit and the dataset's package are not needed.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"prepared data are stored as .npz, got {str(path)!r}; add the ending")
        metadata = self._metadata()
        metadata["sha256"] = _checksum(metadata, self._arrays())
        try:
            with replacing(path) as part, part.open("xb") as file:
                np.savez_compressed(
                    file,
                    train=self.train,
                    valid=self.valid,
                    metadata=np.array(json.dumps(metadata)),
                )
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write {path}: {error.strerror or error}; what was there before is "
                f"untouched; {write_advice(error)}"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote; a damaged or foreign one is refused."""
        path = Path(path)
        metadata, arrays = _read(path)
        if metadata.pop("sha256", None) != _checksum(metadata, arrays):
            raise InputError(f"{path} is damaged: its checksum is wrong; prepare or copy it again")
        return cls(
            name=metadata["name"],
            train=arrays["train"],
            valid=arrays["valid"],
            tokenizer=tokenizer_from_json(metadata["tokenizer"]),
            report=metadata["report"],
            examples=metadata["examples"],
            source=metadata["source"],
        )


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of int16, uint16 and int32 that holds every id."""
    if vocab_size <= 1 << 15:
        return np.dtype(np.int16)
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def _checksum(metadata: dict[str, Any], arrays: dict[str, Tokens]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in _ARRAYS:
        x = arrays[name]
        little = x.dtype.newbyteorder("<")
        digest.update(f"{name} {little.str} {x.shape}".encode())
        for start in range(0, len(x), _ROWS):  # in parts, for files larger than the memory
            digest.update(np.ascontiguousarray(x[start : start + _ROWS], dtype=little).data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tokens]]:
    """Metadata and arrays, or an InputError that says what is wrong with the file."""
    try:
        with readable(path), path.open("rb") as file:
            if not (start := file.read(4)):
                raise InputError(f"{path} is empty; prepare or copy it again")
            if start != b"PK\x03\x04":
                raise _foreign(path)
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                if "metadata" not in members.files:
                    raise _foreign(path)
                metadata = json.loads(str(members["metadata"]))
                _check_format(path, metadata)
                return metadata, {name: members[name] for name in _ARRAYS}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{path} is damaged or cut short ({error}); prepare or copy it again"
        ) from error


def _check_format(path: Path, metadata: Any) -> None:
    if not isinstance(metadata, dict) or metadata.get("magic") != _MAGIC:
        raise _foreign(path)
    found = metadata.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise InputError(
            f"{path} has format {found}, this release reads up to {FORMAT}; "
            f"upgrade cwdfm, or prepare the data again with this release"
        )


def _foreign(path: Path) -> InputError:
    return InputError(
        f"{path} is not data prepared by cwdfm; give a .npz file written by TokenData.save, "
        f"or raw data (.smi, .txt, .csv, .tsv, also .gz)"
    )
