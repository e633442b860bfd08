"""Tables as text, Markdown and LaTeX."""

import csv
import io
import math
import re
from pathlib import Path

import pytest

from experiments.catalog import EXPERIMENTS
from experiments.experiment import Plan, write
from experiments.results import Recorded
from experiments.scale import Scale
from experiments.store import Store
from experiments.table import Column, Row, Table, Value
from tests.support.cases import slow


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


LATEX = {  # commands of LaTeX itself, of booktabs and of graphicx
    *("begin", "end", "centering", "caption", "label", "footnotesize"),
    *("toprule", "midrule", "bottomrule", "par", "medskip", "raggedright", "texttt"),
    *("multicolumn", "cmidrule", "resizebox", "ifdim", "width", "linewidth", "else", "fi"),
    *("textasciicircum", "pm", "uparrow", "downarrow", "approx", "leq", "geq"),
}


@pytest.mark.parametrize("scale", ["paper", slow("smoke"), slow("small")])
def test_tables_compile_with_two_packages(scale: Scale) -> None:
    """ASCII only, known commands, balanced braces, and one cell per column in every row."""
    plans = {name: experiment.plan(scale) for name, experiment in EXPERIMENTS.items()}
    tables = [(name, table) for name, plan in plans.items() for table in plan.tables(Recorded())]
    for name, table in tables:
        packages, tex = table.latex(name).split("\n", 1)
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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value(814261.59, 105818.97, 2), "814,262 ± 105,819"),
        (Value(1423.72, 32.591, 2), "1,424 ± 33"),
        (Value(202.187, 5.938, 3), "202.2 ± 5.9"),
        (Value(40.903, 0.314, 3), "40.90 ± 0.31"),
        (Value(1.48412, 0.00391, 3), "1.484 ± 0.004"),  # no more digits than given
        (Value(7.0, 0.0, 2), "7.00 ± 0.00"),
        (Value(57.31, 9.96, 2), "57 ± 10"),
        (Value(math.inf, math.inf, 3), "inf ± inf"),
        (Value(475.4, 17.1, 1), "475 ± 17"),
        (Value(475.4, 17.1, 1, printed=True), "475.4 ± 17.1"),  # as in the paper
        (Value(512.0), "512"),  # a count
        (Value(512.0, 3.0), "512.0 ± 3.0"),
        (Value(7.0, None, 2), "7.00"),
    ],
)
def test_digits_follow_the_spread(value: Value, text: str) -> None:
    assert value.text() == text
