"""Render a report as a self-contained HTML page with embedded figures and sortable tables."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from cwdfm.report.sample_set import File
from cwdfm.report.table import Table


@dataclass(frozen=True)
class Picture:
    """A PNG file in the folder of the report."""

    file: str
    caption: str
    wide: bool = False  # scroll on narrow screens instead of shrinking


@dataclass(frozen=True)
class Evaluation:
    """The content of a report."""

    title: str
    table: Table
    explanation: tuple[str, ...]  # paragraphs on how to read the table
    notes: tuple[str, ...]  # caveats
    pictures: tuple[Picture, ...]
    settings: dict[str, Any]  # settings of the evaluation, shown on the page
    scores: dict[str, Any]  # all numbers, for scores.json
    excerpts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # sample texts by title
    listings: Mapping[str, Table] = field(default_factory=dict)  # tables of samples by title
    lead: str = ""  # HTML above the table
    details: Table | None = None  # more scores, with one column per sample set


def page(evaluation: Evaluation, samples: list[File], origin: dict[str, Any], folder: Path) -> str:
    """Render the report as HTML; pictures are read from `folder`."""
    title = escape(evaluation.title)
    explanation = "".join(f"<p>{escape(text)}</p>\n" for text in evaluation.explanation)
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in evaluation.notes)
    details = f'<div class="scroll">{evaluation.details.html()}</div>' if evaluation.details else ""
    shown = {
        title: f'<div class="scroll">{table.html("listing")}</div>'
        for title, table in evaluation.listings.items()
    }
    shown |= {title: "\n" + quotes(texts) for title, texts in evaluation.excerpts.items()}
    sections = [
        ("Distribution", details),
        ("How to read the table", explanation),
        ("Notes", f"<ul>\n{notes}</ul>" if notes else ""),
        ("Figures", "".join(figure(picture, folder) for picture in evaluation.pictures)),
        ("Samples", "".join(_details(*item) for item in shown.items())),
        ("Sample files", "".join(_sample_file(file) for file in samples)),
        ("Provenance of this report", _definitions(origin)),
    ]
    body = "\n".join(f"<h2>{name}</h2>\n{content}" for name, content in sections if content)
    template = Template((files("cwdfm.report") / "page.html").read_text(encoding="utf-8"))
    table, lead = evaluation.table.html(), evaluation.lead
    return template.substitute(title=title, lead=lead, table=table, body=body)


def figure(picture: Picture, folder: Path) -> str:
    """Render a picture in `folder` as an HTML figure that contains the image."""
    png = base64.b64encode((folder / picture.file).read_bytes()).decode()
    caption, style = escape(picture.caption), "scroll wide" if picture.wide else "scroll"
    image = f'<img alt="{caption}" src="data:image/png;base64,{png}">'
    return (
        f'<figure><div class="{style}">{image}</div><figcaption>{caption}</figcaption></figure>\n'
    )


def quotes(texts: Sequence[str]) -> str:
    """Render texts as HTML quotations."""
    return "\n".join(f"<blockquote>{escape(_printable(text))}</blockquote>" for text in texts)


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>\n"


def _printable(text: str) -> str:
    """Replace control characters, which an undertrained model may generate."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _sample_file(file: File) -> str:
    title = f"{file.path.name}: {len(file.samples.texts):,} samples"
    return _details(title, _definitions({"sha256": file.sha256, **file.effective_options}))


def _definitions(values: dict[str, Any]) -> str:
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        else:
            shown = "none" if value is None else value
            text = shown if isinstance(shown, str) else json.dumps(shown)
        rows.append(f"<dt>{escape(str(name))}</dt><dd>{escape(text)}</dd>")
    return "<dl>" + "\n".join(rows) + "</dl>"
