"""The map of ranks and collectives as the first response has it: SVG, before any script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.arrivals.document import Arrivals, Collective, MeetingGroup
from app.analysis.arrivals.meetings import GroupKind
from app.dashboard.ui.format import SCALE_HIGH, SCALE_LOW, heat_color, seconds

# The scale is fixed: from here on a rank is as late as the darkest color says.
SCALE_END: Final = 0.05
# Rows and columns that are drawn with gaps, and that are drawn at all: of more ranks each row has
# the latest.
GAPPED: Final = 64
MOST_ROWS: Final = 64
# Labels that fit.
ROW_LABELS: Final = 16
COLUMN_LABELS: Final = 12
# Pixels of a row, and of the whole map at least and at most.
ROW_HEIGHT: Final = 20
HEIGHTS: Final = (60, 340)
# Levels of lateness that make a difference to the eye.
_LEVELS: Final = 20

_SHORT: Final = {
    "all-gather": "AG",
    "reduce-scatter": "RS",
    "all-reduce": "AR",
    "all-to-all": "A2A",
}
_LONG: Final = {"AG": "all-gather", "RS": "reduce-scatter", "AR": "all-reduce", "A2A": "all-to-all"}
_KINDS: Final = {
    GroupKind.DATA: "data-parallel ranks",
    GroupKind.TENSOR: "tensor-parallel ranks",
    GroupKind.CONTEXT: "context-parallel ranks",
}


@dataclass(frozen=True, slots=True)
class Label:
    """A word at the edge of the map."""

    at: float  # per cent
    text: str
    minor: bool  # whether a narrow page leaves it out


@dataclass(frozen=True, slots=True)
class MapColumn:
    """A collective of the map."""

    key: str  # as an address asks for it
    title: str


@dataclass(frozen=True, slots=True)
class ArrivalsMap:
    """Ranks down, collectives of a step across; a cell is 1 high and wide."""

    rows: int
    columns: tuple[MapColumn, ...]
    height: int  # pixels
    dense: bool
    paths: tuple[tuple[str, str], ...]  # color, path
    row_labels: tuple[Label, ...]
    column_labels: tuple[Label, ...]
    legend: str  # what the short names mean
    about: str  # which ranks, and what of them was folded


def abbreviated(op: str) -> str:
    """Return a short name of an operation type: ``AG``.

    Examples
    --------
    >>> abbreviated("params-all-gather"), abbreviated("tp-all-reduce")
    ('AG', 'AR')
    """
    return next((short for name, short in _SHORT.items() if op.endswith(name)), op)


def named(collective: Collective) -> str:
    """Return a collective's name: ``AG 3``, and of several ``AG 3–5``."""
    first = f"{abbreviated(collective.op)} {collective.order}"
    if collective.count == 1:
        return first
    return f"{first}\N{EN DASH}{collective.order + collective.count - 1}"


def arrivals_map(arrivals: Arrivals) -> ArrivalsMap:
    """Return the map of the ranks that meet the worst one, and of their like on other stages."""
    rank = arrivals.worst.rank
    own = max(
        (group for group in arrivals.groups if rank in group.ranks),
        key=lambda group: sum(one.waited_s for one in group.collectives),
    )
    shown = [
        (index, group) for index, group in enumerate(arrivals.groups) if group.kind == own.kind
    ]
    names = _in_order(own, [group for _, group in shown])
    ranks = sorted({one for _, group in shown for one in group.ranks})
    late = _table(shown, names, ranks) / arrivals.step_s
    late, firsts = _folded(late, ranks)
    rows, columns = late.shape
    dense = rows > GAPPED or columns > GAPPED
    low, high = HEIGHTS
    return ArrivalsMap(
        rows=rows,
        columns=tuple(_column(shown, name) for name in names),
        height=min(max(rows * ROW_HEIGHT, low), high),
        dense=dense,
        paths=tuple(_paths(late)),
        row_labels=_labels([str(one) for one in firsts], ROW_LABELS),
        column_labels=_labels([f"{abbreviated(op)}{order}" for op, order in names], COLUMN_LABELS),
        legend=", ".join(
            f"{short} {_LONG.get(short, short)}"
            for short in dict.fromkeys(abbreviated(op) for op, _ in names)
        ),
        about=_about(own.kind, len(ranks), rows, arrivals),
    )


