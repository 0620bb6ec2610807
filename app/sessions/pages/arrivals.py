"""What the page of a session shows of arrivals and of the breakdown of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.arrivals.collective_matching import GroupKind
from app.analysis.arrivals.document import (
    Arrivals,
    Breakdown,
    Collective,
    MeetingGroup,
    RankArrivals,
    RankBreakdown,
)
from app.analysis.report.document import Report
from app.web.format import (
    SCALE_HIGH,
    SCALE_LOW,
    heat_color,
    percent,
    plural,
    rough_percent,
    seconds,
)
from app.web.parts import Row
from app.web.tables import Table

# ---- The map of ranks and collectives as the first response has it: SVG, before any script -----


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


# Ranks, and collectives, that have a row; all are in the files.
SHORT_TABLE: Final = 8
# Ranks of an opened collective.
MEMBERS: Final = 16
# What profilers have to be told for an interval of the slowdown.
_FEWEST_STEPS: Final = 5
# A rank that computes this many times as long as its peers is said to.
_LONGER: Final = 1.05


@dataclass(frozen=True, slots=True)
class ArrivalRow:
    """A rank in the table by what others wait for it."""

    rank: int
    host: str
    gpu: str
    last: str
    waited_for: str
    rank_seconds: str
    missing: bool


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective in the table by what is waited for it."""

    key: str
    name: str
    op: str
    last: str
    late: str
    waited: str
    transfer: str


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A rank at the opened collective."""

    rank: int
    host: str
    late: str
    waits: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The collective that the address asks for."""

    key: str
    title: str
    note: str
    rows: tuple[MemberRow, ...]


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """What a step passes with, in words."""

    name: str
    computing: str
    communication: str
    data: str
    idle: str


@dataclass(frozen=True, slots=True)
class BreakdownTable:
    """A rank's step next to that of its peers."""

    title: str
    rows: tuple[BreakdownRow, ...]


@dataclass(frozen=True, slots=True)
class ArrivalsView:
    """Who comes last, and for whom the others wait."""

    title: str
    note: str
    map: ArrivalsMap
    waiting: str
    rows: tuple[ArrivalRow, ...]
    more: str
    hosts: bool
    gpus: bool
    collectives: tuple[CollectiveRow, ...]
    parted: str
    opened: Opened | None


def arrivals_view(report: Report, collective: str) -> ArrivalsView | None:
    """Return what is shown of arrivals; None where no ranks meet.

    Parameters
    ----------
    collective : str
        The collective that is opened, ``group.place``; what does not exist is ignored.
    """
    found = report.arrivals
    if found is None:
        return None
    drawn = arrivals_map(found)
    steps = plural(len(found.steps), "step")
    rest = len(found.ranks) - SHORT_TABLE
    return ArrivalsView(
        title=found.sentence,
        note=f"Later than the first to arrive, mean of {steps}; rank down, collectives of a step "
        f"across ({drawn.legend}){'; ' if drawn.about else ''}{drawn.about}",
        map=drawn,
        waiting=found.waiting if found.straggles else "How long ranks keep others waiting",
        rows=tuple(_rank_row(report, one) for one in found.ranks[:SHORT_TABLE]),
        more=f"The other {rest:,} are in the file" if rest > 0 else "",
        hosts=bool(report.hosts),
        gpus=bool(report.gpus),
        collectives=_most_waited(found),
        parted=_parted(found),
        opened=_opened(report, found, collective),
    )


def _rank_row(report: Report, one: RankArrivals) -> ArrivalRow:
    machine = report.machine(one.rank)
    return ArrivalRow(
        rank=one.rank,
        host=machine.node or "",
        gpu=machine.gpu or "",
        last=percent(one.last_share, 0),
        waited_for=seconds(one.waited_for_s),
        rank_seconds=_rank_seconds(one.rank_seconds),
        missing=one.missing,
    )


def _rank_seconds(value: float) -> str:
    """Return rank-seconds a step: ``0.443``, ``7.90``, ``112``."""
    if value >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _most_waited(found: Arrivals) -> tuple[CollectiveRow, ...]:
    every = [
        (f"{index}.{place}", group, one)
        for index, group in enumerate(found.groups)
        for place, one in enumerate(group.collectives)
    ]
    every.sort(key=lambda row: -row[2].waited_s)
    return tuple(
        CollectiveRow(
            key,
            _name_in(group, one, found),
            one.op,
            "together" if one.last is None else str(one.last),
            seconds(one.late_s),
            _rank_seconds(one.waited_s),
            seconds(one.transfer_s),
        )
        for key, group, one in every[:SHORT_TABLE]
    )


def _name_in(group: MeetingGroup, one: Collective, found: Arrivals) -> str:
    """Return a collective's name, with its group where there are several."""
    if len(found.groups) == 1:
        return named(one)
    if len({other.stage for other in found.groups}) == len(found.groups):
        return f"{named(one)}, stage {group.stage}"
    return f"{named(one)}, ranks {group.ranks[0]}\N{EN DASH}{group.ranks[-1]}"


def _parted(found: Arrivals) -> str:
    if not found.partings:
        return ""
    one = found.partings[0]
    more = f"; {len(found.partings) - 1} more like it" if len(found.partings) > 1 else ""
    return (
        f"Rank {one.rank} recorded {one.recorded} {one.op} in step {one.step}, others "
        f"{one.others}: from its number {one.recorded} on it is not known which is which{more}"
    )


