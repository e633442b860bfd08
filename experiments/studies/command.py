"""The command line of a study, and the record that it writes."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from cwdfm.files import write_json
from cwdfm.provenance import provenance


def study_parser(doc: str | None) -> ArgumentParser:
    """A parser with `--out`, described by the first line of a module's docstring."""
    parser = ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    return parser


def save(out: Path, **record: Any) -> None:
    """Write a record, after its provenance."""
    write_json(out, provenance() | record)
