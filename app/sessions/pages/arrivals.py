"""Arrivals at collectives and the breakdown of steps, on the page of a session and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from app.analysis.arrivals.collective_matching import GroupKind
from app.analysis.arrivals.document import (
    Arrivals,
    Collective,
    MeetingGroup,
    RankBreakdown,
)
from app.analysis.report.document import Report
from app.web import html
from app.web.format import (
    EN_DASH,
    SCALE_HIGH,
    SCALE_LOW,
    heat_color,
    percent,
    plural,
    rough_percent,
    seconds,
)
from app.web.parts import Row
from app.web.tables import Drawn, Shown, Table, drawn

# Lateness, as a share of a step, at the dark end of the color scale, which is the same for all
# sessions.
SCALE_END: Final = 0.05
# Cells have gaps up to this number of rows or columns.
GAPPED: Final = 64
# Limit of the map's rows; with more ranks, a row shows the latest of several neighboring ranks.
MOST_ROWS: Final = 64
# Numbers of labels for which the map has room.
ROW_LABELS: Final = 16
COLUMN_LABELS: Final = 12
# Height of a row, and limits of the map's height, in pixels.
ROW_HEIGHT: Final = 20
HEIGHTS: Final = (60, 340)
# Number of color levels that readers can distinguish.
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
    GroupKind.EXPERT: "ranks that share experts",
}


@dataclass(frozen=True, slots=True)
class Label:
    """A label at the edge of the map."""

    at: float  # per cent
    text: str
    minor: bool  # hidden on a narrow page


@dataclass(frozen=True, slots=True)
class MapColumn:
    """A collective, as a column of the map."""

    key: str  # value of the query parameter `collective`
    title: str


@dataclass(frozen=True, slots=True)
class ArrivalsMap:
    """Map of lateness: rows are ranks, columns are collectives of a step; cells have size 1 × 1."""

    rows: int
    columns: tuple[MapColumn, ...]
    height: int  # pixels
    dense: bool
    paths: tuple[tuple[str, str], ...]  # color, path
    row_labels: tuple[Label, ...]
    column_labels: tuple[Label, ...]
    legend: str  # short names with their meaning
    about: str  # note on the ranks and on merged rows


def abbreviated(op: str) -> str:
    """Return the short name of an operation type: ``AG``.

    Examples
    --------
    >>> abbreviated("params-all-gather"), abbreviated("tp-all-reduce")
    ('AG', 'AR')
    """
    return next((short for name, short in _SHORT.items() if op.endswith(name)), op)


def named(collective: Collective) -> str:
    """Return the name of a collective, ``AG 3``, or of several merged collectives, ``AG 3–5``."""
    first = f"{abbreviated(collective.op)} {collective.order}"
    if collective.count == 1:
        return first
    return f"{first}\N{EN DASH}{collective.order + collective.count - 1}"


def arrivals_map(arrivals: Arrivals) -> ArrivalsMap:
    """Return the map of the groups of the worst rank's kind, on all pipeline stages."""
    rank = arrivals.worst.rank
    own = max(
        arrivals.groups,
        key=lambda group: (
            rank in group.ranks,
            sum(collective.waited_s for collective in group.collectives),
        ),
    )
    shown = [
        (index, group) for index, group in enumerate(arrivals.groups) if group.kind == own.kind
    ]
    # The collectives of the worst rank's own group come first.
    names = list(
        dict.fromkeys(
            (collective.op, collective.order)
            for group in (own, *(group for _, group in shown))
            for collective in group.collectives
        )
    )
    ranks = sorted({rank for _, group in shown for rank in group.ranks})
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
        row_labels=_labels([str(first) for first in firsts], ROW_LABELS),
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
    if any(collective.count > 1 for group in arrivals.groups for collective in group.collectives):
        parts.append("neighboring collectives are put together")
    return "; ".join(parts)


def _table(
    shown: Sequence[tuple[int, MeetingGroup]],
    names: Sequence[tuple[str, int]],
    ranks: Sequence[int],
) -> NDArray[np.float64]:
    """Return the lateness in seconds, shape (ranks, collectives); NaN if unknown."""
    row_of = {rank: row for row, rank in enumerate(ranks)}
    column_of = {name: column for column, name in enumerate(names)}
    table = np.full((len(ranks), len(names)), np.nan)
    for _, group in shown:
        rows = [row_of[rank] for rank in group.ranks]
        columns = [column_of[collective.op, collective.order] for collective in group.collectives]
        # The conversion to float64 turns None into NaN.
        table[np.ix_(rows, columns)] = np.array(group.late_s, np.float64)
    return table


