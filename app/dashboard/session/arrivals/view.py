"""What the page of a session shows of arrivals and of the breakdown of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from app.analysis.arrivals.document import (
    Arrivals,
    Breakdown,
    Collective,
    MeetingGroup,
    RankArrivals,
    RankBreakdown,
)
from app.analysis.report.document import Report
from app.dashboard.session.arrivals.map import (
    ArrivalsMap,
    abbreviated,
    arrivals_map,
    last_words,
    named,
)
from app.dashboard.ui.format import percent, plural, rough_percent, seconds
from app.dashboard.ui.parts import Row

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