def _about(kind: GroupKind, ranks: int, rows: int, arrivals: Arrivals) -> str:
    parts = []
    if len({group.kind for group in arrivals.groups}) > 1:
        parts.append(f"{_KINDS[kind]} alone")
    if rows < ranks:
        parts.append(f"a row has the latest of {-(-ranks // rows)} ranks")
    if any(one.count > 1 for group in arrivals.groups for one in group.collectives):
        parts.append("neighboring collectives are put together")
    return "; ".join(parts)


def _in_order(own: MeetingGroup, groups: Sequence[MeetingGroup]) -> list[tuple[str, int]]:
    """Return the collectives of groups as (type, order), as the first group has them."""
    found = dict.fromkeys((one.op, one.order) for one in own.collectives)
    for group in groups:
        found |= dict.fromkeys((one.op, one.order) for one in group.collectives)
    return list(found)


def _table(
    shown: Sequence[tuple[int, MeetingGroup]],
    names: Sequence[tuple[str, int]],
    ranks: Sequence[int],
) -> NDArray[np.float64]:
    """Return how late each rank is at each collective, seconds; NaN where nothing is known."""
    row_of = {rank: row for row, rank in enumerate(ranks)}
    column_of = {name: column for column, name in enumerate(names)}
    table = np.full((len(ranks), len(names)), np.nan)
    for _, group in shown:
        rows = [row_of[rank] for rank in group.ranks]
        columns = [column_of[one.op, one.order] for one in group.collectives]
        # What is None is NaN there.
        table[np.ix_(rows, columns)] = np.array(group.late_s, np.float64)
    return table


def _folded(
    late: NDArray[np.float64], ranks: Sequence[int]
) -> tuple[NDArray[np.float64], list[int]]:
    """Return rows of which each has the latest of neighboring ranks, and the first of each."""
    each = -(-len(ranks) // MOST_ROWS)
    if each == 1:
        return late, list(ranks)
    starts = list(range(0, len(ranks), each))
    known = np.where(np.isnan(late), -1.0, late)
    found = np.maximum.reduceat(known, starts, axis=0)
    return np.where(found < 0, np.nan, found), [ranks[start] for start in starts]


def _paths(late: NDArray[np.float64]) -> list[tuple[str, str]]:
    shares = np.clip(late / SCALE_END, 0.0, 1.0)
    levels = np.where(np.isnan(shares), -1.0, (shares * _LEVELS).round())
    found = []
    for level in np.unique(levels[levels >= 0]).tolist():
        color = heat_color(SCALE_LOW + (SCALE_HIGH - SCALE_LOW) * level / _LEVELS)
        cells = np.argwhere(levels == level).tolist()
        found.append((color, "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)))
    return found


def _labels(names: Sequence[str], most: int) -> tuple[Label, ...]:
    every = -(-len(names) // most)
    return tuple(
        Label(round(100 * (place + 0.5) / len(names), 3), names[place], number % 2 == 1)
        for number, place in enumerate(range(0, len(names), every))
    )


def _column(shown: Sequence[tuple[int, MeetingGroup]], name: tuple[str, int]) -> MapColumn:
    """Return what a column leads to: of several groups' collectives, the one most waited for."""
    index, place, one = max(
        (
            (index, place, one)
            for index, group in shown
            for place, one in enumerate(group.collectives)
            if (one.op, one.order) == name
        ),
        key=lambda found: found[2].waited_s,
    )
    return MapColumn(f"{index}.{place}", f"{named(one)}: {last_words(one)}")


def last_words(one: Collective) -> str:
    """Return who comes last at a collective, in words."""
    if one.last is None:
        return "ranks come together"
    return f"rank {one.last} last, {seconds(one.late_s)} after the first"
