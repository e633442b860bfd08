"""Pieces of the generated pages: tables, and where results come from."""

from typing import Any

Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def origin(result: Result) -> str:
    """One line on where a result comes from."""
    hardware, versions = result["hardware"], result["versions"]
    machine = hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} threads"
    return (
        f"`{result['command']}`, revision `{result['revision']}`, {result['date'][:10]}, "
        f"{machine}, torch {versions['torch']}, Python {versions['python']}, "
        f"config `{result['config']}`."
    )