def _folded(
    late: NDArray[np.float64], ranks: Sequence[int]
) -> tuple[NDArray[np.float64], list[int]]:
    """Merge neighboring ranks into at most `MOST_ROWS` rows, each with its ranks' largest lateness.

    Returns
    -------
    late : array, shape (rows, collectives)
    ranks : list of int
        The first rank of each row.
    """
    each = -(-len(ranks) // MOST_ROWS)
    if each == 1:
        return late, list(ranks)
    starts = list(range(0, len(ranks), each))
    filled = np.where(np.isnan(late), -1.0, late)
    latest = np.maximum.reduceat(filled, starts, axis=0)
    return np.where(latest < 0, np.nan, latest), [ranks[start] for start in starts]


def _paths(late: NDArray[np.float64]) -> list[tuple[str, str]]:
    shares = np.clip(late / SCALE_END, 0.0, 1.0)
    levels = np.where(np.isnan(shares), -1.0, (shares * _LEVELS).round())
    paths = []
    for level in np.unique(levels[levels >= 0]).tolist():
        color = heat_color(SCALE_LOW + (SCALE_HIGH - SCALE_LOW) * level / _LEVELS)
        cells = np.argwhere(levels == level).tolist()
        paths.append((color, "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)))
    return paths


def _labels(names: Sequence[str], most: int) -> tuple[Label, ...]:
    every = -(-len(names) // most)
    return tuple(
        Label(round(100 * (place + 0.5) / len(names), 3), names[place], number % 2 == 1)
        for number, place in enumerate(range(0, len(names), every))
    )


def _column(shown: Sequence[tuple[int, MeetingGroup]], name: tuple[str, int]) -> MapColumn:
    """Return a column of the map, linked to the group with the longest wait at the collective."""
    index, place, collective = max(
        (
            (index, place, collective)
            for index, group in shown
            for place, collective in enumerate(group.collectives)
            if (collective.op, collective.order) == name
        ),
        key=lambda candidate: candidate[2].waited_s,
    )
    return MapColumn(f"{index}.{place}", f"{named(collective)}: {last_words(collective)}")


def last_words(collective: Collective) -> str:
    """Return the last rank of a collective and its lateness, in words."""
    if collective.last is None:
        return "ranks come together"
    return f"rank {collective.last} last, {seconds(collective.late_s)} after the first"


# Limit of the ranks or collectives in a table; the CSV file has all of them.
SHORT_TABLE: Final = 8
# Limit of the ranks listed for the opened collective.
MEMBERS: Final = 16
# Smallest number of recorded steps for an interval of the slowdown.
_FEWEST_STEPS: Final = 5
# Ratio of a rank's computing time to its peers' from which the title calls the rank slower.
_LONGER: Final = 1.05


@dataclass(frozen=True, slots=True)
class ArrivalRow:
    """A rank in the table of the ranks that others wait for, in words."""

    rank: int
    host: str
    gpu: str
    last: str
    waited_for: str
    rank_seconds: str
    missing: bool


class PlacedCollective(NamedTuple):
    """A collective with its group; `key` is the value of the query parameter `collective`."""

    key: str
    group: MeetingGroup
    collective: Collective


@dataclass(frozen=True, slots=True)
class Opened:
    """The collective that the query parameter `collective` selects, with its ranks."""

    key: str
    title: str
    note: str
    table: Drawn


@dataclass(frozen=True, slots=True)
class BreakdownView:
    """The parts of the worst rank's step next to those of its peers."""

    title: str
    table: Drawn


@dataclass(frozen=True, slots=True)
class ArrivalsView:
    """The arrivals of ranks at collectives, as the page shows them."""

    title: str
    note: str
    map: ArrivalsMap
    waiting: str
    rows: tuple[ArrivalRow, ...]
    more: str
    hosts: bool
    gpus: bool
    collectives: Drawn
    parted: str
    opened: Opened | None


def arrivals_view(report: Report, path: str, collective: str) -> ArrivalsView | None:
    """Return the view of the arrivals; None if the report has no collectives over ranks.

    Parameters
    ----------
    path : str
        Path of the session's page, which begins the URLs of its CSV files.
    collective : str
        Key of the collective to open, ``group.place``; an unknown key is ignored.
    """
    arrivals = report.arrivals
    if arrivals is None:
        return None
    drawn = arrivals_map(arrivals)
    steps = plural(len(arrivals.steps), "step")
    rest = len(arrivals.ranks) - SHORT_TABLE
    return ArrivalsView(
        title=arrivals.sentence,
        note=f"Later than the first to arrive, mean of {steps}; rank down, collectives of a step "
        f"across ({drawn.legend}){'; ' if drawn.about else ''}{drawn.about}",
        map=drawn,
        waiting=arrivals.waiting if arrivals.straggles else "How long ranks keep others waiting",
        rows=tuple(
            ArrivalRow(
                rank=arrival.rank,
                host=report.machine(arrival.rank).node or "",
                gpu=report.machine(arrival.rank).gpu or "",
                last=percent(arrival.last_share, 0),
                waited_for=seconds(arrival.waited_for_s),
                rank_seconds=_rank_seconds(arrival.rank_seconds),
                missing=arrival.missing,
            )
            for arrival in arrivals.ranks[:SHORT_TABLE]
        ),
        more=f"The other {rest:,} are in the file" if rest > 0 else "",
        hosts=bool(report.hosts),
        gpus=bool(report.gpus),
        collectives=_most_waited(arrivals, f"{path}/arrivals.csv"),
        parted=_parted(arrivals),
        opened=_opened(report, arrivals, collective, f"{path}/arrivals.csv"),
    )


def _rank_seconds(value: float) -> str:
    """Return rank-seconds per step as text: ``0.443``, ``7.90``, ``112``."""
    if value >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _most_waited(arrivals: Arrivals, csv: str) -> Drawn:
    placed = [
        PlacedCollective(f"{index}.{place}", group, collective)
        for index, group in enumerate(arrivals.groups)
        for place, collective in enumerate(group.collectives)
    ]
    placed.sort(key=lambda row: -row.collective.waited_s)
    by_stage = len({group.stage for group in arrivals.groups}) == len(arrivals.groups)

    def name(row: PlacedCollective) -> Markup:
        # The group is named only if there are several groups.
        within = ""
        if len(arrivals.groups) > 1:
            first, last = row.group.ranks[0], row.group.ranks[-1]
            ranks = f", ranks {first}{EN_DASH}{last}"
            within = f", stage {row.group.stage}" if by_stage else ranks
        url = f"?collective={row.key}#collective"
        return html.link(url, named(row.collective) + within, title=row.collective.op)

    columns: tuple[Shown[PlacedCollective], ...] = (
        Shown("Collective", name),
        Shown(
            "Last",
            lambda row: "together" if row.collective.last is None else row.collective.last,
            classes="num",
        ),
        Shown("Late by", lambda row: seconds(row.collective.late_s), classes="num"),
        Shown("Waited", lambda row: _rank_seconds(row.collective.waited_s), classes="num"),
        Shown("Transfer", lambda row: seconds(row.collective.transfer_s), classes="num"),
    )
    return drawn(columns, placed[:SHORT_TABLE], csv=csv)


def _parted(arrivals: Arrivals) -> str:
    if not arrivals.partings:
        return ""
    parting = arrivals.partings[0]
    more = f"; {len(arrivals.partings) - 1} more like it" if len(arrivals.partings) > 1 else ""
    return (
        f"Rank {parting.rank} recorded {parting.recorded} {parting.op} in step {parting.step}, "
        f"others {parting.others}: from its number {parting.recorded} on it is not known which is "
        f"which{more}"
    )


def _opened(report: Report, arrivals: Arrivals, key: str, csv: str) -> Opened | None:
    index, _, place = key.partition(".")
    if not (_is_number(index) and _is_number(place)) or int(index) >= len(arrivals.groups):
        return None
    group = arrivals.groups[int(index)]
    if int(place) >= len(group.collectives):
        return None
    collective = group.collectives[int(place)]
    late = [(rank, row[int(place)]) for rank, row in zip(group.ranks, group.late_s, strict=True)]
    latest_first = sorted(
        ((rank, value) for rank, value in late if value is not None), key=lambda row: -row[1]
    )
    note = (
        f"{collective.op} {collective.order} of each step, stage {group.stage}, "
        f"{plural(len(late), 'rank')}: others wait {_rank_seconds(collective.waited_s)} "
        f"rank-seconds a step; the last one comes {seconds(collective.margin_s)} after "
        f"the next to last; the exchange takes {seconds(collective.transfer_s)}"
    )
    if collective.count > 1:
        note = f"{collective.count} collectives together, from number {collective.order} on. {note}"
    if len(latest_first) > MEMBERS:
        note += f". The {MEMBERS} latest ranks; all are in the file"
    columns: list[Shown[tuple[int, float]]] = [
        Shown("Rank", lambda row: row[0]),
        Shown("Later than the first", lambda row: seconds(row[1]), classes="num"),
        Shown(
            "Waits for the last",
            lambda row: seconds(max(collective.late_s - row[1], 0.0)),
            classes="num",
        ),
    ]
    if report.hosts:
        host: Shown[tuple[int, float]] = Shown(
            "Host", lambda row: report.machine(row[0]).node or "", of_cells="only-wide"
        )
        columns.insert(1, host)
    return Opened(
        key=key,
        title=f"{abbreviated(collective.op)} {collective.order}: {last_words(collective)}",
        note=note,
        table=drawn(columns, latest_first[:MEMBERS], csv=csv),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 7  # noqa: PLR2004 - far beyond any


def breakdown_view(report: Report, path: str) -> BreakdownView | None:
    """Return the step breakdown of the worst rank and of its peers; None in older reports.

    Parameters
    ----------
    path : str
        Path of the session's page, which begins the URL of the CSV file.
    """
    breakdown, compared = report.breakdown, report.breakdown_of_worst()
    if breakdown is None or compared is None:
        return None
    worst, peers = compared
    rows: list[tuple[str, Sequence[RankBreakdown]]] = [(f"Rank {worst.rank}", [worst])]
    if not peers:
        share = rough_percent(worst.computing_s / breakdown.step_s)
        title = f"Computing takes {share} of a step of rank {worst.rank}"
    else:
        rows.append((f"Median of {len(peers)}", peers))
        usual = median(peer.computing_s for peer in peers)
        title = f"A step of rank {worst.rank} and of its peers"
        if usual > 0 and worst.computing_s >= _LONGER * usual:
            title = (
                f"Rank {worst.rank} computes {seconds(worst.computing_s)} a step, its peers "
                f"{seconds(usual)}"
            )
    digits = 2 if breakdown.step_s >= 1 else 4

    def column(
        label: str, part: Callable[[RankBreakdown], float]
    ) -> Shown[tuple[str, Sequence[RankBreakdown]]]:
        return Shown(label, lambda row: f"{median(map(part, row[1])):.{digits}f}", classes="num")

    columns: tuple[Shown[tuple[str, Sequence[RankBreakdown]]], ...] = (
        Shown("Rank", lambda row: row[0], heads_row=True),
        column("Computing", lambda rank: rank.computing_s),
        column("Exposed comm.", lambda rank: rank.communication_s),
        column("Data", lambda rank: rank.data_s),
        column("Idle", lambda rank: rank.idle_s),
    )
    return BreakdownView(title, drawn(columns, rows, csv=f"{path}/breakdown.csv"))


def unsaid_rows(report: Report) -> tuple[Row, ...]:
    """Return what the recording lacks, with the profiler setting that would record it."""
    rows = [
        Row(f"{unmapped.what[:1].upper()}{unmapped.what[1:]}", unmapped.remedy)
        for unmapped in report.coverage.unmapped
        if unmapped.remedy
    ]
    if not report.fidelity.replayed:
        missing = bool(report.coverage.missing)
        setting = "the files of the missing ranks" if missing else "labels of microbatches"
        rows.insert(0, Row("The slowdown and its causes", setting))
    steps = len(report.steps.analyzed)
    if report.slowdown_ci95 is None and steps < _FEWEST_STEPS:
        rows.append(Row("Interval of the slowdown", f"active={_FEWEST_STEPS} steps or more"))
    return tuple(rows)


def arrivals_csv(report: Report) -> Table:
    """Return each rank's lateness at each collective, and the time that the others wait."""
    groups = report.arrivals.groups if report.arrivals else ()
    return Table(
        (
            "group", "stage", "op_type", "order", "collectives", "rank", "host", "late_s",
            "is_last", "last_rank", "last_share", "waited_rank_s", "transfer_s",
        ),
        (
            (
                group.kind, group.stage, collective.op, collective.order, collective.count, rank,
                report.hosts.get(rank), late[place], rank == collective.last, collective.last,
                collective.last_share, collective.waited_s, collective.transfer_s,
            )
            for group in groups
            for place, collective in enumerate(group.collectives)
            for rank, late in zip(group.ranks, group.late_s, strict=True)
        ),
    )  # fmt: skip


def ranks_csv(report: Report) -> Table:
    """Return each rank with collectives: its host, its GPU, and the others' wait for it."""
    ranks = report.arrivals.ranks if report.arrivals else ()
    return Table(
        (
            "rank", "host", "gpu", "collectives", "last", "last_share", "waited_for_s",
            "rank_seconds", "waits_s", "missing",
        ),
        (
            (
                rank.rank, report.hosts.get(rank.rank), report.gpus.get(rank.rank),
                rank.collectives, rank.last, rank.last_share, rank.waited_for_s,
                rank.rank_seconds, rank.waits_s, rank.missing,
            )
            for rank in ranks
        ),
    )  # fmt: skip


def breakdown_csv(report: Report) -> Table:
    """Return the parts of each rank's step, in seconds."""
    breakdown = report.breakdown
    return Table(
        ("rank", "host", "step_s", "computing_s", "communication_s", "data_s", "idle_s"),
        (
            (
                rank.rank, report.hosts.get(rank.rank), breakdown.step_s, rank.computing_s,
                rank.communication_s, rank.data_s, rank.idle_s,
            )
            for rank in (breakdown.ranks if breakdown else ())
            if breakdown
        ),
    )  # fmt: skip


def unsaid_csv(report: Report) -> Table:
    """Return the table of `unsaid_rows` for CSV."""
    rows = unsaid_rows(report)
    return Table(("missing", "setting"), ((row.label, row.value) for row in rows))
