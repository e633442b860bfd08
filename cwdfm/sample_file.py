"""Sample files, written by the sampler and read by evaluation.

`.jsonl`: a header object (options, model card, provenance), followed by one object per sample.
`.csv`: the columns index and text.
`.smi`, `.txt`: one text per line; texts cannot contain line breaks.

`PartialSamples` holds the finished part of a file while it is sampled.
"""

import csv
import io
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cwdfm.distributed import exclusive, rank
from cwdfm.errors import InputError
from cwdfm.files import replacing, write_errors, write_json

FORMATS = (".jsonl", ".csv", ".smi", ".txt")
LINES = (".smi", ".txt")  # formats with one text per line
_SURROGATE = re.compile("[\ud800-\udfff]")

# Options of each postprocessing step, by the option that enables it.
POSTPROCESS_OPTIONS = {
    "refine": ("refine_noise_fraction", "refine_steps", "refine_temperature"),
    "resample": (
        "resample_noise_fraction",
        "resample_threshold",
        "resample_temperature",
        "resample_tokens_per_round",
    ),
    "reject_below": ("max_tries", "reject_noise_fraction"),
}

# Options that files written by version 0.1 have under an older name.
RENAMED_OPTIONS = {
    "refine_share": "refine_noise_fraction",
    "mend": "resample",
    "mend_share": "resample_noise_fraction",
    "mend_trust": "resample_threshold",
    "mend_temperature": "resample_temperature",
    "mend_at_once": "resample_tokens_per_round",
    "accept": "reject_below",
    "accept_tries": "max_tries",
    "accept_share": "reject_noise_fraction",
}


@dataclass(frozen=True)
class SampleFile:
    """Samples in order, with the header of their file."""

    texts: list[str]
    tokens: list[list[int]] | None = None  # only in .jsonl
    head: dict[str, Any] = field(default_factory=dict)  # options, model, provenance; only in .jsonl

    @property
    def options(self) -> dict[str, Any]:
        """The options of the sampler (solver, steps, seed, ...), or empty without a header."""
        options: dict[str, Any] = self.head.get("options", {})
        return {RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}


def check_format(path: Path) -> None:
    """Require a supported suffix."""
    if path.suffix not in FORMATS:
        raise InputError(f"a sample file must end in {', '.join(FORMATS)}, got {str(path)!r}")


def write_samples(path: Path, samples: SampleFile) -> None:
    """Write a sample file atomically; the suffix selects the format."""
    check_format(path)
    if path.suffix in LINES:
        _check_lines(path, samples.texts)
    with write_errors(path), replacing(path) as part:
        part.write_text("".join(_lines(path, samples)), newline="")


def _check_lines(path: Path, texts: Sequence[str]) -> None:
    """Require texts without line breaks, which would be read back as several samples."""
    for number, text in enumerate(texts, start=1):
        if text.splitlines() not in ([], [text]):
            raise InputError(
                f"sample {number} contains a line break, but {path} has one text per line; use a "
                f".jsonl or .csv file"
            )


def _lines(path: Path, samples: SampleFile) -> Iterable[str]:
    if path.suffix == ".jsonl":
        yield json.dumps(samples.head) + "\n"
        for text, tokens in zip(samples.texts, samples.tokens or [], strict=True):
            yield json.dumps({"text": text, "tokens": tokens}) + "\n"
    elif path.suffix == ".csv":
        buffer = io.StringIO()
        # Quote all texts, because an unquoted carriage return would end the row.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows([("index", "text"), *enumerate(samples.texts)])
        yield buffer.getvalue()
    else:
        yield from (text + "\n" for text in samples.texts)


def read_samples(path: Path) -> SampleFile:
    """Read a sample file, also of other programs.

    In .smi files, a name may follow the SMILES. In .csv files, the column may be `smiles`.
    """
    check_format(path)
    try:
        with path.open(
            newline="", encoding="utf-8-sig"
        ) as file:  # spreadsheets write a byte order mark
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; give a sample file") from error
    if path.suffix == ".jsonl":
        return _from_json(path, text.removesuffix("\n").split("\n") if text else [])
    if path.suffix == ".csv":
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        try:
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
        except csv.Error as error:
            raise InputError(f"{path} is not a CSV file ({error}); sample again") from error
        samples = SampleFile(_column(path, rows) if rows else [])
    elif path.suffix == ".smi":
        samples = SampleFile([(line.split(maxsplit=1) or [""])[0] for line in text.splitlines()])
    else:
        samples = SampleFile(text.splitlines())
    return _non_empty(path, samples)


