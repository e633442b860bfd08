"""The code in README and docs runs as it stands, each page from top to bottom."""

import re
from pathlib import Path

import pytest

from benchmarks.claims import claims_page
from benchmarks.claims.judging import judged
from benchmarks.report import report
from benchmarks.speed_page import page

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/guide.md", "docs/extending.md", "docs/molecules.md"]


@pytest.mark.parametrize("name", PAGES)
def test_code_blocks_run(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def test_pages_are_linked_and_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    linked = set()
    for each in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", each.read_text()):
            path = (each.parent / target).resolve()
            assert path.exists(), f"{each.name} links to {target}, which is not there"
            linked.add(path)
    assert set(map(Path.resolve, pages[1:])) <= linked


@pytest.mark.parametrize("name", ["results", "speed", "claims"])
def test_generated_pages_are_those_of_the_results(name: str) -> None:
    made = {"results": report, "speed": page, "claims": claims_page}[name]()
    assert (ROOT / "docs" / f"{name}.md").read_text() == made, "run: python -m benchmarks.report"


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([3.0, 2.5], "holds"),
        ([3.0, 1.0], "holds partly"),
        ([3.0, -9.0], "holds partly"),
        ([1.0, -1.9], "undecided here"),
        ([1.0, -2.1], "does not hold here"),
    ],
)
def test_verdicts(gains: list[float], verdict: str) -> None:
    assert judged(gains) == verdict
