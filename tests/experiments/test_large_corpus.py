"""Markup that the larger corpus removes."""

from experiments.studies.large_corpus import plain_markdown, plain_wiki


def test_wiki_markup_is_removed() -> None:
    page = (
        "'''Anarchism''' is {{a {{b}}}}a [[political philosophy|philosophy]], see [[Rome]].\n"
        "{| class=x\n| cell\n|}\n== History ==\n* first [http://x.org a link]<ref>no</ref>\n"
        "[[Image:a.png|thumb|with [[links]] inside]]end<!-- hidden -->"
    )
    assert plain_wiki(page) == (
        "Anarchism is a philosophy, see Rome.\n\nHistory\nfirst a link\nend"
    )


def test_markdown_markup_is_removed() -> None:
    page = (
        "---\ntitle: x\n---\n# A title\n\n[!INCLUDE [sql](../includes/sql.md)] runs **well**, see "
        "[this page](a.md).\n\n```sql\nSELECT 1\n```\n\n| a | b |\n| - | - |\n\n"
        "> [!NOTE]\n> A note.\n"
        "![image](a.png)\n[!INCLUDE [long](../includes/long.md)]"
    )
    pages = {"docs/includes/sql.md": "---\nx: y\n---\nSQL Server\n"}
    pages["docs/includes/long.md"] = "word " * 50
    assert plain_markdown(page, "docs/a/page.md", pages) == (
        "A title\n\nSQL Server runs well, see this page.\n\nA note."
    )
