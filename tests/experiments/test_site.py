"""The documentation site: it builds without a warning, its links resolve, it loads nothing else."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import cwdfm

pytestmark = pytest.mark.filterwarnings("default")  # those of mkdocs' plugins
ROOT = Path(__file__).parents[2]
REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))


class Page(HTMLParser):
    """The links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of mkdocs is an error."""
    build = pytest.importorskip("mkdocs.commands.build", reason="needs the extra 'docs'")
    config = pytest.importorskip("mkdocs.config")
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        build.build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=True))
    return out


@pytest.mark.slow
def test_links_and_files_of_the_site_resolve(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 60
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme:
                assert link not in page.loaded, f"{path} loads {link} from another site"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)} links to {link}"
            if parts.fragment and target in pages:
                found = unquote(parts.fragment) in pages[target].anchors
                assert found, f"{path.relative_to(site)} links to {link}"


@pytest.mark.slow
def test_search_finds_public_names_and_pages(site: Path) -> None:
    docs = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titles = {each["title"].split("  <code>")[0] for each in docs}
    assert set(public_names()) <= titles
    assert {"Choosing a solver", "The likelihood bound"} <= titles
    assert any("hole" in each["text"] and "notebooks/text" in each["location"] for each in docs)


def public_names() -> list[str]:
    dir(cwdfm)  # imports them
    return [str(name) for name in vars(cwdfm)["__all__"]]


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_documented_with_an_example(name: str) -> None:
    """Add it to a page in docs/api: `::: cwdfm.NAME` and a code block that uses it."""
    home = rf"^::: cwdfm\.(?:\w+\.)*{name}$"
    pages = [text for text in map(Path.read_text, REFERENCE) if re.search(home, text, re.M)]
    assert len(pages) == 1
    examples = re.findall(r"```python\n(.*?)```", pages[0], re.DOTALL)
    assert any(re.search(rf"\bcwdfm\.{name}\b|\.{name}\(", example) for example in examples)
