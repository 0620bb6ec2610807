"""The graph of who waits for whom, laid out: from left to right, or on a phone downward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from app.analysis.hangs.document import Arrow, Box, HangDocument, ranks_text
from app.dashboard.ui.format import plural

_WIDTH: Final = 240
_HEIGHT: Final = 66
_GAP: Final = 20
_BETWEEN: Final = 80
_EDGE: Final = 2
# Characters that fit into a line of a box.
_CHARACTERS: Final = 38
# Of a title, which is bold.
_TITLE_CHARACTERS: Final = 34
_SPANS: Final = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    """A box: its corner, its lines, all of it in words, and whether it is a culprit's."""

    x: int
    y: int
    title: str
    lines: tuple[str, ...]
    words: str
    stuck: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes and the paths of arrows, in units of the drawing."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[Drawn, ...]
    arrows: tuple[str, ...]


def graph_of(document: HangDocument, *, downward: bool = False) -> Graph | None:
    """Return the graph of a hang; None where no rank is waited for."""
    boxes = document.boxes
    if not any(box.distance for box in boxes):
        return None
    distances = sorted({box.distance for box in boxes}, reverse=True)
    columns = [[n for n, box in enumerate(boxes) if box.distance == away] for away in distances]
    tallest = max(map(len, columns))
    corners: dict[int, tuple[int, int]] = {}
    for place, column in enumerate(columns):
        for row, index in enumerate(column):
            if downward:
                above = sum(map(len, columns[:place]))
                y = (above + row) * (_HEIGHT + _GAP) + place * _GAP
                corners[index] = (_EDGE, _EDGE + y)
            else:
                rest = (tallest - len(column)) * (_HEIGHT + _GAP) // 2
                x = place * (_WIDTH + _BETWEEN)
                corners[index] = (_EDGE + x, _EDGE + rest + row * (_HEIGHT + _GAP))
    width = 330 if downward else _WIDTH
    return Graph(
        width=2 * _EDGE + max(x for x, _ in corners.values()) + width,
        height=2 * _EDGE + max(y for _, y in corners.values()) + _HEIGHT,
        box_width=width,
        box_height=_HEIGHT,
        boxes=tuple(_drawn(box, corners[index]) for index, box in enumerate(boxes)),
        arrows=_downward(columns, corners)
        if downward
        else tuple(_path(arrow, corners) for arrow in document.arrows),
    )


def _drawn(box: Box, corner: tuple[int, int]) -> Drawn:
    # a culprit's kind, or else the operation; then the operation, or its group
    what, _, rest = box.what.partition(" of " if box.distance else ": ")
    rest = rest if box.distance else rest.partition(" of ")[0]
    if len(box.ranks) == 1:
        title = f"Rank {box.ranks[0]}" + (f" · {box.place}" if box.place else "")
    else:
        title = f"{plural(len(box.ranks), 'rank')}: {ranks_text(box.ranks, _SPANS)}"
    lines = tuple(_cut(line) for line in (what, rest) if line)
    cut = _cut(title, _TITLE_CHARACTERS)
    return Drawn(*corner, cut, lines, f"{title}: {box.what}", stuck=not box.distance)


def _cut(text: str, most: int = _CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _path(arrow: Arrow, corners: dict[int, tuple[int, int]]) -> str:
    start, end = corners[arrow.start], corners[arrow.end]
    middle = _HEIGHT // 2
    return f"M{start[0] + _WIDTH + 2} {start[1] + middle}L{end[0] - 4} {end[1] + middle}"


def _downward(
    columns: Sequence[Sequence[int]], corners: dict[int, tuple[int, int]]
) -> tuple[str, ...]:
    """Return an arrow between each two columns: lines would cross the boxes between."""
    found = []
    for above, below in pairwise(columns):
        top, bottom = corners[above[-1]][1] + _HEIGHT, corners[below[0]][1]
        found.append(f"M{_EDGE + 24} {top + 2}L{_EDGE + 24} {bottom - 4}")
    return tuple(found)


def graph_words(document: HangDocument) -> str:
    """Return the graph as a sentence."""
    parts = [
        f"{plural(len(box.ranks), 'rank')} ({ranks_text(box.ranks)}): {box.what}"
        for box in document.boxes
    ]
    return "Culprits and who waits for them: " + "; ".join(parts)
