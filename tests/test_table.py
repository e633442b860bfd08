"""Tables say what was found, in three forms."""

import csv
import io
import re
from pathlib import Path

import pytest

from cwdfm.repro.experiment import Plan, numbered, write
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.job import Store
from cwdfm.repro.scale import Scale
from cwdfm.repro.table import Column, Row, Table, Value


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
    assert r"a\_b & 0.50 $\pm$ 0.01 & 1,234.5 & 0.7 $\pm$ 0.1 \\" in tex
    head = [r"\begin{table}", r"\centering", r"\caption{One \& two}", r"\label{tab:t}"]
    assert tex.splitlines()[:5] == [*head, r"\begin{tabular}{lrrr}"]
    plan = Plan(jobs=(), tables=lambda _: [table])
    files = write(plan, Store(tmp_path), tmp_path, "t")
    assert {path.name for path in files} == {"t.md", "t.csv", "t.tex"}
    toys = write(plan, Store(tmp_path), tmp_path / "smoke", "t")[-1].read_text().splitlines()
    assert toys[0].startswith("% `cwdfm repro t` at smoke scale")
    assert toys[0].endswith("Toys: the numbers mean nothing.")
    assert "\n".join(toys[1:]) + "\n" == tex


def test_signs_of_latex_are_escaped() -> None:
    rows = (Row((r"[a] \ {x} $5 ~ ^ ≈ 12 `a_b <c>`",), (Value(1.0),)),)
    tex = Table("t", ("*",), (Column("x_1", True),), rows).latex("t")
    assert r"{*} & x\_1 $\uparrow$ \\" in tex
    assert (
        r"{[}a{]} \textbackslash{} \{x\} \$5 \textasciitilde{} \textasciicircum{} $\approx$ 12 "
        r"\texttt{a\_b $<$c$>$} & 1 \\"
    ) in tex


def test_wide_tables_are_in_small_type() -> None:
    def kind(columns: int) -> str | None:
        row = Row(("a",), (Value(1234.5, 67.8, printed=True),) * columns)
        tex = Table("t", ("m",), (Column("x"),) * columns, (row,)).latex("t")
        found = re.search(r"\\label{tab:t}\n\\(\w+)\n\\setlength{\\tabcolsep}{3pt}\n", tex)
        return found and found[1]

    assert [kind(n) for n in (1, 4, 5, 8)] == [None, None, "footnotesize", "scriptsize"]


LATEX = {  # commands of LaTeX itself and of booktabs
    *("begin", "end", "centering", "caption", "label", "footnotesize", "scriptsize", "setlength"),
    *("tabcolsep", "toprule", "midrule", "bottomrule", "par", "medskip", "raggedright", "texttt"),
    *("textasciicircum", "pm", "uparrow", "downarrow", "approx", "leq", "geq"),
}


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_tables_compile_with_booktabs_alone(scale: Scale) -> None:
    """Plain letters, known commands, brackets in pairs, as many cells in a row as columns."""
    ours = Store(Path(__file__).parents[1] / "results" / "repro" / "jobs")
    for name, experiment in EXPERIMENTS.items():
        for stem, table in numbered(name, experiment.plan(scale).tables(ours)):
            tex = table.latex(stem)
            assert tex.isascii(), name
            assert set(re.findall(r"\\([a-z]+)", tex)) <= LATEX, name
            bare = re.sub(r"\\[^a-z]", "", tex)  # without escapes and ends of lines
            assert not set(bare) & set("#~^_"), name
            assert "%" not in bare, name
            assert bare.count("{") == bare.count("}"), name
            assert all(line.count("$") % 2 == 0 for line in bare.splitlines()), name
            opened = re.findall(r"\\(begin|end){(\w+)}", tex)
            pairs = [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
            assert opened == pairs, name
            (shape,) = re.findall(r"{tabular}{([lr]+)}", tex)
            cells = [line.count("&") + 1 for line in bare.splitlines() if "&" in line]
            assert set(cells) == {len(shape)}, name


def test_a_number_has_no_more_digits_than_its_spread_tells() -> None:
    assert Value(814261.59, 105818.97, 2).text() == "814,262 ± 105,819"
    assert Value(1423.72, 32.591, 2).text() == "1,424 ± 33"
    assert Value(202.187, 5.938, 3).text() == "202.2 ± 5.9"
    assert Value(40.903, 0.314, 3).text() == "40.90 ± 0.31"
    assert Value(1.48412, 0.00391, 3).text() == "1.484 ± 0.004"  # no more than it was given
    assert Value(7.0, 0.0, 2).text() == "7.00 ± 0.00"
    assert Value(475.4, 17.1, 1).text() == "475 ± 17"
    assert Value(475.4, 17.1, 1, printed=True).text() == "475.4 ± 17.1"  # as the paper has it


def test_counts_have_no_digits_and_other_whole_numbers_theirs() -> None:
    assert Value(512.0).text() == "512"
    assert Value(512.0, 3.0).text() == "512.0 ± 3.0"  # a mean
    assert Value(7.0, None, 2).text() == "7.00"
