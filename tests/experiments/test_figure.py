"""Names keep their style in every figure, and lines of a figure are distinguishable."""

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from cwdfm.report.figure import Style, styles_of
from cwdfm.solver_config import Name
from experiments.catalog import EXPERIMENTS
from experiments.catalog.training import LOSS_NAMES
from experiments.cell import Cell
from experiments.figure import Curves
from experiments.grid import STEPS_UNKNOWN
from experiments.measure import measure
from experiments.notes import bars_note
from experiments.scale import Scale
from experiments.store import Store
from experiments.table import Column, Value
from tests.support.cases import slow

pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
SOLVERS = [name.capitalize() for name in get_args(Name)]
TRAININGS = [*LOSS_NAMES.values(), "SCE, context path"]


def looks(styles: dict[str, Style]) -> set[tuple[str, str, str]]:
    """Colors and markers; hollow and filled markers count as different."""
    return {(style.color, style.marker, style.fill) for style in styles.values()}


@pytest.mark.parametrize("scale", ["smoke", "paper", slow("small")])
def test_names_keep_their_style_in_all_figures(scale: Scale, tmp_path: Path) -> None:
    seen: dict[str, Style] = {}
    for experiment in EXPERIMENTS.values():
        for figure in experiment.plan(scale).figures(Store(tmp_path)):
            found = styles_of(list(figure.lines))
            assert len(looks(found)) == len(found), figure.title
            for name, style in found.items():
                assert seen.setdefault(name, style) == style, (figure.title, name)
    solvers = {"Euler", "Neighbor", "Entropy"}
    assert solvers | ({"CE", "SCE"} if scale == "smoke" else set(TRAININGS)) <= set(seen)
    # A line that is of a training and a solver has the solver's colour and marker.
    for name, style in seen.items():
        for solver in solvers:
            if f", {solver}" in name or name.startswith(f"{solver}, "):
                assert (style.color, style.marker) == (seen[solver].color, seen[solver].marker)


def test_lines_of_a_figure_are_distinguishable() -> None:
    names = [*SOLVERS, *TRAININGS]
    together = styles_of(names)
    assert len({(style.color, style.marker) for style in together.values()}) == len(names)
    for name in names:
        other = styles_of(["unknown", name])
        assert other[name] == together[name] != other["unknown"]
    names = [f"{loss}, {solver}" for loss in ("CE", "SCE") for solver in ("Euler", "Neighbor")]
    names += ["Neighbor (radius=1)", "Neighbor-counted", "a", "b", "Euler"]
    styles = styles_of(names)
    assert list(styles) == names
    assert len(looks(styles)) == len(names)
    assert styles["Euler"] == styles_of(["Euler"])["Euler"]
    assert len(looks(styles_of([f"Neighbor (radius={r})" for r in range(8)]))) == 8


def axes(columns: tuple[Column, ...], points: Any, **options: Any) -> list[Any]:
    """The panels of a figure with one line."""
    figure = Curves("t", "x", columns, {"CE": points}, **options).figure()
    figure.canvas.draw()
    return list(figure.axes)


def test_single_counts_have_the_counting_error(tmp_path: Path) -> None:
    counts = Value(512.0), Value(500.0, 3.0), Value(None)
    metric = measure("molecules", "small")  # of 1,024
    assert [value.spread for value in metric.with_error_bars(counts)] == [16.0, 3.0, None]
    cell = Cell("molecules", "small", seeds=3)
    assert bars_note([cell], Store(tmp_path)).endswith("deviation, between 3 runs.")
    assert "of counting, at most 16" in bars_note([replace(cell, seeds=1)], Store(tmp_path))
    folds = bars_note([replace(cell, seeds=1, n=5120)], Store(tmp_path))
    assert folds.endswith("between 5 folds of 1,024 samples.")
    assert measure("text", "small").with_error_bars(counts) == counts


