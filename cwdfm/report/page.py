"""A report as one self-contained HTML page: figures are embedded, and there is no script."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from cwdfm.report.sample_set import File
from cwdfm.report.table import Table

_STYLE = """
:root { color-scheme: light dark; --soft: #777; --line: #8884; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
h1, li, figcaption, dd, blockquote { overflow-wrap: anywhere; }
p, li, figcaption, blockquote { max-width: 45rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: .5rem; }
tbody th, blockquote { background: var(--line); }
figure { margin: 1.2rem 0 2rem; }
figcaption, dt { color: var(--soft); font-size: .9rem; }
img { display: block; max-width: 100%; background: #fff; }
.wide img { width: 100%; min-width: 42rem; max-width: none; }
blockquote { margin: .6rem 0; padding: .6rem .8rem; font-size: .9rem; white-space: pre-wrap; }
dd { margin: 0; font: .85rem ui-monospace, monospace; }
"""


@dataclass(frozen=True)
class Picture:
    """A PNG file in the folder of the report."""

    file: str
    caption: str
    wide: bool = False  # scrolls on narrow screens


@dataclass(frozen=True)
class Evaluation:
    """The content of a report."""

    title: str
    table: Table
    explanation: tuple[str, ...]  # how to read the table, one paragraph each
    notes: tuple[str, ...]  # caveats
    pictures: tuple[Picture, ...]
    settings: dict[str, Any]  # of the evaluation, for the page
    scores: dict[str, Any]  # all numbers, for scores.json
    excerpts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # texts by title


def page(evaluation: Evaluation, files: list[File], origin: dict[str, Any], folder: Path) -> str:
    """Render the report as HTML; pictures are read from `folder`."""
    title = escape(evaluation.title)
    explanation = "".join(f"<p>{escape(text)}</p>\n" for text in evaluation.explanation)
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in evaluation.notes)
    sections = [
        ("How to read the table", explanation),
        ("Notes", f"<ul>\n{notes}</ul>" if notes else ""),
        ("Figures", "".join(_figure(picture, folder) for picture in evaluation.pictures)),
        ("Samples", "".join(_excerpt(*item) for item in evaluation.excerpts.items())),
        ("Sample files", "".join(_sample_file(file) for file in files)),
        ("Provenance of this report", _definitions(origin)),
    ]
    body = "\n".join(f"<h2>{name}</h2>\n{content}" for name, content in sections if content)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<div class="scroll">{evaluation.table.html()}</div>
{body}
</body>
</html>
"""


def _figure(picture: Picture, folder: Path) -> str:
    png = base64.b64encode((folder / picture.file).read_bytes()).decode()
    caption, kind = escape(picture.caption), "scroll wide" if picture.wide else "scroll"
    image = f'<img alt="{caption}" src="data:image/png;base64,{png}">'
    return f'<figure><div class="{kind}">{image}</div><figcaption>{caption}</figcaption></figure>\n'


def _excerpt(title: str, texts: Sequence[str]) -> str:
    quotes = [f"<blockquote>{escape(_printable(text))}</blockquote>" for text in texts]
    return _details(title, "\n" + "\n".join(quotes))


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>\n"


def _printable(text: str) -> str:
    """Replace control characters, which an undertrained model may generate."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _sample_file(file: File) -> str:
    title = f"{file.path.name}: {len(file.samples.texts):,} samples"
    return _details(title, _definitions({"sha256": file.sha256, **file.samples.options}))


def _definitions(values: dict[str, Any]) -> str:
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
        rows.append(f"<dt>{escape(str(name))}</dt><dd>{escape(text)}</dd>")
    return "<dl>" + "\n".join(rows) + "</dl>"
