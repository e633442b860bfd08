"""Pieces of the generated pages: tables, contents, and where results come from."""

import re
from typing import Any

Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown, with columns of numbers to the right."""
    columns = zip(*rows, strict=True) if rows else [()] * len(head)
    rule = ["---:" if all(map(_numeric, column)) else "---" for column in columns]
    lines = [head, ["---", *rule[1:]], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _numeric(cell: str) -> bool:
    return re.fullmatch(r"[-\d.,%/()± ]*", cell) is not None


def headings(text: str) -> list[tuple[int, str]]:
    """Levels, from 2 on, and titles."""
    return [(len(n), title) for n, title in re.findall(r"^(##+) (.+)$", text, re.MULTILINE)]


def anchor(title: str) -> str:
    """Of a heading, as pages are linked to."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def outline(text: str) -> str:
    """Links to the sections of a text, and to those within them."""
    return "\n".join(
        f"{'  ' * (level - 2)}- [{title}](#{anchor(title)})" for level, title in headings(text)
    )


def origin(result: Result) -> str:
    """One line on where a result comes from."""
    hardware, versions = result["hardware"], result["versions"]
    machine = hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} threads"
    return (
        f"`{result['command']}`, revision `{result['revision']}`, {result['date'][:10]}, "
        f"{machine}, torch {versions['torch']}, Python {versions['python']}"
        + (f", config `{result['config']}`." if result["config"] else ".")
    )
