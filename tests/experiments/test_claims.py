"""Numbers of ours in docs/claims.md and README.md, as listed in experiments/claims.csv."""

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "claims.md").read_text()
README = (ROOT / "README.md").read_text()
LISTED = list(csv.DictReader((ROOT / "experiments" / "claims.csv").read_text().splitlines()))
ROWS = {
    int(cells[0]): cells
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \|", line)
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}
WORDS = {
    "holds": "hold,",
    "holds partly": "hold partly",
    "mixed": "are mixed",
    "undecided": "are undecided",
    "does not hold": "do not hold",
    "not testable": "is not testable",
}
# Numbers of steps, settings and sizes, which are not results.
SETTINGS = {
    *("0", "1", "3", "4", "6", "8", "16", "64", "128", "256", "512", "875"),
    *("1,000", "1,024", "3,500", "10,000"),
}
NUMBER = r"\d[\d,]*(?:\.\d+)?"


def recorded(line: dict[str, str]) -> str:
    """A value of results/PAGE.csv with the digits that the page shows."""
    conditions = dict(part.split("=", 1) for part in line["row"].split("; "))
    rows = csv.DictReader((ROOT / "results" / f"{line['page']}.csv").read_text().splitlines())
    column, digits = line["column"], len(line["shown"].partition(" ")[0].partition(".")[2])
    given = [row for row in rows if row[column]]
    (row,) = [row for row in given if all(row[k] == v for k, v in conditions.items())]
    shown = f"{float(row[column]):,.{digits}f}"
    if "±" in line["shown"]:
        shown += f" ± {float(row[f'{column}, spread']):,.{digits}f}"
    return shown


@pytest.mark.parametrize("claim", [*map(str, ROWS), "notes", "README"])
def test_numbers_are_those_of_the_results(claim: str) -> None:
    others = {"notes": PAGE[PAGE.index("## Notes") :], "README": README}
    text = others[claim] if claim in others else ROWS[int(claim)][3]
    text = " ".join(text.split())
    for line in [line for line in LISTED if line["claim"] == claim]:
        assert recorded(line) == line["shown"], line
        assert re.search(rf"(?<![\d.,]){re.escape(line['shown'])}(?![\d]|[.,]\d)", text), line


@pytest.mark.parametrize("claim", ROWS)
def test_every_number_of_ours_is_listed(claim: int) -> None:
    shown = {line["shown"] for line in LISTED if line["claim"] == str(claim)}
    text = ROWS[claim][3]
    for each in sorted(shown, key=len, reverse=True):
        text = text.replace(each, "")
    assert set(re.findall(NUMBER, text)) <= SETTINGS


def test_verdicts_are_counted() -> None:
    assert list(ROWS) == list(range(1, 58))
    counts = Counter(cells[4].strip("*") for cells in ROWS.values())
    assert counts.keys() == WORDS.keys()
    introduction = " ".join(PAGE[: PAGE.index("**Scale.**")].split())
    for verdict, words in WORDS.items():
        assert f"{counts[verdict]} {words}" in introduction
    shown = f"{counts['holds']} hold and {counts['does not hold']} do not"
    assert shown in " ".join(README.split())


def test_evidence_exists() -> None:
    for cells in ROWS.values():
        for name in re.findall(r"`(tests/[^`]+)`", cells[5]):
            assert (ROOT / name).is_file(), name
    assert len(PAGE.splitlines()) <= 250
