"""Sample files, written by `cwdfm sample` and read by `cwdfm eval`.

- `.jsonl`: a header object (options, model card, provenance), followed by one object per sample.
- `.csv`: the columns index and text, or index and smiles for molecules.
- `.smi`, `.txt`: one text per line; texts cannot contain line breaks.
- `.sdf`: one record per molecule, with 2D coordinates and the fields index and SMILES. An invalid
  molecule is a record without atoms.
- `.smiles`, `.sd`, `.tsv`, `.parquet` and compressed files: read-only.

`PartialSamples` stores the finished batches of a sampling job until its output file is written.
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cwdfm.data.molecule_files import PARQUET, SMILES_FIELD, read_molecules
from cwdfm.data.readers import delimiter, file_type, lines
from cwdfm.data.smiles import REPRESENTATIONS, parse, rdkit
from cwdfm.distributed import output_file, rank
from cwdfm.errors import MAX_INT, InputError
from cwdfm.files import (
    MARKER,
    check_fields,
    open_work,
    read_json,
    remove_files,
    replacing,
    write_errors,
    write_json,
)

FORMATS = (".jsonl", ".csv", ".smi", ".txt", ".sdf")
READ_ONLY = (".smiles", ".sd", ".tsv", PARQUET)
LINES = (".smi", ".txt")  # formats with one text per line
_BATCH = r"\d+-\d+\.json"  # file name of a finished batch
_SURROGATE = re.compile("[\ud800-\udfff]")

# Postprocessing options, keyed by the option that enables the step.
POSTPROCESS_OPTIONS = {
    "refine": ("refine_noise_fraction", "refine_steps", "refine_temperature"),
    "resample": tuple(
        f"resample_{name}"
        for name in ("noise_fraction", "threshold", "temperature", "tokens_per_round")
    ),
    "reject_below": ("max_tries", "reject_noise_fraction"),
}

# Option names used by version 0.1, and their current names.
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


def check_format(path: Path, formats: Sequence[str] = FORMATS) -> None:
    """Require a suffix that samples can be written to."""
    if path.suffix not in formats:
        raise InputError(f"a sample file must end in {', '.join(formats)}, got {str(path)!r}")


def write_samples(path: Path, samples: SampleFile) -> None:
    """Write a sample file atomically; the suffix selects the format."""
    check_format(path)
    for number, text in enumerate(samples.texts if path.suffix in LINES else (), start=1):
        if text.splitlines() not in ([], [text]):  # it would be read back as several samples
            raise InputError(
                f"sample {number} contains a line break, but {path} has one text per line; use a "
                f".jsonl or .csv file"
            )
    with write_errors(path), replacing(path) as part:
        part.write_text("".join(_lines(path, samples)), newline="")


def _lines(path: Path, samples: SampleFile) -> Iterable[str]:
    if path.suffix == ".jsonl":
        yield json.dumps(samples.head) + "\n"
        for text, tokens in zip(samples.texts, samples.tokens or [], strict=True):
            yield json.dumps({"text": text, "tokens": tokens}) + "\n"
    elif path.suffix == ".csv":
        buffer = io.StringIO()
        # Quote all texts, because an unquoted carriage return would end the row.
        writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        column = "smiles" if samples.head.get("tokenizer") in REPRESENTATIONS else "text"
        writer.writerows([("index", column), *enumerate(samples.texts)])
        yield buffer.getvalue()
    elif path.suffix == ".sdf":
        yield from map(_record, itertools.count(), samples.texts)
    else:
        yield from (text + "\n" for text in samples.texts)


def _record(index: int, text: str) -> str:
    """Format a molecule as a record of an .sdf file."""
    chem = rdkit()
    molecule = parse(text) or chem.Mol()
    rdkit("Chem.rdDepictor").Compute2DCoords(molecule)
    fields = {"index": index, SMILES_FIELD: text.strip()}
    data = "".join(f">  <{name}>\n{value}\n\n" for name, value in fields.items())
    return f"{chem.MolToMolBlock(molecule)}{data}$$$$\n"


def read_samples(path: Path, column: str | None = None) -> SampleFile:
    """Read a sample file, written by `cwdfm sample` or another program.

    `column` names the text column of a table, ignoring case. The default is `smiles`; in .csv files
    `text` takes precedence. In .smi files, a name may follow the SMILES.
    """
    kind = file_type(path)
    if kind not in (*FORMATS, *READ_ONLY):
        formats = ", ".join((*FORMATS, *READ_ONLY))
        raise InputError(
            f"a sample file must end in {formats}, and may be compressed, got {str(path)!r}"
        )
    if kind == ".jsonl":
        samples = _parse_jsonl(path, "".join(lines(path)).removesuffix("\n").split("\n"))
    elif kind == ".csv":
        samples = SampleFile(_column(path, column))
    elif kind == ".txt":
        samples = SampleFile("".join(lines(path)).splitlines())
    else:
        samples = SampleFile([smiles for _, smiles in read_molecules(path, column)])
    if not samples.texts:
        raise InputError(f"{path} contains no samples; sample again")
    return samples


def _column(path: Path, column: str | None) -> list[str]:
    """The texts of a CSV file. An unclosed quote is an error because it would swallow rows."""
    limit = csv.field_size_limit(2**31 - 1)  # of the whole process
    try:
        reader = csv.DictReader(lines(path), delimiter=delimiter(path), strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file ({error}); check its quotes") from error
    finally:
        csv.field_size_limit(limit)
    names = {name.strip().lower(): name for name in reversed(reader.fieldnames or ["text"])}
    requested = ("text", "smiles") if column is None else (column.lower(),)
    selected = next((names[name] for name in requested if name in names), None)
    if selected is None:
        raise InputError(
            f"{path} has no column {' or '.join(map(repr, requested))}, only "
            f"{', '.join(map(repr, names.values()))}; name the column of the samples with column=",
            fields=("column",),
        )
    return [row[selected] or "" for row in rows]


def _parse_jsonl(path: Path, rows: Sequence[str]) -> SampleFile:
    records = []
    for number, line in enumerate(rows if rows != [""] else [], start=1):
        try:
            records.append(json.loads(line))
            problem = _problem(records[-1], header=number == 1)
        except (ValueError, RecursionError) as error:  # ValueError also for overlong integers
            problem = f"is not JSON ({error}): the file may be truncated"
        if problem:
            raise InputError(
                f"{path}, line {number} {problem}; pass a file written by `sample`, or sample again"
            )
    head = records.pop(0) if records and "text" not in records[0] else {}
    tokens = [record["tokens"] for record in records if "tokens" in record]
    texts = [record["text"] for record in records]
    return SampleFile(texts, tokens if len(tokens) == len(records) else None, head)


def _problem(record: Any, *, header: bool) -> str:
    """Describe what is wrong with a line; empty if it is a valid sample or header."""
    if not isinstance(record, dict):
        return "is not a JSON object"
    if header and "text" not in record:
        valid = isinstance(record.get("options", {}), dict)
        return "" if valid else "is a header whose options are not a JSON object"
    text, tokens = record.get("text"), record.get("tokens", [])
    if not isinstance(text, str) or _SURROGATE.search(text):
        return "has no valid 'text'"
    valid = isinstance(tokens, list) and all(type(i) is int and 0 <= i < 2**31 for i in tokens)
    return "" if valid else "has 'tokens' that are not ids"


class PartialSamples:
    """The finished batches of an output FILE, from which an interrupted job resumes.

    The folder FILE.parts holds one JSON file per batch, with the settings of its job. Sample i
    depends only on the seed, not on the batch or process that draws it. Batches can therefore
    finish in any order, and a job can resume with a different batch size or number of processes.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out, self.folder = out, out.with_name(out.name + ".parts")
        self.settings = settings

    @contextmanager
    def lock(self, *, force: bool) -> Iterator[None]:
        """Lock the output file; raises an error if another job is writing it or has written it."""
        with output_file(self.out, force=force):
            try:
                yield
            finally:
                if rank() == 0 and not list(self.folder.glob("*.json")):
                    self.discard()

    def open(self, *, force: bool) -> set[int]:
        """Start or resume the job. Returns the numbers of the finished samples.

        Batches of a job with different settings raise an error, or are deleted with `force`.
        """
        with write_errors(self.folder, "finished samples are kept"):
            open_work(self.folder, _BATCH)
        outdated = [path for path, batch in self._batches() if batch["settings"] != self.settings]
        if outdated and not force:
            raise InputError(
                f"{self.folder} holds part of a job with different settings; repeat those settings "
                f"to resume it, choose a different out, or delete it with force=True",
                fields=("out", "force"),
            )
        for path in outdated:
            path.unlink(missing_ok=True)
        return set(self.records())

    def _batches(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The saved batches, with their settings. Damaged files are skipped."""
        for path in self.folder.glob("*-*.json"):
            with suppress(ValueError):  # truncated, for example by a power failure
                batch = read_json(path, MAX_INT)
                check_fields(path.name, batch, settings=dict, samples=dict)
                fields = {"text": str, "tokens": list, "evaluations": int}
                if self.settings.get("reject_below"):
                    fields["plausibility"] = float
                for number, record in batch["samples"].items():
                    check_fields(number, record, **fields)
                    int(number)
                yield path, batch

    def add(self, records: dict[int, dict[str, Any]]) -> None:
        """Save finished samples, by number."""
        path = self.folder / f"{min(records)}-{max(records)}.json"
        with write_errors(path, "finished samples are kept"):
            write_json(path, {"settings": self.settings, "samples": records})

    def records(self) -> dict[int, dict[str, Any]]:
        """All finished samples, in order."""
        own = (batch for _, batch in self._batches() if batch["settings"] == self.settings)
        return dict(sorted((int(i), row) for batch in own for i, row in batch["samples"].items()))

    def discard_if_written(self) -> None:
        """Delete the batches of a job that was killed after writing its output file."""
        if self.out.is_file() and self.folder.is_dir():
            with suppress(InputError), output_file(self.out, force=True):
                batches = (batch["samples"].values() for _, batch in self._batches())
                texts = {record["text"] for batch in batches for record in batch}
                if set(read_samples(self.out).texts) <= texts:
                    self.discard()

    def discard(self) -> None:
        """Delete the finished batches, if `open` created their folder."""
        if (self.folder / MARKER).is_file():
            remove_files(self.folder, _BATCH)
