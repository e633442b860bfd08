"""Tables as text, Markdown and LaTeX."""

import csv
import io
import math
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from experiments.catalog import EXPERIMENTS
from experiments.experiment import Plan, numbered, write
from experiments.scale import Scale
from experiments.store import Store
from experiments.table import Column, Row, Table, Value


def test_tables_in_three_forms(tmp_path: Path) -> None:
    mauve, ppl = Column("MAUVE", True), Column("PPL", False)
    rows = (
        Row(("a_b",), (Value(0.5, 0.01, 2), Value(1234.5, None, 1)), (Value(0.7, 0.1, 1),)),
        Row(("50%",), (Value(None), Value(2.0, 0.5, 1))),
    )
    table = Table("One & two", ("method",), (mauve, ppl), rows, paper=(mauve,), notes=("Note.",))
    assert table.markdown() == (
        "### One & two\n\n"
        "| method | MAUVE ↑ | PPL ↓ | paper: MAUVE ↑ |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a_b | 0.50 ± 0.01 | 1,234.5 | 0.7 ± 0.1 |\n"
        "| 50% |  | 2.0 ± 0.5 |  |\n\nNote.\n"
    )
    head, first, second = csv.reader(io.StringIO(table.csv()))
    assert head[:5] == ["method", "MAUVE", "MAUVE, spread", "PPL", "PPL, spread"]
    assert first == ["a_b", "0.5", "0.01", "1234.5", "", "0.7", "0.1"]
    assert second == ["50%", "", "", "2.0", "0.5", "", ""]
    tex = table.latex("t")
    assert tex.splitlines()[1:13] == [
        *(r"\begin{table}", r"\centering", r"\caption{One \& two}", r"\label{tab:t}"),
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{\begin{tabular}{lrrr}",
        *(r"\toprule", r"& \multicolumn{2}{c}{measured here} & \multicolumn{1}{c}{paper} \\"),
        r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}",
        r"method & MAUVE $\uparrow$ & PPL $\downarrow$ & MAUVE $\uparrow$ \\",
        r"\midrule",
        r"a\_b & 0.50$_{\pm 0.01}$ & 1,234.5 & 0.7$_{\pm 0.1}$ \\",
        r"50\% &  & 2.0$_{\pm 0.5}$ &  \\",
    ]
    plan = Plan(tasks=(), tables=lambda _: [table])
    files = list(write(plan, Store(tmp_path), tmp_path, "t"))
    assert {path.name for path in files} == {"t.md", "t.csv", "t.tex"}
    *_, last = write(plan, Store(tmp_path), tmp_path / "smoke", "t")
    toys = last.read_text().splitlines()
    assert toys[0].startswith("% `python -m experiments run t` at smoke scale")
    assert toys[0].endswith("the numbers are meaningless.")
    assert "\n".join(toys[1:]) + "\n" == tex


def test_latex_special_characters_are_escaped() -> None:
    rows = (Row((r"[a] \ {x} $5 ~ ^ ≈ 12 `a_b <c>`",), (Value(1.0),)),)
    tex = Table("t", ("*",), (Column("x_1", True),), rows).latex("t")
    assert r"{*} & x\_1 $\uparrow$ \\" in tex
    assert (
        r"{[}a{]} \textbackslash{} \{x\} \$5 \textasciitilde{} \textasciicircum{} $\approx$ 12 "
        r"\texttt{a\_b $<$c$>$} & 1 \\"
    ) in tex


def test_wide_tables_use_small_type_and_wrap_long_labels() -> None:
    def tex(columns: int) -> str:
        row = Row(
            ("best: Euler (16), Neighbor (32, 64)",), (Value(1234.5, 67.8, printed=True),) * columns
        )
        measures = (Column("entropy of samples", True),) * columns
        return Table("t", ("m",), measures, (row,)).latex("t")

    narrow, wide = tex(1), tex(5)
    small = r"\footnotesize" "\n" r"\setlength{\tabcolsep}{3pt}" "\n"
    assert small not in narrow
    assert r"m & entropy of samples $\uparrow$ \\" in narrow
    assert small in wide
    assert wide.count(r" & \shortstack[r]{entropy of\\samples $\uparrow$}") == 5
    assert r"\shortstack[l]{best: Euler (16),\\Neighbor (32, 64)} & 1,234.5" in wide


LATEX = {  # commands of LaTeX itself, of booktabs and of graphicx
    *("begin", "end", "centering", "caption", "label", "footnotesize", "scriptsize", "setlength"),
    "shortstack",
    *("tabcolsep", "toprule", "midrule", "bottomrule", "par", "medskip", "raggedright", "texttt"),
    *("multicolumn", "cmidrule", "resizebox", "ifdim", "width", "linewidth", "else", "fi"),
    *("textasciicircum", "pm", "uparrow", "downarrow", "approx", "leq", "geq"),
}


