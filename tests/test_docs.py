"""The code in README and docs runs as it stands, each page from top to bottom."""

import re
from pathlib import Path

import pytest

from benchmarks.report import report

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/guide.md", "docs/extending.md", "docs/molecules.md"]


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


def test_pages_are_linked_and_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    linked = set()
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            path = (page.parent / target).resolve()
            assert path.exists(), f"{page.name} links to {target}, which is not there"
            linked.add(path)
    assert set(map(Path.resolve, pages[1:])) <= linked


def test_results_page_is_what_the_results_files_say() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == report()
