"""Resolve the links of notebooks and of the changelog, which point to files, to pages."""

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

LINK = re.compile(r'href="(?P<path>[^":#]+\.(?:md|ipynb))(?P<anchor>#[^"]*)?"')


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Show CHANGELOG.md, whose links start at the root of the repository."""
    if page.file.src_uri != "changelog.md":
        return markdown
    return Path("CHANGELOG.md").read_text().replace("](docs/", "](")


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
    """Replace the links of a notebook; a dead one is a warning."""
    source = page.file.src_uri
    if not source.endswith(".ipynb"):
        return html

    def resolved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
        found = files.get_file_from_path(target)
        if found is None:
            logging.getLogger("mkdocs.hooks").warning("%s links to %s", source, target)
            return link[0]
        return f'href="{get_relative_url(found.url, page.url)}{link["anchor"] or ""}"'

    return LINK.sub(resolved, html)