def test_scales_of_panels() -> None:
    perplexity = Column("PPL", False, "log"), Column("close PPL", False, "log")
    columns = (Column("novel", True, "zero"), *perplexity, Column("entropy"))
    values = [(100.0 + 80 * k, 10.0**k, 5.0 + k, 7.0 + k) for k in range(4)]
    points = [(float(k), tuple(map(Value, each))) for k, each in enumerate(values)]
    level = tuple(map(Value, (350.0, 1.0, 100.0, 9.0)))
    curves = Curves("t", "x", columns, {"CE": points}, level, note="what bars are", about="4M")
    figure = curves.figure()
    head, body = figure.subfigs
    assert [text.get_text() for text in head.texts] == ["t", "4M"]
    novel, _, close, entropy = figure.axes
    assert novel.get_ylim()[0] == 0
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "log", "linear", "linear"]
    assert close.get_ylim()[0] > 4
    assert entropy.get_ylim()[0] > 6
    (legend,) = body.legends
    assert [text.get_text() for text in legend.get_texts()] == ["CE", "data"]
    assert body.get_supxlabel() == "what bars are"
    # The value of the data is written, not drawn, where it would squeeze the lines.
    assert [len(axis.get_lines()) for axis in figure.axes] == [2, 2, 1, 2]
    titles = [axis.get_title(loc="right") for axis in figure.axes]
    assert titles == ["", "", "data: 100 (above)", ""]
    assert close.get_ylim()[1] < 9


def test_axes_of_nearly_equal_values_have_no_offset() -> None:
    columns = (Column("valid", up=True, axis="zero"), Column("entropy"))
    points = [(2.0, (Value(0.0), Value(5.5486772))), (4.0, (Value(0.0), Value(5.5486825)))]
    nothing, close = axes(columns, points, level=(Value(8.0), Value(5.5)))
    assert nothing.get_ylim()[1] > 8  # and no hundredths of a count
    assert close.yaxis.get_offset_text().get_text() == ""


def test_error_bars_are_drawn_where_spreads_are_known() -> None:
    points = [(2.0, (Value(3.0, 0.5), Value(3.0))), (4.0, (Value(5.0), Value(5.0)))]
    barred, plain = axes((Column("a"), Column("b")), points)
    (drawn,) = barred.containers
    known, unknown = drawn.lines[2][0].get_segments()
    assert known[:, 1].tolist() == [2.5, 3.5]
    assert not len(unknown)
    assert not plain.containers[0].has_yerr


@pytest.mark.parametrize(
    ("axis", "places"),
    [
        ("close", {5.9: "below", 6.1: "", 30.0: "", 53.9: "", 54.1: "above"}),
        ("zero", {-5.1: "below", -4.9: "", 54.9: "", 55.1: "above"}),
        ("log", {8.4: "below", 8.6: "", 58.6: "", 58.8: "above"}),
    ],
)
def test_data_value_is_a_line_if_it_is_near_the_curves(axis: Any, places: dict[float, str]) -> None:
    points = [(1.0, (Value(10.0),)), (2.0, (Value(50.0),))]
    for level, where in places.items():
        curves = Curves("t", "x", (Column("a", None, axis),), {"CE": points}, (Value(level),))
        assert curves._beyond(0) == where, level
    bare = Curves("t", "x", (Column("a"),), {"CE": [(1.0, (Value(None),))]}, (Value(5.0),))
    assert bare._beyond(0) == ""
    assert (bare.blank, curves.blank) == (True, False)


def test_count_axes_start_at_zero_if_it_is_near() -> None:
    """Otherwise the lines would be squeezed into a small part of the panel."""

    def bottom(low: float, paper: float | None = None) -> float:
        points = [(1.0, (Value(low),)), (2.0, (Value(600.0),))]
        theirs = {"CE": (Value(paper),)}
        (axis,) = axes((Column("valid", True, "zero"),), points, log=True, paper=theirs)
        return float(axis.get_ylim()[0])

    assert bottom(300.0) == bottom(310.0, 250.0) == 0
    assert 100 < bottom(310.0) < 310


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [
        ((0.0, 99.0), "linear", None),
        ((10.0, 30.0), "linear", None),
        ((10.0, 31.0), "log", {10, 20, 30}),
        ((1.0, 700.0), "log", {1, 2, 5, 10, 20, 50, 100, 200, 500}),
        ((1.0, 20_000.0), "log", {1, 10, 100, 1000, 10_000}),
    ],
)
def test_axes_are_logarithmic_above_a_ratio_of_three(
    values: tuple[float, ...], scale: str, ticks: set[float] | None
) -> None:
    points = [(float(i), (Value(value),)) for i, value in enumerate(values)]
    (axis,) = axes((Column("a", False, "log"),), points)
    low, high = axis.get_ylim()
    assert axis.get_yscale() == scale
    assert ticks is None or {y for y in axis.get_yticks() if low <= y <= high} == ticks


