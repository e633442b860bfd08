"""A report as one self-contained HTML page: figures are embedded, and there is no script."""

import base64
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from cwdfm.report.sample_set import File
from cwdfm.report.table import Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --soft: #5a5a5a;
  --line: #d8d8d8; --band: #f3f5f5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181a;
  --soft: #a8adb0; --line: #3a3f42; --band: #212528; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
p, li { max-width: 45rem; }
li, figcaption, .origin { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--line); color: var(--soft); font-weight: 600; }
tbody th { background: var(--band); padding: .35rem .5rem; }
tbody td { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: .5rem; }
figure { margin: 1.2rem 0 2rem; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 45rem; margin-top: .4rem; }
img { display: block; max-width: 100%; background: #fff; border-radius: 4px; }
.wide img { width: 100%; min-width: 42rem; max-width: none; }
details { margin: .6rem 0; }
summary { cursor: pointer; }
blockquote { margin: .6rem 0; padding: .6rem .8rem; max-width: 45rem; background: var(--band);
  font-size: .9rem; white-space: pre-wrap; overflow-wrap: anywhere; }
dl { font-size: .85rem; }
dt { color: var(--soft); margin-top: .3rem; }
dd { margin: 0; overflow-wrap: anywhere; font-family: ui-monospace, monospace; }
@media (max-width: 30rem) { body { padding: .7rem; } table { font-size: .75rem; }
  th, td { padding-right: .45rem; } th:first-child, td:first-child { padding-left: .2rem; } }
"""


@dataclass(frozen=True)
class Picture:
    """A PNG file in the folder of the report."""

    file: str
    caption: str
    wide: bool = False  # scrolls on narrow screens


@dataclass(frozen=True)
class Excerpt:
    """Texts to read, collapsed under a title."""

    title: str
    texts: tuple[str, ...]


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
    excerpts: tuple[Excerpt, ...] = ()


def page(evaluation: Evaluation, files: list[File], origin: dict[str, Any], folder: Path) -> str:
    """Render the report as HTML; pictures are read from `folder`."""
    title = escape(evaluation.title)
    explanation = "".join(f"<p>{escape(text)}</p>\n" for text in evaluation.explanation)
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in evaluation.notes)
    sections = [
        ("How to read the table", explanation),
        ("Notes", f"<ul>\n{notes}</ul>" if notes else ""),
        ("Figures", "".join(_figure(picture, folder) for picture in evaluation.pictures)),
        ("Samples", "".join(_excerpt(excerpt) for excerpt in evaluation.excerpts)),
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
    caption = escape(picture.caption)
    kind = "scroll wide" if picture.wide else "scroll"
    return (
        f'<figure><div class="{kind}"><img alt="{caption}" '
        f'src="data:image/png;base64,{png}"></div>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _excerpt(excerpt: Excerpt) -> str:
    texts = "\n".join(
        f"<blockquote>{escape(_printable(text))}</blockquote>" for text in excerpt.texts
    )
    return f"<details><summary>{escape(excerpt.title)}</summary>\n{texts}</details>\n"


def _printable(text: str) -> str:
    """Replace control characters, which an undertrained model may generate."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _sample_file(file: File) -> str:
    count = f"{len(file.samples.texts):,} samples"
    settings = {"sha256": file.sha256, **file.samples.options}
    return (
        f'<details class="origin"><summary>{escape(file.path.name)}: {count}</summary>'
        f"{_definitions(settings)}</details>\n"
    )


def _definitions(values: dict[str, Any]) -> str:
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
        rows.append(f"<dt>{escape(str(name))}</dt><dd>{escape(text)}</dd>")
    return "<dl>" + "\n".join(rows) + "</dl>"
