"""Place labels at the ends of a figure's lines, where they cover as little as possible.

The package adjustText does not support axes in a Matplotlib `SubFigure`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_OFFSETS = (6, 12, 18)  # points between an end and its label, in order of preference
_CLEARANCE = 2.75  # points between labels and lines: the radius of markers


@dataclass(frozen=True)
class End:
    """The end of a line, and its label."""

    label: str
    at: tuple[float, float]
    left: bool  # whether the line ends towards the left
    color: str


def ends_of(
    labels: Sequence[str], points: Sequence[tuple[float, float]], color: str
) -> Iterator[End]:
    """The first and the last point of a line."""
    for end, neighbor in ((0, 1), (-1, -2))[: len(points)]:
        left = len(points) == 1 or points[end][0] <= points[neighbor][0]
        yield End(labels[end], points[end], left, color)


def add_labels(axis: Any, ends: Sequence[End]) -> None:
    """Place labels one after another; the layout of the figure must be final."""
    paths, placed = list(_paths(axis)), list[Any]()
    clearance = _CLEARANCE / 72 * axis.figure.dpi

    def move(note: Any, place: tuple[float, float, str, str]) -> Any:
        x, y, ha, va = place
        note.xyann = x, y
        note.set(ha=ha, va=va)
        return note.get_window_extent()

    def overlaps(box: Any) -> tuple[int, int]:
        """The number of overlaps with labels and the frame, and with lines."""
        outside = not (axis.bbox.contains(*box.min) and axis.bbox.contains(*box.max))
        padded = box.padded(clearance)
        return (
            outside + sum(box.overlaps(other) for other in placed),
            sum(path.intersects_bbox(padded, filled=False) for path in paths),
        )

    for end in ends:
        style = {"textcoords": "offset points", "fontsize": "small", "color": end.color}
        note = axis.annotate(end.label, end.at, (0, 0), **style)
        note.set_in_layout(False)
        best = min(_places(end), key=lambda place: overlaps(move(note, place)))
        placed.append(move(note, best))


def _paths(axis: Any) -> Iterator[Any]:
    """Lines and error bars in pixels."""
    for line in axis.lines:
        if line.get_linestyle() != "None":
            yield line.get_transform().transform_path(line.get_path())
    for bars in axis.collections:
        yield from map(bars.get_transform().transform_path, bars.get_paths())


def _places(end: End) -> Iterator[tuple[float, float, str, str]]:
    """Offsets in points with alignments, nearest first, on the side of the line's end first."""
    for distance in _OFFSETS:
        for side in (-distance, distance) if end.left else (distance, -distance):
            for y, va in ((-3, "top"), (3, "bottom")):
                yield side, y, "right" if side < 0 else "left", va
        yield 0, -distance, "center", "top"
        yield 0, distance, "center", "bottom"