def test_only_necessary_labels_are_shown() -> None:
    """One line needs no legend, the data come last, and only some of many x ticks have labels."""
    one, none = Value(1.0), Value(None)
    columns, level = (Column("a"), Column("b")), (one, one)
    many = [(float(x), (one, one)) for x in range(11)]
    single = Curves("t", "x", columns, {"CE": many}).figure()
    assert single.subfigs[1].legends == []
    assert [text.get_text() for text in single.axes[0].get_xticklabels()] == [*"02468", "10"]
    late = {"CE": [(1.0, (one, one))], "SCE": [(1.0, (none, one))]}
    (legend,) = Curves("t", "x", columns, late, level).figure().subfigs[1].legends
    assert [text.get_text() for text in legend.get_texts()] == ["CE", "SCE", "data"]


@pytest.mark.parametrize(
    ("places", "log", "labels"),
    [
        ((64, 256, 1024), True, ["64", "256", "1,024"]),
        ((0, 0.5, 1, 2, 5), False, ["0", "0.5", "1", "2", "5"]),
        ((1000, 2000, 3000, 3500), False, ["1,000", "2,000", "3,500"]),
        ((250_000, 500_000, 1_000_000), False, ["250,000", "500,000", "1,000,000"]),
    ],
)
def test_tick_labels_do_not_overlap(
    places: tuple[float, ...], log: bool, labels: list[str]
) -> None:
    points = [(x, (Value(1000 * k + 999.0),)) for k, x in enumerate(places)]
    (axis,) = axes((Column("a", axis="zero"),), points, log=log)
    assert [text.get_text() for text in axis.get_xticklabels()] == labels
    boxes = [text.get_window_extent() for text in axis.get_xticklabels()]
    letter = boxes[0].height / 2
    assert all(b.x0 - a.x1 > letter / 3 for a, b in pairwise(boxes))
    assert "1,000" in [text.get_text() for text in axis.get_yticklabels()]


def test_paper_values_are_shown_beside_the_lines() -> None:
    columns = (Column("valid", True, "zero"), Column("unique", True, "zero"))
    lines = {
        "CE": [(2.0, (Value(1.0), Value(1.0))), (4.0, (Value(2.0), Value(2.0)))],
        "SCE": [(2.0, (Value(None), Value(None)))],
    }
    paper = {"CE": (Value(3.0, 0.5), Value(None)), "SCE": (Value(4.0), Value(None))}
    valid, unique = Curves("t", "steps", columns, lines, log=True, paper=paper).figure().axes
    assert [text.get_text() for text in valid.get_xticklabels()] == ["2", "4", "paper"]
    assert [text.get_text() for text in unique.get_xticklabels()] == ["2", "4"]
    ours, theirs = (bars.lines[0] for bars in valid.containers)  # of a line not done yet: none
    assert list(ours.get_ydata()) == [1.0, 2.0]
    assert list(theirs.get_ydata()) == [3.0]
    assert theirs.get_xdata()[0] == valid.get_xticks()[-1] > 4
    (bar,) = valid.containers[1].lines[2][0].get_segments()
    assert bar[:, 1].tolist() == [2.5, 3.5]
    (border,) = (line.get_xdata()[0] for line in valid.get_lines() if line.get_color() == "#bbbbbb")
    assert 4 < border < theirs.get_xdata()[0]
    assert valid.get_xscale() == "log"
    assert not len(valid.get_xticks(minor=True))
    # Of two lines they stand side by side, around their name.
    both = dict.fromkeys(lines, lines["CE"])
    (_, _, left, right) = (
        Curves("t", "x", columns, both, log=True, paper=paper).figure().axes[0].containers
    )
    places = [bars.lines[0].get_xdata()[0] for bars in (left, right)]
    assert places[0] < valid.get_xticks()[-1] < places[1]
    # What is worked out of words is marked.
    assert not valid.texts
    rough = Curves("t", "x", columns, both, log=True, paper=paper, approximate=("SCE",))
    (mark,) = rough.figure().axes[0].texts
    assert (mark.get_text(), mark.xy) == ("≈", (places[1], 4.0))


