"""The code in README and docs runs as it stands, and pages say what results do."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cwdfm import Accept, Mend
from cwdfm.cli import analyze, evaluate, perplexity, prepare, sample, train
from cwdfm.cli.main import VERBS
from cwdfm.cli.options import parse
from cwdfm.postprocess.reject import USUAL as ACCEPT_USUAL
from cwdfm.postprocess.resample import USUAL as MEND_USUAL
from experiments.bench.cases import CASES
from experiments.benchmarks.contents import claimed
from experiments.benchmarks.markdown import anchor, table
from experiments.benchmarks.molecule_sections import _leads
from experiments.benchmarks.report import report
from experiments.benchmarks.repro_sections import LOST, _half, done, filled, left_out
from experiments.benchmarks.search_tables import barred_table
from experiments.benchmarks.speed_measured import number
from experiments.benchmarks.speed_page import page
from experiments.benchmarks.text_sections import picked
from experiments.catalog import EXPERIMENTS
from experiments.claims import claims_page
from experiments.claims.on_molecules import COUNT_ERROR
from experiments.cli import options as repro_options
from experiments.table import Column, Row, Table, Value

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/guide.md", "docs/extending.md", "docs/molecules.md"]
HAND_WRITTEN = [
    *PAGES,
    *(f"docs/{name}.md" for name in ("baselines", "finetune", "repro", "text")),
]


@pytest.mark.parametrize("name", PAGES)
def test_code_blocks_run(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


def commands(text: str) -> list[list[str]]:
    """The words behind `cwdfm` of every command in a page's blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").replace("$loss", "sce").splitlines()
    found = [re.search(r"(?:^|\s)cwdfm(?:\.cli\.main)? (.+)", line) for line in lines]
    return [shlex.split(each[1], comments=True) for each in found if each]


class Parsed(Exception):
    """A command line was understood."""


def test_commands_have_options_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tyro", reason="needs the extra 'cli'")

    def understand(*of: Any) -> None:
        parse(*of)
        raise Parsed

    for module in (analyze, evaluate, perplexity, prepare, repro_options, sample, train):
        monkeypatch.setattr(module, "parse", understand)
    found = [words for page in HAND_WRITTEN for words in commands((ROOT / page).read_text())]
    asked = [words for words in found if words[1:] not in (["list"], ["--help"])]
    assert {words[0] for words in asked} == set(VERBS) - {"bench", "demo"}
    for verb, *words in asked:
        with pytest.raises(Parsed):
            VERBS[verb].main(words)


@pytest.mark.parametrize("page", HAND_WRITTEN)
def test_pages_install_what_their_commands_need(page: str) -> None:
    text = (ROOT / page).read_text()
    needs = {"eval": "plot", "analyze": "plot", "repro": "plot"}
    for extras in re.findall(r"pip install -e '\.\[([\w,]+)\]'", text):
        lacks = {needs.get(words[0], "cli") for words in commands(text)} - set(extras.split(","))
        assert not lacks, f"{page}: {lacks}"


def test_settings_that_are_left_out_are_told() -> None:
    """What None stands for in mending and accepting, where it is looked up."""
    (noise, trust), (hidden, seen) = MEND_USUAL[False], MEND_USUAL[True]
    told = " ".join(f"{Mend.__doc__}".split())
    assert f"None is {noise} with a uniform source, {hidden} with a mask source" in told
    assert f"None is {trust} and {seen}" in told
    shares = f"{ACCEPT_USUAL[False]} with a uniform source, {ACCEPT_USUAL[True]} with a mask source"
    assert f"None is {shares}" in " ".join(f"{Accept.__doc__}".split())
    flags = (ROOT / "cwdfm" / "cli" / "sample_options.py").read_text()
    for uniform, mask in ((noise, hidden), (trust, seen), tuple(ACCEPT_USUAL.values())):
        assert f"None: {uniform} with a uniform source, {mask} with a" in flags


def test_pages_are_linked_and_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    linked = set()
    for each in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", each.read_text()):
            path = (each.parent / target).resolve()
            assert path.exists(), f"{each.name} links to {target}, which is not there"
            linked.add(path)
    assert set(map(Path.resolve, pages[1:])) <= linked


