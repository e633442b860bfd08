"""HTML pages."""

import re
from html.parser import HTMLParser
from importlib.resources import files


class Links(HTMLParser):
    """Collect the links and tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_self_contained(page: str, images: int) -> None:
    """Check that a page is well-formed, and that nothing is loaded from elsewhere.

    The only script is the one of the template.
    """
    links = Links(page)
    assert not links.open
    assert links.tags.count("img") == images
    assert all(link.startswith("data:") for link in links.links)
    assert not re.search(r"https?:|url\(|@import", page)
    assert links.tags.count("script") == 1
    template = (files("cwdfm.report") / "page.html").read_text(encoding="utf-8")
    assert page.count("<script>" + template.split("<script>")[1].split("</script>")[0]) == 1
