"""One HTML page that needs nothing else: the pictures are inside, and there is no script."""

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

from cwdfm.report.evaluation import Evaluation, Excerpt, Picture, Table
from cwdfm.report.sample_set import File

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


def page(evaluation: Evaluation, files: list[File], origin: dict[str, Any], folder: Path) -> str:
    """The report; the pictures are read from `folder`."""
    title = escape(evaluation.title)
    meaning = "".join(f"<p>{escape(text)}</p>\n" for text in evaluation.meaning)
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in evaluation.notes)
    figures = "".join(_figure(picture, folder) for picture in evaluation.pictures)
    excerpts = "".join(_excerpt(excerpt) for excerpt in evaluation.excerpts)
    settings = "".join(_settings(file) for file in files)
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
{_table(evaluation.table)}
<h2>What the numbers mean</h2>
{meaning}{f"<h2>To be noted</h2>{chr(10)}<ul>{chr(10)}{notes}</ul>" if notes else ""}
{f"<h2>Pictures</h2>{chr(10)}{figures}" if figures else ""}
{f"<h2>Samples</h2>{chr(10)}{excerpts}" if excerpts else ""}
<h2>Where the samples come from</h2>
{settings}
<h2>Where this report comes from</h2>
{_list(origin)}
</body>
</html>
"""


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    lines = []
    for name, rows in table.groups():
        lines.append(f'<tr><th colspan="{len(table.columns)}">{escape(name)}</th></tr>')
        lines += [
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>"
            for row in rows
        ]
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _figure(picture: Picture, folder: Path) -> str:
    inside = base64.b64encode((folder / picture.file).read_bytes()).decode()
    caption = escape(picture.caption)
    kind = "scroll wide" if picture.wide else "scroll"
    return (
        f'<figure><div class="{kind}"><img alt="{caption}" '
        f'src="data:image/png;base64,{inside}"></div>'
        f"<figcaption>{caption}</figcaption></figure>\n"
    )


def _excerpt(excerpt: Excerpt) -> str:
    texts = "\n".join(
        f"<blockquote>{escape(_visible(text))}</blockquote>" for text in excerpt.texts
    )
    return f"<details><summary>{escape(excerpt.title)}</summary>\n{texts}</details>\n"


def _visible(text: str) -> str:
    """Without characters that a browser would act upon or refuse: a young model writes any."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _settings(file: File) -> str:
    count = f"{len(file.samples.texts):,} samples"
    told = {"sha256": file.sha256, **file.samples.options}
    return (
        f'<details class="origin"><summary>{escape(file.path.name)}: {count}</summary>'
        f"{_list(told)}</details>\n"
    )


def _list(values: dict[str, Any]) -> str:
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            text = ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
        rows.append(f"<dt>{escape(str(name))}</dt><dd>{escape(text)}</dd>")
    return "<dl>" + "\n".join(rows) + "</dl>"
