"""The code in README and docs runs, and links resolve. `test_shell_blocks.py` runs the commands."""

import re
import shlex
from pathlib import Path

import pytest

import cwdfm
from cwdfm import Reject, Resample
from cwdfm.cli.main import COMMANDS
from cwdfm.postprocess.reject import DEFAULTS as REJECT_DEFAULTS
from cwdfm.postprocess.resample import DEFAULTS as RESAMPLE_DEFAULTS
from tests.support.cases import slow

ROOT = Path(__file__).parents[2]
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [
    str(path.relative_to(ROOT))
    for path in ALL_PAGES
    if "```python\n" in path.read_text()
    and path.name not in ("generation.md", "pretrained.md")  # tests/integrations
]
# Pages whose code takes seconds: they train, or sample with every solver.
LONG = {f"docs/{name}.md" for name in ("api/postprocessing", "api/sampling", "guide", "molecules")}
HAND_WRITTEN = [
    str(path.relative_to(ROOT))
    for path in ALL_PAGES
    if path.parent.name not in ("api", "results", "decisions")
]


@pytest.mark.parametrize("name", [slow(name) if name in LONG else name for name in PAGES])
def test_code_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one namespace per page and in a folder of its own, with a small QM9."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    (tmp_path / "small.smi").write_text("".join(f"{'C' * n}c1ccccc1\n" for n in range(24)))
    small = cwdfm.data.load(tmp_path / "small.smi", cache=False)
    load = cwdfm.data.load
    monkeypatch.setattr(
        cwdfm.data, "load", lambda *a, **k: small if a == ("qm9",) else load(*a, **k)
    )
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def commands(text: str) -> list[list[str]]:
    """The arguments of every `cwdfm` command in the shell blocks of a page."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").replace("$loss", "sce").splitlines()
    found = [re.search(r"^\s*(?:torchrun .+ )?cwdfm(?:\.cli\.main)? (.+)", line) for line in lines]
    return [shlex.split(re.split(r" [>|&]", each[1])[0], comments=True) for each in found if each]


def test_every_command_has_an_example() -> None:
    shown = {words[0] for page in HAND_WRITTEN for words in commands((ROOT / page).read_text())}
    assert shown - {"--version"} == set(COMMANDS) - {"demo"}


@pytest.mark.parametrize("page", HAND_WRITTEN)
def test_pages_install_what_their_commands_need(page: str) -> None:
    text = (ROOT / page).read_text()
    needs = {"app": "app", "eval": "plot", "analyze": "plot"}
    for extras in re.findall(r"pip install (?:-e )?'\.\[([\w,]+)\]'", text):
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
        text = rf"[Dd]efault(:| is) {uniform} with a uniform source, (and )?{mask} with a mask"
        assert re.search(text, " ".join(f"{config.__doc__}".split()))
        assert re.search(text, flags.replace(" # ", " "))


def test_links_resolve() -> None:
    """On GitHub, which shows the files; `test_site.py` tests the site."""
    for each in ALL_PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", each.read_text()):
            assert (each.parent / target).exists(), f"{each.name} links to {target}"


def anchors(text: str) -> list[str]:
    """The anchors that GitHub generates for the headings of a page."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found]


def test_links_to_headings_resolve() -> None:
    known = {each.resolve(): anchors(each.read_text()) for each in ALL_PAGES}
    for each in ALL_PAGES:
        linked = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", each.read_text())
        for target, place in linked:
            there = known[(each.parent / target).resolve() if target else each.resolve()]
            assert there.count(place) == 1, f"{each.name} links to {target}#{place}"
