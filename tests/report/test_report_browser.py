"""The tables of a report in a real browser: sorted by a click on a column."""

from pathlib import Path

import pytest

from cwdfm.report import Evaluation
from cwdfm.report.page import page as page_of
from cwdfm.report.table import Table
from tests.support.browser import new_page, open_browser, watch

pytest.importorskip("playwright.sync_api")

ROWS = (("b", "1,024 ± 3"), ("a10", "995"), ("a9", "1,000"), ("z", "-"), ("a", "2"))


def test_tables_are_sorted_within_groups(tmp_path: Path) -> None:
    table = Table(("name", "count"), ROWS, ("g", "g", "g", "h", "h"))
    one = Evaluation("t", table, (), (), (), {}, {}, listings={"l": Table(("n",), (("1",),))})
    (tmp_path / "a.html").write_text(page_of(one, [], {}, tmp_path))
    with open_browser() as browser:
        page = new_page(browser)
        problems = watch(page)
        page.goto((tmp_path / "a.html").as_uri())

        def names() -> list[str]:
            return page.locator(".numbers tbody th").all_inner_texts()

        assert names() == ["g", "b", "a10", "a9", "h", "z", "a"]
        for column, expected, order in (
            ("count", ["a10", "a9", "b"], "ascending"),
            ("count", ["b", "a9", "a10"], "descending"),
            ("name", ["a9", "a10", "b"], "ascending"),
        ):
            page.get_by_role("button", name=column).click()
            assert names()[:4] == ["g", *expected]
            assert set(names()[5:]) == {"a", "z"}
            head = page.get_by_role("columnheader", name=column)
            assert head.get_attribute("aria-sort") == order
        assert page.locator("[aria-sort]").count() == 1
        assert not problems
