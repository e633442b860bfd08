"""Words beside the ends of a figure's lines, where they cover as little as may be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_FAR = (6, 12, 18)  # points between an end and its words, of which the least that does is taken
_CLEAR = 2.75  # points that words keep from lines, whose markers have this radius


@dataclass(frozen=True)
class End:
    """A line's end, and what to say of it."""

    words: str
    at: tuple[float, float]
    left: bool  # whether the line ends towards the left
    color: str


def ends_of(
    words: Sequence[str], points: Sequence[tuple[float, float]], color: str
) -> Iterator[End]:
    """The first and the last point of a line with words for all of its points."""
    for end, beside in ((0, 1), (-1, -2))[: len(points)]:
        left = len(points) == 1 or points[end][0] <= points[beside][0]
        yield End(words[end], points[end], left, color)


def tell(axis: Any, ends: Sequence[End]) -> None:
    """Write words beside ends, one after the other, once all else of a figure is drawn."""
    drawn, taken = list(_paths(axis)), list[Any]()
    clear = _CLEAR / 72 * axis.figure.dpi

    def put(note: Any, place: tuple[float, float, str, str]) -> Any:
        """The box that words take at a place."""
        aside, up, ha, va = place
        note.xyann = aside, up
        note.set(ha=ha, va=va)
        return note.get_window_extent()

    def covered(box: Any) -> tuple[int, int]:
        """How much is covered: of words and of the frame, which is worse, and of lines."""
        beyond = not (axis.bbox.contains(*box.min) and axis.bbox.contains(*box.max))
        room = box.padded(clear)
        return (
            beyond + sum(box.overlaps(other) for other in taken),
            sum(path.intersects_bbox(room, filled=False) for path in drawn),
        )

    for end in ends:
        how = {"textcoords": "offset points", "fontsize": "small", "color": end.color}
        note = axis.annotate(end.words, end.at, (0, 0), **how)
        note.set_in_layout(False)  # it is within the frame, which is where it is by now
        best = min(_places(end), key=lambda place: covered(put(note, place)))
        taken.append(put(note, best))


def _paths(axis: Any) -> Iterator[Any]:
    """What lines and error bars draw, in pixels; caps are nearer to bars than words."""
    for line in axis.lines:
        if line.get_linestyle() != "None":
            yield line.get_transform().transform_path(line.get_path())
    for bars in axis.collections:
        yield from map(bars.get_transform().transform_path, bars.get_paths())


def _places(end: End) -> Iterator[tuple[float, float, str, str]]:
    """Offsets in points with alignments: near before far, and on a line's own side first."""
    for far in _FAR:
        for side in (-far, far) if end.left else (far, -far):
            for up, va in ((-3, "top"), (3, "bottom")):
                yield side, up, "right" if side < 0 else "left", va
        yield 0, -far, "center", "top"
        yield 0, far, "center", "bottom"