def _opened(report: Report, found: Arrivals, key: str) -> Opened | None:
    index, _, place = key.partition(".")
    if not (_is_number(index) and _is_number(place)) or int(index) >= len(found.groups):
        return None
    group = found.groups[int(index)]
    if int(place) >= len(group.collectives):
        return None
    one = group.collectives[int(place)]
    late = [(rank, row[int(place)]) for rank, row in zip(group.ranks, group.late_s, strict=True)]
    known = sorted(
        ((rank, value) for rank, value in late if value is not None), key=lambda row: -row[1]
    )
    note = (
        f"{one.op} {one.order} of each step, stage {group.stage}, {plural(len(late), 'rank')}: "
        f"others wait {_rank_seconds(one.waited_s)} rank-seconds a step; the last one comes "
        f"{seconds(one.margin_s)} after the next to last; the exchange takes "
        f"{seconds(one.transfer_s)}"
    )
    if one.count > 1:
        note = f"{one.count} collectives together, from number {one.order} on. {note}"
    if len(known) > MEMBERS:
        note += f". The {MEMBERS} latest ranks; all are in the file"
    return Opened(
        key=key,
        title=f"{abbreviated(one.op)} {one.order}: {last_words(one)}",
        note=note,
        rows=tuple(
            MemberRow(
                rank,
                report.machine(rank).node or "",
                seconds(value),
                seconds(max(one.late_s - value, 0.0)),
            )
            for rank, value in known[:MEMBERS]
        ),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 7  # noqa: PLR2004 - far beyond any


def breakdown_view(report: Report) -> BreakdownTable | None:
    """Return what a step of one rank passes with, next to its peers; None in older reports."""
    found, compared = report.breakdown, report.breakdown_of_worst()
    if found is None or compared is None:
        return None
    one, peers = compared
    rows = [_breakdown_row(f"Rank {one.rank}", [one], found)]
    if not peers:
        title = f"Computing takes {_share(one.computing_s, found)} of a step of rank {one.rank}"
        return BreakdownTable(title, tuple(rows))
    rows.append(_breakdown_row(f"Median of {len(peers)}", peers, found))
    usual = median(peer.computing_s for peer in peers)
    title = f"A step of rank {one.rank} and of its peers"
    if usual > 0 and one.computing_s >= _LONGER * usual:
        title = (
            f"Rank {one.rank} computes {seconds(one.computing_s)} a step, its peers "
            f"{seconds(usual)}"
        )
    return BreakdownTable(title, tuple(rows))


def _share(value_s: float, found: Breakdown) -> str:
    return rough_percent(value_s / found.step_s)


def _breakdown_row(name: str, ranks: Sequence[RankBreakdown], found: Breakdown) -> BreakdownRow:
    parts = zip(
        *((one.computing_s, one.communication_s, one.data_s, one.idle_s) for one in ranks),
        strict=True,
    )
    digits = 2 if found.step_s >= 1 else 4
    return BreakdownRow(name, *(f"{median(values):.{digits}f}" for values in parts))


def unsaid_rows(report: Report) -> tuple[Row, ...]:
    """Return what the recording cannot say, and the setting that would record it."""
    rows = [
        Row(f"{one.what[:1].upper()}{one.what[1:]}", one.remedy)
        for one in report.coverage.unmapped
        if one.remedy
    ]
    if not report.fidelity.replayed:
        missing = bool(report.coverage.missing)
        setting = "the files of the missing ranks" if missing else "labels of microbatches"
        rows.insert(0, Row("The slowdown and its causes", setting))
    steps = len(report.steps.analyzed)
    if report.slowdown_ci95 is None and steps < _FEWEST_STEPS:
        rows.append(Row("Interval of the slowdown", f"active={_FEWEST_STEPS} steps or more"))
    return tuple(rows)


# ---- Arrivals and breakdown as CSV -------------------------------------------------------------


def arrivals_csv(report: Report) -> Table:
    """Return how late each rank came to each collective, and what others waited there."""
    groups = report.arrivals.groups if report.arrivals else ()
    return Table(
        (
            "group", "stage", "op_type", "order", "collectives", "rank", "host", "late_s",
            "is_last", "last_rank", "last_share", "waited_rank_s", "transfer_s",
        ),
        (
            (
                group.kind, group.stage, one.op, one.order, one.count, rank,
                report.hosts.get(rank), late[place], rank == one.last, one.last, one.last_share,
                one.waited_s, one.transfer_s,
            )
            for group in groups
            for place, one in enumerate(group.collectives)
            for rank, late in zip(group.ranks, group.late_s, strict=True)
        ),
    )  # fmt: skip


def ranks_csv(report: Report) -> Table:
    """Return every rank that meets others: where it runs, and what others wait for it."""
    ranks = report.arrivals.ranks if report.arrivals else ()
    return Table(
        (
            "rank", "host", "gpu", "collectives", "last", "last_share", "waited_for_s",
            "rank_seconds", "waits_s", "missing",
        ),
        (
            (
                one.rank, report.hosts.get(one.rank), report.gpus.get(one.rank), one.collectives,
                one.last, one.last_share, one.waited_for_s, one.rank_seconds, one.waits_s,
                one.missing,
            )
            for one in ranks
        ),
    )  # fmt: skip


def breakdown_csv(report: Report) -> Table:
    """Return what a step of each rank passes with, seconds."""
    found = report.breakdown
    return Table(
        ("rank", "host", "step_s", "computing_s", "communication_s", "data_s", "idle_s"),
        (
            (
                one.rank, report.hosts.get(one.rank), found.step_s, one.computing_s,
                one.communication_s, one.data_s, one.idle_s,
            )
            for one in (found.ranks if found else ())
            if found
        ),
    )  # fmt: skip


def unsaid_csv(report: Report) -> Table:
    """Return what the recording cannot say, and the setting that would record it."""
    rows = unsaid_rows(report)
    return Table(("missing", "setting"), ((row.label, row.value) for row in rows))