def anchors(text: str) -> list[str]:
    """Of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found]


def test_links_into_pages_lead_to_headings() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    known = {each.resolve(): anchors(each.read_text()) for each in pages}
    for each in pages:
        linked = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", each.read_text())
        for target, place in linked:
            there = known[(each.parent / target).resolve() if target else each.resolve()]
            assert there.count(place) == 1, f"{each.name} links to {target}#{place}"


@pytest.mark.parametrize("name", ["results", "speed"])
def test_contents_lead_to_every_section(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    contents = text[text.index("## Contents") :]
    first = re.search(r"^## (?!Contents)", contents, re.MULTILINE)
    assert first is not None
    linked = re.findall(r"\]\(#([^)]+)\)", contents[: first.start()])
    assert set(anchors(contents[first.start() :])) == set(linked)


@pytest.mark.parametrize("name", ["results", "speed", "claims"])
def test_generated_pages_are_those_of_the_results(name: str) -> None:
    made = {"results": report, "speed": page, "claims": claims_page}[name]()
    assert (ROOT / "docs" / f"{name}.md").read_text() == made, "run: python -m benchmarks.report"


def test_numbers_that_the_readme_quotes_are_on_the_pages() -> None:
    """Those of its summary of claims, with the words beside them: "277 to 330", "178 and 130"."""
    readme = (ROOT / "README.md").read_text()
    summary = readme[readme.index("## Is it true?") : readme.index("Not run:")]
    pages = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("claims", "results"))
    known = {round(float(each.replace(",", ""))) for each in re.findall(r"\d[\d,]*\.?\d*", pages)}
    quoted = {int(each.replace(",", "")) for each in re.findall(r"\b\d[\d,]{2,}\b", summary)}
    assert len(quoted) > 20
    assert not quoted - known
    changed = set(re.findall(r"\d{3} to \d{3}", summary))
    assert changed >= {"162 to 113", "277 to 330"}
    in_tables = {"738 to 826", "302 to 252"}  # rows there, not a change in words
    assert {each for each in changed if each not in pages} == in_tables


def test_revisions_of_results_are_commits() -> None:
    try:
        made = subprocess.run(
            ["git", "log", "--format=%H"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no history")
    known = {commit[:digits] for commit in made for digits in (7, 12)}
    if not set(LOST.values()) <= known:
        pytest.skip("another history, or a part of it")
    for path in (ROOT / "results").rglob("*.json"):
        for found in re.findall(r'"revision": "(\w+)', path.read_text()):
            assert found in known | LOST.keys(), f"{path} names {found}, which is no commit"


def test_claims_at_a_glance_lead_to_their_evidence_and_to_what_shows_them() -> None:
    made = claims_page()
    glance = made[: made.index("## How a verdict")]
    headings = {anchor(line[4:]) for line in made.splitlines() if line.startswith("### ")}
    linked = re.findall(r"\[\d+\]\(#([^)]+)\)", glance)
    assert len(linked) == len(set(linked)) > 40
    assert set(linked) == headings
    commands = [row.split(" | ")[-1] for row in glance.splitlines() if row.startswith("| [")]
    for named in {name for cell in commands for name in re.findall("`([^`]+)`", cell)}:
        first, *rest = named.split()
        match first:
            case "pytest":
                assert (ROOT / rest[0]).is_file(), named
            case "python":
                module = f"{rest[1].replace('.', '/')}.py" if rest[0] == "-m" else rest[0]
                assert (ROOT / module).is_file(), named
            case "cwdfm":
                assert set(rest[4:]) <= set(CASES), named
            case _:
                assert named in EXPERIMENTS


def test_experiments_that_are_not_shown_are_named() -> None:
    assert left_out(EXPERIMENTS) == []
    (told,) = left_out(EXPERIMENTS.keys() - {"losses"})
    assert "`losses` (" in told


def test_few_points_of_a_curve_have_both_ends() -> None:
    assert picked(17) == [0, 1, 2, 4, 8, 16]
    assert picked(16) == [0, 1, 2, 4, 8, 15]
    assert picked(2) == [0, 1]


def test_a_table_is_shown_once_half_of_it_is_done() -> None:
    columns, done, blank = (Column("a"), Column("b")), Value(1.0), Value(None)

    def half(*values: Value, data: Value = blank) -> bool:
        rows = (Row(("data",), (data, data)), Row(("x",), values[:2]), Row(("y",), values[2:]))
        return _half(Table("title", ("row",), columns, rows))

    assert half(done, done, blank, blank)
    assert not half(done, blank, blank, blank)
    assert not half(done, blank, blank, blank, data=done)  # which has no training


def test_a_bar_costs_those_that_it_leaves_out() -> None:
    setting = {"temperature": 1, "solver": "euler", "steps": 64, "mend": 0}
    kept = {"share": 0.5, "least": 0.1, "valid": 990.0, "novel": 300.0}
    row = {"model": "m", "setting": setting, "evaluations": 60.0, "valid": 980.0, "novel": 400.0}
    made = barred_table({"rows": [row | {"accepting": [kept]}]}).splitlines()
    assert [line.split("|")[-3:-1] for line in made[2:]] == [
        [" 60.0 ", " 980 / 400 "],  # 970 at least
        [" 60.0 ", " 980 / 400 "],
        [" 120.0 ", " 990 / 300 "],
    ]


def test_solvers_that_are_even_lead_nowhere() -> None:
    row = {"valid": {"mean": 500.0}, "novel": {"mean": 300.0}, "folds": 4}
    solvers = ("euler", "neighbor", "entropy")
    keys = [(source, s, k) for source in ("uniform", "mask") for s in solvers for k in (64, 128)]
    told = _leads(dict.fromkeys(keys, row), [64, 128])
    assert told.count("at no number of steps") == 6
    assert told.endswith(f"Means scatter by about {COUNT_ERROR / 2:.0f}.")


def test_speeds_have_three_digits_that_count() -> None:
    shown = [number(x) for x in (0.02, 9.996, 99.94, 99.96, 1234.5, None)]
    assert shown == ["0.0200", "10.0", "99.9", "100", "1,234", ""]


def test_columns_of_numbers_are_to_the_right() -> None:
    rows = [["8", "7.1 ± 0.2", "980 / 191", "Euler", "1 to 2 valid"], ["16", "", "1", "", "3"]]
    rule = table([*"abcde"], rows).splitlines()[1]
    assert rule == "| --- | ---: | ---: | --- | --- |"


def test_what_the_paper_says_stands_above_its_table() -> None:
    shown = claimed("updates").splitlines()
    assert shown[0] == "| the paper says | seen here | verdict |"
    assert "Neighbor weights change tokens more often" in shown[2]
    assert re.search(r"\[holds[^]]*\]\(claims\.md#\d+-holds", shown[2])
    assert claimed("positions") == ""  # of which it says nothing


def test_blank_columns_are_told_and_not_shown() -> None:
    a, b, c = columns = tuple(Column(name) for name in "abc")
    one, two, none = Value(1.0), Value(2.0), Value(None)
    rows = (Row(("x",), (one, none, two), (two, one)), Row(("y",), (none, none, one)))
    found = filled(Table("title", ("row",), columns, rows, paper=(a, b)))
    assert found.columns == (a, c)
    assert found.paper == (a,)
    assert [(row.ours, row.paper) for row in found.rows] == [
        ((one, two), (two,)),
        ((none, one), ()),
    ]
    assert found.notes == ("Not done yet: b.",)
    assert filled(found) is found


def test_blank_rows_are_told_and_not_shown() -> None:
    columns, one, none = (Column("a"),), (Value(1.0),), (Value(None),)
    named = [(("x", "p", "16"), none), (("x", "p", "32"), none), (("y", "", "16"), none)]
    rows = (Row(("x", "q", "16"), one), *(Row(labels, values) for labels, values in named))
    found = done(Table("title", ("source", "solver", "steps"), columns, rows))
    assert found.rows == rows[:1]
    assert found.notes == ("Not done yet: x p 16, 32; y 16.",)
