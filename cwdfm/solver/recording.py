"""Recordings: the token changes, entropies and weights of every sampling step, for replay.

A recording stores the initial tokens and the moves, not every intermediate sequence, so its size
grows with the number of changes. Entropies and weights are stored for all positions and steps in
8 bits each.

Shapes: S steps, R recorded sequences, N sequence length, M moves, K alternatives per move.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.errors import InputError, check_integer
from cwdfm.files import DAMAGED_ZIP, check_fields, check_regular, replacing

FORMAT = 1
ALTERNATIVES = 5  # most likely tokens stored with each move
MAX_SEQUENCES = 64
MAX_BYTES = 2**30  # of the arrays of one recording
# Weights are stored as 128 + 32 log2(alpha), which covers [1/16, 15]; 0 means none.
ALPHA_ONE, ALPHA_SCALE = 128, 32
# JSON and numpy also raise these for damaged recordings.
_DAMAGE: tuple[type[Exception], ...] = (*DAMAGED_ZIP, OverflowError, MemoryError)


@dataclass(frozen=True)
class Recording:
    """The moves of R sequences over S steps."""

    start: NDArray[np.int32]  # [R, N] tokens at the first time
    fixed: NDArray[np.bool_]  # [R, N] prompt tokens
    times: NDArray[np.float64]  # [S + 1]
    move_step: NDArray[np.int32]  # [M] the step, 0..S-1, in ascending order
    move_sequence: NDArray[np.int32]  # [M]
    move_position: NDArray[np.int32]  # [M]
    move_token: NDArray[np.int32]  # [M] the new token
    move_alternatives: NDArray[np.int32]  # [M, K] most likely tokens before the move
    move_probabilities: NDArray[np.float16]  # [M, K]
    entropy: NDArray[np.uint8]  # [S, R, N] in units of log(V) / 255; 0 at revealed positions
    alpha: NDArray[np.uint8]  # [S, R, N] weights on a logarithmic scale, see `alphas`
    vocab_size: int
    mask_id: int = -1  # -1 without a mask token
    labels: dict[str, Any] = field(default_factory=dict)  # model, solver, seed, tokenizer, ...

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The final tokens [R, N]."""
        return self.at(len(self.times) - 1)

    def at(self, step: int) -> NDArray[np.int32]:
        """The tokens [R, N] after `step` steps."""
        x, moves = self.start.copy(), slice(0, int(np.searchsorted(self.move_step, step)))
        x[self.move_sequence[moves], self.move_position[moves]] = self.move_token[moves]
        return x

    def alphas(self) -> NDArray[np.float64]:
        """The weights alpha [S, R, N], up to a factor of 2^(1/64); NaN where none was computed."""
        level = self.alpha.astype(np.float64)
        return np.where(level > 0, 2 ** ((level - ALPHA_ONE) / ALPHA_SCALE), np.nan)

    def replaced(self, rows: Sequence[int], other: "Recording") -> "Recording":
        """Replace the sequences `rows` by all sequences of `other`, of equal steps and length."""
        keep = ~np.isin(self.move_sequence, rows)
        own = {name: getattr(self, name)[keep] for name in _ARRAYS if name.startswith("move_")}
        new = {name: getattr(other, name) for name in own}
        new["move_sequence"] = np.asarray(rows, np.int32)[other.move_sequence]
        order = np.argsort(np.concatenate([own["move_step"], new["move_step"]]), kind="stable")
        arrays: dict[str, Any] = {n: np.concatenate([own[n], new[n]])[order] for n in own}
        for name in ("start", "fixed", "entropy", "alpha"):
            arrays[name] = getattr(self, name).copy()
            arrays[name][..., rows, :] = getattr(other, name)
        return replace(self, **arrays)

    def save(self, path: str | Path) -> None:
        """Write the recording as a compressed .npz file, atomically."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        meta = {
            "format": FORMAT,
            "vocab_size": self.vocab_size,
            "mask_id": self.mask_id,
            "labels": self.labels,
        }
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        with replacing(Path(path)) as part, part.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Recording":
        """Read a recording. Its size and content are checked before use."""
        path = Path(path)
        try:
            return cls._load(path)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
        except InputError:
            raise
        except _DAMAGE as error:
            raise InputError(
                f"{path} is not a recording or is damaged ({error}); record the samples again with "
                f"`cwdfm sample ... --record`"
            ) from error

    @classmethod
    def _load(cls, path: Path) -> "Recording":
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_BYTES:
            raise InputError(
                f"{path} holds {size / 2**30:.1f} GiB of arrays, and at most {MAX_BYTES >> 30} GiB "
                f"are read; record fewer sequences or steps"
            )
        with np.load(path, allow_pickle=False) as archive:
            meta = json.loads(archive["meta"].tobytes())
            check_fields("meta", meta, format=int, vocab_size=int, mask_id=int, labels=dict)
            if meta["format"] != FORMAT:
                raise InputError(
                    f"{path} has recording format {meta['format']!r}, and this version reads "
                    f"{FORMAT}; record the samples again"
                )
            arrays = {name: archive[name] for name in _ARRAYS}
        recording = cls(
            **arrays,
            **{name: meta[name] for name in ("vocab_size", "mask_id", "labels")},
        )
        recording._check()
        return recording

    def _check(self) -> None:
        """Raise a ValueError unless shapes, dtypes and values of all arrays are consistent."""
        R, N = self.start.shape
        S, M = len(self.times) - 1, len(self.move_step)
        if min(R, N, S) < 1 or R > MAX_SEQUENCES:
            raise ValueError(f"it has {R} sequences of {N} tokens and {S} steps")
        sizes = {"R": R, "N": N, "S": S, "T": S + 1, "M": M, "K": self.move_alternatives.shape[-1]}
        for name, (kind, axes) in _ARRAYS.items():
            array, shape = getattr(self, name), tuple(sizes[axis] for axis in axes)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, not {shape}")
            if array.dtype != kind:
                raise ValueError(f"{name} has dtype {array.dtype}, not {kind}")
        bounds = {"move_step": S, "move_sequence": R, "move_position": N}
        for name, bound in bounds.items():
            _check_range(name, getattr(self, name), bound)
        tokens = max(self.vocab_size, self.mask_id + 1)
        for name in ("start", "move_token", "move_alternatives"):
            _check_range(name, getattr(self, name), tokens)
        if bool((np.diff(self.move_step) < 0).any()) or not bool((np.diff(self.times) > 0).all()):
            raise ValueError("steps or times are not in ascending order")
        if not np.isfinite(self.move_probabilities).all():
            raise ValueError("move_probabilities has values that are not finite")


# The dtypes and axes of the arrays; T is S + 1.
_ARRAYS: dict[str, tuple[type[np.generic], str]] = {
    "start": (np.int32, "RN"),
    "fixed": (np.bool_, "RN"),
    "times": (np.float64, "T"),
    "move_step": (np.int32, "M"),
    "move_sequence": (np.int32, "M"),
    "move_position": (np.int32, "M"),
    "move_token": (np.int32, "M"),
    "move_alternatives": (np.int32, "MK"),
    "move_probabilities": (np.float16, "MK"),
    "entropy": (np.uint8, "SRN"),
    "alpha": (np.uint8, "SRN"),
}


def _check_range(name: str, values: NDArray[np.int32], bound: int) -> None:
    if values.size and not (int(values.min()) >= 0 and int(values.max()) < bound):
        raise ValueError(f"{name} has values outside 0..{bound - 1}")


def check_record(record: int, shape: tuple[int, int], steps: int) -> int:
    """The number of sequences to record of `shape` = (B, N) samples; True for as many as fit."""
    batch, length = shape
    limit = MAX_SEQUENCES if record is True else record
    if not isinstance(record, bool):
        check_integer("record", record, 0, MAX_SEQUENCES)
    count = min(batch, limit) if record else 0
    if 2 * count * length * steps > MAX_BYTES:
        raise InputError(
            f"a recording of {count} sequences of {length} tokens and {steps} steps would exceed "
            f"{MAX_BYTES >> 30} GiB; set record to a smaller number, or take fewer steps",
            fields=("record",),
        )
    return count
