"""The code and the commands in README and docs run, and links resolve."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cwdfm import Reject, Resample
from cwdfm.cli import (
    analyze,
    app,
    completion,
    evaluate,
    perplexity,
    prepare,
    replay,
    sample_options,
    train,
)
from cwdfm.cli.main import COMMANDS
from cwdfm.cli.options import parse
from cwdfm.postprocess.reject import DEFAULTS as REJECT_DEFAULTS
from cwdfm.postprocess.resample import DEFAULTS as RESAMPLE_DEFAULTS
from experiments.cli import options as repro_options

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/guide.md", "docs/extending.md", "docs/molecules.md"]
HAND_WRITTEN = [*PAGES, *(f"docs/{name}.md" for name in ("baselines", "finetune", "repro", "text"))]


@pytest.mark.parametrize("name", PAGES)
def test_code_blocks_run(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def commands(text: str) -> list[list[str]]:
    """The arguments of every `cwdfm` command in the shell blocks of a page."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").replace("$loss", "sce").splitlines()
    found = [re.search(r"(?:^|\s)cwdfm(?:\.cli\.main)? (.+)", line) for line in lines]
    return [shlex.split(each[1].split(" >")[0], comments=True) for each in found if each]


class Parsed(Exception):
    """Raised after a command line was parsed."""


def test_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tyro", reason="needs the extra 'cli'")

    def parse_only(*arguments: Any) -> None:
        parse(*arguments)
        raise Parsed

    modules = (
        analyze,
        app,
        completion,
        evaluate,
        perplexity,
        prepare,
        replay,
        sample_options,
        train,
    )
    for module in (*modules, repro_options):
        monkeypatch.setattr(module, "parse", parse_only)
    found = [words for page in HAND_WRITTEN for words in commands((ROOT / page).read_text())]
    run = [words for words in found if words[1:] not in (["list"], ["--help"])]
    assert {words[0] for words in run} == set(COMMANDS) - {"bench", "demo"}
    for name, *words in run:
        with pytest.raises(Parsed):
            COMMANDS[name].load()(words)


@pytest.mark.parametrize("page", HAND_WRITTEN)
def test_pages_install_what_their_commands_need(page: str) -> None:
    text = (ROOT / page).read_text()
    needs = {"app": "app", "eval": "plot", "analyze": "plot", "repro": "plot"}
    for extras in re.findall(r"pip install -e '\.\[([\w,]+)\]'", text):
        missing = {needs.get(words[0], "cli") for words in commands(text)} - set(extras.split(","))
        assert not missing, f"{page}: {missing}"


def test_default_values_are_documented() -> None:
    """Docstrings and help texts state the defaults that depend on the source."""
    flags = " ".join((ROOT / "cwdfm" / "cli" / "sample_options.py").read_text().split())
    fractions, thresholds = zip(*RESAMPLE_DEFAULTS.values(), strict=True)
    for config, (uniform, mask) in (
        (Resample, fractions),
        (Resample, thresholds),
        (Reject, tuple(REJECT_DEFAULTS.values())),
    ):
        text = f"The default is {uniform} with a uniform source, {mask} with a mask source"
        assert text in " ".join(f"{config.__doc__}".split())
        assert text in flags.replace(" # ", " ")


def test_pages_are_linked_and_links_resolve() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    linked = set()
    for each in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", each.read_text()):
            path = (each.parent / target).resolve()
            assert path.exists(), f"{each.name} links to {target}, which does not exist"
            linked.add(path)
    assert set(map(Path.resolve, pages[1:])) <= linked


def anchors(text: str) -> list[str]:
    """The anchors that GitHub generates for the headings of a page."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found]


def test_links_to_headings_resolve() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    known = {each.resolve(): anchors(each.read_text()) for each in pages}
    for each in pages:
        linked = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", each.read_text())
        for target, place in linked:
            there = known[(each.parent / target).resolve() if target else each.resolve()]
            assert there.count(place) == 1, f"{each.name} links to {target}#{place}"
