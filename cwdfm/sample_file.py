"""Files of samples: what the sampler writes and evaluation reads.

`.jsonl` begins with one object that says where the samples come from (options, model card,
provenance) and has one object a sample behind it. `.csv` has the columns index and text; `.smi` and
`.txt` hold one text a line and nothing else, so no text with a line break in it.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError
from cwdfm.files import replacing, write_advice

FORMATS = (".jsonl", ".csv", ".smi", ".txt")
LINES = (".smi", ".txt")  # one text a line
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
    """Samples in order, and where they come from."""

    texts: list[str]
    tokens: list[list[int]] | None = None  # of .jsonl alone
    head: dict[str, Any] = field(default_factory=dict)  # options, model, provenance; of .jsonl

    @property
    def options(self) -> dict[str, Any]:
        """The options of the sampler (solver, steps, seed, ...), or empty without a header."""
        options: dict[str, Any] = self.head.get("options", {})
        return {RENAMED_OPTIONS.get(name, name): value for name, value in options.items()}


def check_format(path: Path) -> None:
    """Refuse a file whose ending does not say how it is written."""
    if path.suffix not in FORMATS:
        raise InputError(f"a file of samples must end in {', '.join(FORMATS)}, got {str(path)!r}")


def write_samples(path: Path, samples: SampleFile) -> None:
    """Write the file, as its ending says: the old file or the whole new one, never a part."""
    check_format(path)
    if path.suffix in LINES:
        _check_lines(path, samples.texts)
    try:
        with replacing(path) as part:
            part.write_text("".join(_lines(path, samples)), newline="")
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; {write_advice(error)}"
        ) from error


def _check_lines(path: Path, texts: Sequence[str]) -> None:
    """Refuse texts that would be read back as several."""
    for number, text in enumerate(texts, start=1):
        if text.splitlines() not in ([], [text]):
            raise InputError(
                f"sample {number} holds a line break, and {path} would hold one text a line; write "
                f"a .jsonl or .csv file"
            )


def _lines(path: Path, samples: SampleFile) -> Iterable[str]:
    if path.suffix == ".jsonl":
        yield json.dumps(samples.head) + "\n"
        for text, tokens in zip(samples.texts, samples.tokens or [], strict=True):
            yield json.dumps({"text": text, "tokens": tokens}) + "\n"
    elif path.suffix == ".csv":
        buffer = io.StringIO()
        # The texts in quotes: a bare carriage return would end a row.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows([("index", "text"), *enumerate(samples.texts)])
        yield buffer.getvalue()
    else:
        yield from (text + "\n" for text in samples.texts)


def read_samples(path: Path) -> SampleFile:
    """Read what `write_samples` wrote, or a file from elsewhere.

    A line of .smi may have a name behind its SMILES, and a .csv a column `smiles` for `text`.
    """
    check_format(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a mark
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; give a file of samples") from error
    if path.suffix == ".jsonl":
        return _from_json(path, text.removesuffix("\n").split("\n") if text else [])
    if path.suffix == ".csv":
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        try:
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
        except csv.Error as error:
            raise InputError(f"{path} is no CSV ({error}); sample again") from error
        samples = SampleFile(_column(path, rows) if rows else [])
    elif path.suffix == ".smi":
        samples = SampleFile([(line.split(maxsplit=1) or [""])[0] for line in text.splitlines()])
    else:
        samples = SampleFile(text.splitlines())
    return _filled(path, samples)


def _column(path: Path, rows: Sequence[dict[str, str]]) -> list[str]:
    """The texts of a table with a header, at least one row."""
    names = {str(name).lower(): name for name in reversed(rows[0])}
    found = next((names[name] for name in ("text", "smiles") if name in names), None)
    if found is None:
        raise InputError(
            f"{path} has no column 'text' or 'smiles', only {', '.join(map(repr, rows[0]))}; "
            f"rename the one with the samples"
        )
    return [row[found] or "" for row in rows]


def _from_json(path: Path, lines: Sequence[str]) -> SampleFile:
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, too
            raise InputError(
                f"{path}, line {number} is not JSON ({error}); the file may have been cut off: "
                f"sample again"
            ) from error
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"{path} holds lines that are no objects; give a file that `sample` wrote")
    head = records.pop(0) if records and "text" not in records[0] else {}
    if not isinstance(head.get("options", {}), dict):
        raise InputError(f"{path} begins with options that are no object; sample again")
    if not all(_is_text(record.get("text")) for record in records):
        raise InputError(f"{path} holds lines without 'text'; give a file that `sample` wrote")
    tokens = [record["tokens"] for record in records if "tokens" in record]
    if not all(map(_are_ids, tokens)):
        raise InputError(
            f"{path} holds lines whose 'tokens' are no list of ids; give a file that `sample` wrote"
        )
    whole = len(tokens) == len(records)
    texts = [record["text"] for record in records]
    return _filled(path, SampleFile(texts, tokens if whole else None, head))


def _is_text(value: object) -> bool:
    """Whether it is a string, without halves of surrogate pairs, which no text has."""
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def _are_ids(value: object) -> bool:
    """Whether it is a list of integers that can be ids of tokens."""
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 2**31 for i in value)


def _filled(path: Path, samples: SampleFile) -> SampleFile:
    if not samples.texts:
        raise InputError(f"{path} holds no samples; sample again")
    return samples