def _column(path: Path, rows: Sequence[dict[str, str]]) -> list[str]:
    """The texts of a table."""
    names = {str(name).lower(): name for name in reversed(rows[0])}
    found = next((names[name] for name in ("text", "smiles") if name in names), None)
    if found is None:
        raise InputError(
            f"{path} has no column 'text' or 'smiles', only {', '.join(map(repr, rows[0]))}; "
            f"rename the column with the samples"
        )
    return [row[found] or "" for row in rows]


def _from_json(path: Path, lines: Sequence[str]) -> SampleFile:
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:  # ValueError also for numbers of many digits
            raise InputError(
                f"{path}, line {number} is not JSON ({error}); the file may be truncated: sample "
                f"again"
            ) from error
    if not all(isinstance(record, dict) for record in records):
        raise InputError(
            f"{path} has lines that are not JSON objects; give a file written by `sample`"
        )
    head = records.pop(0) if records and "text" not in records[0] else {}
    if not isinstance(head.get("options", {}), dict):
        raise InputError(f"the options in the header of {path} are not a JSON object; sample again")
    if not all(_is_text(record.get("text")) for record in records):
        raise InputError(f"{path} has lines without 'text'; give a file written by `sample`")
    tokens = [record["tokens"] for record in records if "tokens" in record]
    if not all(map(_are_ids, tokens)):
        raise InputError(
            f"{path} has lines whose 'tokens' are not ids; give a file written by `sample`"
        )
    complete = len(tokens) == len(records)
    texts = [record["text"] for record in records]
    return _non_empty(path, SampleFile(texts, tokens if complete else None, head))


def _is_text(value: object) -> bool:
    """Whether the value is a string without unpaired surrogates."""
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def _are_ids(value: object) -> bool:
    """Whether the value is a list of token ids."""
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 2**31 for i in value)


def _non_empty(path: Path, samples: SampleFile) -> SampleFile:
    if not samples.texts:
        raise InputError(f"{path} contains no samples; sample again")
    return samples


class PartialSamples:
    """The finished batches of an output FILE, from which an interrupted job resumes.

    The folder FILE.parts holds one JSON file per batch, with the settings of its job. Sample i of a
    seed does not depend on the batch or process that draws it. Batches can therefore be finished in
    any order, and a job can resume with a different batch size or number of processes.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out, self.folder = out, out.with_name(out.name + ".parts")
        self.settings = settings

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Raise an error if another job is writing the same file."""
        if rank() == 0:
            with write_errors(self.folder, "finished samples are kept"):
                self.folder.mkdir(exist_ok=True)
        other = f"another run is sampling {self.out} (use torchrun to share the work)"
        with exclusive(self.folder, other):
            try:
                yield
            finally:
                if rank() == 0 and not list(self.folder.glob("*.json")):
                    self.discard()

    def open(self, *, force: bool) -> set[int]:
        """Start or resume the job. Returns the numbers of the finished samples.

        Batches of a job with different settings raise an error, or are deleted with `force`.
        """
        others = [path for path, found in self._batches() if found is None]
        if others and not force:
            raise InputError(
                f"{self.folder} holds part of a job with different settings; repeat those settings "
                f"to resume it, choose a different out, or delete it with force=True",
                fields=("out", "force"),
            )
        for path in others:
            path.unlink(missing_ok=True)
        return set(self.records())

    def _batches(self) -> Iterator[tuple[Path, dict[str, Any] | None]]:
        """The saved batches; None for those with different settings. Damaged files are skipped."""
        for path in self.folder.glob("*.json"):
            with suppress(ValueError):  # truncated, for example by a power failure
                batch = json.loads(path.read_text())
                yield path, batch["samples"] if batch.get("settings") == self.settings else None

    def add(self, records: dict[int, dict[str, Any]]) -> None:
        """Save finished samples, by number."""
        path = self.folder / f"{min(records)}-{max(records)}.json"
        with write_errors(path, "finished samples are kept"):
            write_json(path, {"settings": self.settings, "samples": records})

    def records(self) -> dict[int, dict[str, Any]]:
        """All finished samples, in order."""
        found = (batch for _, batch in self._batches() if batch is not None)
        return dict(sorted((int(i), row) for batch in found for i, row in batch.items()))

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