@cache
def in_latex(scale: Scale) -> dict[str, str]:
    """All tables with the recorded results, by name."""
    ours = Store(Path(__file__).parents[2] / "results" / "repro" / "jobs")
    plans = {name: experiment.plan(scale) for name, experiment in EXPERIMENTS.items()}
    named = [each for name, plan in plans.items() for each in numbered(name, plan.tables(ours))]
    return {stem: table.latex(stem) for stem, table in named}


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_tables_compile_with_two_packages(scale: Scale) -> None:
    """ASCII only, known commands, balanced braces, and one cell per column in every row."""
    for name, whole in in_latex(scale).items():
        packages, tex = whole.split("\n", 1)
        assert packages.endswith(r"\usepackage{booktabs,graphicx}"), name
        assert tex.isascii(), name
        bare = re.sub(r"\\[^a-z]", "", tex)  # without escapes and ends of lines
        assert set(re.findall(r"\\([a-z]+)", bare)) <= LATEX, name
        bare = re.sub(r"(?<=\d)\$_{\\pm [\d.,]+}\$", "", bare)  # and spreads
        assert not set(bare) & set("#~^_%"), name
        assert bare.count("{") == bare.count("}"), name
        assert all(line.count("$") % 2 == 0 for line in bare.splitlines()), name
        opened = re.findall(r"\\(begin|end){(\w+)}", tex)
        pairs = [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
        assert opened == pairs, name
        (shape,) = re.findall(r"{tabular}{([lr]+)}", tex)
        for row in filter(lambda line: "&" in line, bare.splitlines()):
            spans = [int(number) for number in re.findall(r"multicolumn{(\d+)}", row)]
            assert row.count("&") + 1 + sum(spans) - len(spans) == len(shape), name


def letters() -> dict[str, float]:
    """The widths of the characters of Computer Modern at 10 pt, in points."""
    matplotlib = pytest.importorskip("matplotlib")
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "cmr10.ttf"
    font = import_module("matplotlib.ft2font").FT2Font(str(file))
    font.set_size(10, 72)
    return {chr(code): font.load_char(code).linearHoriAdvance / 65536 for code in range(32, 127)}


def test_tables_fit_a_page_in_readable_type() -> None:
    """Tables fit the 345 pt x 550 pt page of LaTeX's `article`, in type of at least 5 pt."""
    wide = letters()

    def points(line: str) -> float:
        number, _, spread = line.partition(r"$_{\pm ")
        plain = re.sub(r"\$\\[a-z]+\$", "+", number)  # a sign that is as wide, or wider
        own = sum(wide[letter] for letter in re.sub(r"\\[a-z]+|[\\{}$]", "", plain))
        return own + (0.75 * (wide["+"] + points(spread)) if spread else 0.0)

    def stack(cell: str) -> list[str]:
        stacked = re.fullmatch(r"\\shortstack\[[lr]\]{(.*)}", cell)
        return stacked[1].split(r"\\") if stacked else [cell]

    for name, tex in in_latex("small").items():
        rows = [row[:-3].split(" & ") for row in tex.splitlines() if row.endswith(r" \\")]
        rows = [row for row in rows if "multicolumn" not in "".join(row)]
        # Letters of 8 pt are 0.85 times as wide as those of 10 pt, not 0.8.
        kind = re.search(r"\n\\(scriptsize|footnotesize)\n", tex.partition(r"\begin{tabular}")[0])
        sizes = {"scriptsize": (7, 0.8, 8), "footnotesize": (8, 0.85, 9.5), "": (10, 1.0, 12)}
        size, ratio, line = sizes[kind[1] if kind else ""]
        room = 6 if r"\tabcolsep}{3pt}" in tex else 12
        columns = list(zip(*rows, strict=True))
        natural = (max(points(line) for cell in c for line in stack(cell)) for c in columns)
        width = sum(ratio * each + room for each in natural)
        scaled = min(1.0, 345 / width)
        assert size * scaled >= 5, f"{name} is {width:.0f} pt wide"
        lines = sum(max(len(stack(cell)) for cell in row) for row in rows)
        notes = tex.partition(r"\raggedright\footnotesize" "\n")[2].partition(r"\end{table}")[0]
        below = sum(math.ceil(0.85 * points(note) / 345) for note in notes.splitlines())
        height = 40 + scaled * line * lines + 9.5 * below  # with the caption and rules
        assert height <= 550, f"{name} is {height:.0f} pt high"


def test_digits_follow_the_spread() -> None:
    assert Value(814261.59, 105818.97, 2).text() == "814,262 ± 105,819"
    assert Value(1423.72, 32.591, 2).text() == "1,424 ± 33"
    assert Value(202.187, 5.938, 3).text() == "202.2 ± 5.9"
    assert Value(40.903, 0.314, 3).text() == "40.90 ± 0.31"
    assert Value(1.48412, 0.00391, 3).text() == "1.484 ± 0.004"  # no more than it was given
    assert Value(7.0, 0.0, 2).text() == "7.00 ± 0.00"
    assert Value(57.31, 9.96, 2).text() == "57 ± 10"
    assert Value(math.inf, math.inf, 3).text() == "inf ± inf"  # a bound beyond all numbers
    assert Value(475.4, 17.1, 1).text() == "475 ± 17"
    assert Value(475.4, 17.1, 1, printed=True).text() == "475.4 ± 17.1"  # as the paper has it


def test_counts_have_no_decimals() -> None:
    assert Value(512.0).text() == "512"
    assert Value(512.0, 3.0).text() == "512.0 ± 3.0"  # a mean
    assert Value(7.0, None, 2).text() == "7.00"