def test_labels_at_the_ends_of_lines_do_not_overlap() -> None:
    """Two lines with error bars and equal ends, and one without its last value."""
    places = {
        "Euler": [(255, 653, 25), (187, 775, 13), (130, 838, 19)],
        "Neighbor": [(233, 629, 40), (248, 618, 25), (247, 558, 42), (253, 539, 33)],
        "Entropy": [(232, 624, 20), (250, 577, 12), (261, 544, 27), (260, 500, 1)],
    }
    lines = {name: [(float(x), (Value(y, bar),)) for x, y, bar in p] for name, p in places.items()}
    lines["Euler"].append((110.0, (Value(None),)))
    labels = {
        name: [f"{name[:2]}{i}" for i in range(len(points))] for name, points in lines.items()
    }
    figure = Curves("t", "x", (Column("a"),), lines, measured=True, point_labels=labels).figure()
    figure.draw_without_rendering()
    (axis,) = figure.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axis.texts}
    assert set(boxes) == {"Eu0", "Eu2", "Ne0", "Ne3", "En0", "En3"}
    assert not [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]
    for word, box in boxes.items():
        assert all(axis.bbox.contains(*corner) for corner in box.corners()), word
        (name,) = (name for name in labels if word in labels[name])
        at = axis.transData.transform(places[name][labels[name].index(word)][:2])
        assert box.padded(30 / 72 * figure.dpi).contains(*at), "it is next to its own point"


@pytest.mark.parametrize("scale", get_args(Scale))
def test_figures_show_only_comparable_paper_values(scale: Scale, tmp_path: Path) -> None:
    def figure(name: str) -> Curves:
        return EXPERIMENTS[name].plan(scale).figures(Store(tmp_path))[0]

    molecules, text = figure("steps-molecules-uniform"), figure("steps-text-uniform")
    valid, novel = (Value(*each, 1, printed=True) for each in ((475.4, 17.1), (287.0, 15.6)))
    assert molecules.paper == ({} if scale == "smoke" else {"Euler": (valid, novel)})
    assert bool(text.paper) == (scale == "paper")
    for each in (molecules, text):
        assert each.note.endswith(STEPS_UNKNOWN) == bool(each.paper)
    assert len(molecules.columns) == 2  # nearly all that are valid are unique
    masked = figure("steps-molecules-mask")
    assert len(masked.columns) == 3
    if scale != "smoke":  # Neighbor's: 2.8 x 134.8 and 1.9 x 114.8
        assert masked.paper["Euler"][0] == Value(134.8, 12.4, 1, printed=True)
        found = [value.value for value in masked.paper["Neighbor"]]
        assert found == [pytest.approx(377.44), None, pytest.approx(218.12)]
        assert "2.8 (valid) and 1.9 (novel)" in masked.note
    assert masked.approximate == (() if scale == "smoke" else ("Neighbor",))
    assert molecules.approximate == text.approximate == ()
    assert "training steps of" in molecules.about
    headline = figure("headline")
    assert ("5,000 of its 25,000 training steps" in headline.title) == (scale == "small")
    assert headline.approximate == (() if scale == "smoke" else ("CE, Neighbor",))
    losses = {"CE", "SCE"} | ({"CE of masked tokens"} if scale == "small" else set())
    assert {name.split(", ")[0] for name in headline.lines} == losses


def test_legend_of_many_lines_fits_the_figure() -> None:
    points = [(1.0, (Value(1.0), Value(1.0)))]
    lines = dict.fromkeys([*TRAININGS, "SCE, context path, s = 1"], points)
    figure = Curves("t", "x", (Column("valid"), Column("novel")), lines).figure()
    figure.draw_without_rendering()
    (legend,) = figure.subfigs[1].legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
