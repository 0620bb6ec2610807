"""Late arrivals at collectives and breakdown of step time, from a trace without a replay.

The breakdown of a rank's step: computation, exposed communication, data loading and idle time.
Two ranks of one group and one step are enough. Reports of sessions that cannot be replayed consist
of this alone (`app.analysis.report.unreplayed`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.arrivals.collective_matching import Group, GroupKind
from app.analysis.arrivals.document import (
    Arrivals,
    Breakdown,
    Collective,
    MeetingGroup,
    RankArrivals,
    RankBreakdown,
)
from app.analysis.arrivals.lanes import Cover, Lanes, cover, lanes_of
from app.analysis.arrivals.lateness import (
    COMMUNICATIONS,
    COMPUTATIONS,
    Lateness,
    lateness_of,
    of_types,
    own_computing,
)
from app.analysis.arrivals.origins import Credits, credits_of
from app.analysis.quantities import NS, FloatArray, IntArray
from app.analysis.replay.confidence import student_half
from app.analysis.trace.model import DATA_LOADING, Sizes, Trace


def breakdown_of(lanes: Lanes, computing: Cover) -> Breakdown:
    """Return each rank's mean step time by activity: computing, communication, loading, idle.

    A step lasts until the next recorded step begins, else until the last operation of any rank
    ends.

    Parameters
    ----------
    computing : Cover
        The computing time of ranks; see `own_computing`.
    """
    trace, span_ns = lanes.trace, lanes.span_ns
    busy = of_types(trace, (*COMMUNICATIONS, *COMPUTATIONS))
    occupied_ns = cover(lanes.of(busy), lanes.count, span_ns, in_order=True).by_lane()
    loads = of_types(trace, (DATA_LOADING,))
    with_data_ns = occupied_ns
    if loads[lanes.op].any():
        with_data = lanes.of(busy | loads)
        with_data_ns = cover(with_data, lanes.count, span_ns, in_order=True).by_lane()
    computing_ns = computing.by_lane()
    shape = (len(lanes.steps), len(lanes.ranks))
    ends_ns = lanes.ends_ns()
    recorded = ends_ns >= 0
    sampled = np.flatnonzero(lanes.weighed)
    step_ns = ends_ns[sampled].max(axis=1).astype(np.float64)
    if not lanes.trace.step_relative:
        # A step ends when the next step begins, also where steps overlap, so that no time counts
        # twice.
        period_ns = np.diff(lanes.begin_ns, append=lanes.begin_ns[-1])
        follows = (np.diff(lanes.steps, append=lanes.steps[-1]) == 1) & (period_ns > 0)
        step_ns = np.where(follows[sampled], period_ns[sampled].astype(np.float64), step_ns)
    whole_ns = np.zeros(shape)
    whole_ns[lanes.weighed] = step_ns[:, None]
    parts = (
        computing_ns,
        occupied_ns - computing_ns,
        with_data_ns - occupied_ns,
        np.maximum(whole_ns.ravel() - with_data_ns, 0.0),
    )
    steps_of_rank = recorded.sum(axis=0)
    means = [(part.reshape(shape) * recorded).sum(axis=0) * NS / steps_of_rank for part in parts]
    return Breakdown(
        steps=tuple(lanes.steps[lanes.weighed].tolist()),
        step_s=float(step_ns.mean()) * NS,
        ranks=tuple(
            RankBreakdown(rank, *values)
            for rank, values in zip(
                lanes.ranks.tolist(), np.stack(means, axis=1).round(9).tolist(), strict=True
            )
        ),
    )


# Largest number of separate collectives of a step in a report, over all groups, and largest number
# of values by rank and collective. In larger sessions consecutive collectives of a type are merged.
MOST_COLLECTIVES: Final = 256
MOST_CELLS: Final = 32_768
_STEPS_FOR_CHANCE: Final = 2
# Number of decimals of seconds in a report: microseconds.
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class MeasuredArrivals:
    """Late arrivals and step-time breakdown of a trace, and the lanes they were computed from."""

    arrivals: Arrivals | None  # None if no two ranks meet
    breakdown: Breakdown
    lanes: Lanes


def arrivals_of(trace: Trace, steps: Collection[int] | None = None) -> MeasuredArrivals:
    """Return the late arrivals at collectives and the breakdown of step time.

    Parameters
    ----------
    trace : Trace
        With at least one operation.
    steps : collection of int, optional
        Steps that may be sampled; by default all.
    """
    lanes = lanes_of(trace, steps)
    computing = own_computing(lanes)
    breakdown = breakdown_of(lanes, computing)
    if not len(lanes.meetings):
        return MeasuredArrivals(None, breakdown, lanes)
    absent = absent_ranks(trace, lanes.meetings.groups)
    lateness = lateness_of(lanes, computing, absent, breakdown.step_s / NS)
    columns = _columns(lanes, lateness)
    present = np.unique(lanes.meetings.group)
    arrivals = Arrivals(
        steps=tuple(lanes.steps.tolist()),
        step_s=breakdown.step_s,
        ranks=_by_rank(lanes, lateness, credits_of(lanes, lateness, computing), absent),
        groups=tuple(_group(lanes, columns, absent, int(group)) for group in present),
        clocks_apart_s=lanes.clocks_apart_ns * NS,
        partings=lanes.meetings.partings,
    )
    return MeasuredArrivals(arrivals, breakdown, lanes)


def absent_ranks(trace: Trace, groups: tuple[Group, ...]) -> IntArray:
    """Return the rank of each group that recorded nothing; -1 if no rank, or several, are absent.

    Absent ranks are known only if each worker has one rank and global ranks are numbered in an
    order that launchers use: data-parallel ranks first, or stages first.
    """
    sizes = trace.meta.sizes
    absent = np.full(len(groups), -1, dtype=np.int64)
    number = _numbering(trace) if sizes.tp * sizes.cp == 1 else None
    if number is None:
        return absent
    for index, group in enumerate(groups):
        if group.kind is GroupKind.DATA and len(group.ranks) == sizes.dp - 1:
            missing = set(number[:, group.stage].tolist()) - set(group.ranks)
            absent[index] = missing.pop()
    return absent


def _numbering(trace: Trace) -> IntArray | None:
    """Return the global rank of each worker, shape (dp, pp); None if no usual numbering fits."""
    sizes: Sizes = trace.meta.sizes
    every = np.arange(sizes.dp * sizes.pp, dtype=np.int64)
    head = trace.stretches().first
    rank, dp, pp = trace.rank[head], trace.dp[head], trace.pp[head]
    for number in (every.reshape(sizes.pp, sizes.dp).T, every.reshape(sizes.dp, sizes.pp)):
        if (number[dp, pp] == rank).all():
            return number
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Separate collectives of a step (columns), with means over all their meetings."""

    of_meeting: IntArray  # (meetings,): column of each
    group: IntArray  # (columns,)
    op: IntArray  # (columns,)
    order: IntArray  # (columns,): order of the first of the merged collectives
    count: IntArray  # (columns,): number of merged collectives
    first_ns: FloatArray  # (columns,): mean of the first arrival, in the step
    collectives: tuple[Collective, ...]
    late_s: FloatArray  # (columns, ranks): mean lateness
    last_s: FloatArray  # (columns,): mean lateness of the last rank


def _columns(lanes: Lanes, lateness: Lateness) -> _Columns:
    """Return the separate collectives of a step, with their means."""
    meetings = lanes.meetings
    steps = len(lanes.steps)
    group, op, order, of_meeting = _folded(lanes)
    width = len(group)
    met = np.bincount(of_meeting, minlength=width)
    span = int(meetings.order.max()) + 1
    apart = np.unique(of_meeting.astype(np.int64) * span + meetings.order) // span
    count = np.bincount(apart, minlength=width)

    def mean_s(values: IntArray) -> FloatArray:
        total = np.bincount(of_meeting, weights=values.astype(np.float64), minlength=width)
        return total * NS / met

    rows = of_meeting[meetings.meeting]
    ranks = len(lanes.ranks)
    rank = np.searchsorted(lanes.ranks, lanes.trace.rank[meetings.row])
    cell = rows * ranks + rank
    late, seen = (
        np.bincount(cell, weights=weights, minlength=width * ranks).reshape(width, ranks)
        for weights in (lateness.late_ns.astype(np.float64), None)
    )
    with np.errstate(invalid="ignore"):
        late_s = late * NS / seen
    waited_s = np.bincount(rows, weights=lateness.waited_ns.astype(np.float64), minlength=width)
    last, share = _most_often(of_meeting, lateness.last, width)
    names = lanes.trace.op_names
    last_s, margin_s = mean_s(lateness.last_ns), mean_s(lateness.margin_ns)
    collectives = tuple(
        Collective(names[of], *values)
        for of, *values in zip(
            op.tolist(),
            order.tolist(),
            count.tolist(),
            [None if rank < 0 else rank for rank in last.tolist()],
            share.round(4).tolist(),
            last_s.round(_DIGITS).tolist(),
            margin_s.round(_DIGITS).tolist(),
            (waited_s * NS / steps).round(_DIGITS).tolist(),
            mean_s(lateness.transfer_ns).round(9).tolist(),
            strict=True,
        )
    )
    first_ns = mean_s(lateness.first_ns)
    return _Columns(of_meeting, group, op, order, count, first_ns, collectives, late_s, last_s)


def _folded(lanes: Lanes) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the group, type and first order of each column, and each meeting's column.

    Collectives are merged until a report holds at most `MOST_COLLECTIVES` and `MOST_CELLS`.
    """
    meetings = lanes.meetings
    types = len(lanes.trace.op_names)
    series, of_series = np.unique(meetings.group * types + meetings.op, return_inverse=True)
    of_series = of_series.ravel()
    length = np.zeros(len(series), dtype=np.int64)
    np.maximum.at(length, of_series, meetings.order + 1)
    size = np.array([len(group.ranks) for group in meetings.groups])[series // types]
    most = min(MOST_COLLECTIVES / length.sum(), MOST_CELLS / (length * size).sum())
    fold = np.maximum(np.ceil(1 / most), 1).astype(np.int64)
    # Types with few collectives in a step are not merged.
    fold = np.where(length <= max(MOST_COLLECTIVES // max(len(series), 1), 1), 1, fold)
    fold = np.minimum(fold, length)
    if (-(-length // fold) * size).sum() > 2 * MOST_CELLS:
        fold = np.maximum(length, 1)
    part = meetings.order // fold[of_series]
    key = of_series * (int(part.max()) + 1) + part
    columns, of_meeting = np.unique(key, return_inverse=True)
    of_column, part = np.divmod(columns, int(part.max()) + 1)
    group, op = np.divmod(series[of_column], types)
    return group, op, part * fold[of_column], of_meeting.ravel()


def _most_often(column: IntArray, rank: IntArray, width: int) -> tuple[IntArray, FloatArray]:
    """Return the most frequent last rank of each column (-1: none), and its share of meetings."""
    rank = rank + 1
    most = int(rank.max()) + 1
    pairs, count = np.unique(column * most + rank, return_counts=True)
    order = np.lexsort((count, pairs // most))
    last = np.flatnonzero(np.diff(pairs[order] // most, append=width))
    best = order[last]
    return pairs[best] % most - 1, count[best] / np.bincount(column, minlength=width)


def _group(lanes: Lanes, columns: _Columns, absent: IntArray, index: int) -> MeetingGroup:
    group = lanes.meetings.groups[index]
    mine = np.flatnonzero(columns.group == index)
    mine = mine[np.argsort(columns.first_ns[mine], kind="stable")]
    ranks = np.searchsorted(lanes.ranks, group.ranks)
    table = columns.late_s[mine[:, None], ranks].T.round(_DIGITS).tolist()
    late = {
        rank: tuple(None if value != value else value for value in row)  # noqa: PLR0124 - NaN
        for rank, row in zip(group.ranks, table, strict=True)
    }
    collectives = tuple(columns.collectives[column] for column in mine.tolist())
    missing = int(absent[index])
    if missing >= 0:
        late[missing] = tuple(item.late_s if item.last == missing else None for item in collectives)
    return MeetingGroup(
        kind=group.kind,
        stage=group.stage,
        ranks=tuple(sorted(late)),
        collectives=collectives,
        late_s=tuple(late[rank] for rank in sorted(late)),
    )


def _by_rank(
    lanes: Lanes, lateness: Lateness, credit: Credits, absent: IntArray
) -> tuple[RankArrivals, ...]:
    meetings, steps = lanes.meetings, len(lanes.steps)
    present = np.unique(meetings.group)
    missing = {int(absent[group]) for group in present.tolist()} - {-1}
    sharing = missing.union(*(meetings.groups[group].ranks for group in present.tolist()))
    ranks = np.union1d(lanes.ranks, sorted(missing)).astype(np.int64)
    width = len(ranks)
    row = np.searchsorted(ranks, lanes.trace.rank[meetings.row])
    # Meetings at which no rank is last get the index `width`, which is cut off below.
    last = np.where(lateness.last < 0, width, np.searchsorted(ranks, lateness.last))
    met = np.bincount(row, minlength=width)
    # An absent rank recorded no row, so all meetings of its group are added to its count.
    of_absent = absent[meetings.group]
    there = of_absent >= 0
    met += np.bincount(np.searchsorted(ranks, of_absent[there]), minlength=width)
    waited_s = lateness.waited_ns.astype(np.float64) * NS / steps
    waits_s = np.bincount(row, weights=waited_s, minlength=width)
    origin = np.searchsorted(ranks, credit.rank)
    caused_s = credit.waited_ns * NS / steps
    rank_seconds = np.bincount(origin, weights=caused_s, minlength=width)
    # Number of recorded ranks that wait for each rank in each group, and the mean wait of each of
    # them; the shape is (ranks, groups)
    others = np.array([len(group.ranks) - 1 for group in meetings.groups])
    waiting = np.maximum(others + (ranks[:, None] == absent), 1)
    group = meetings.group[credit.meeting]
    each_s = _sums(origin, group, caused_s, waiting.shape) / waiting
    longest = each_s.argmax(axis=1)
    waited_for_s = each_s.max(axis=1)
    in_longest = group == longest[origin]
    step = np.searchsorted(lanes.steps, meetings.step)
    of_step = _sums(
        origin[in_longest],
        step[credit.meeting[in_longest]],
        caused_s[in_longest],
        (width, steps),
    )
    own = _sums(row, step[meetings.meeting], waited_s, (width, steps))
    error_s = _by_chance(steps * (of_step / waiting[np.arange(width), longest][:, None] - own))
    arrivals = [
        RankArrivals(
            rank,
            collectives,
            times,
            together,
            each,
            own_s,
            missing=rank in missing,
            beyond_error_s=error,
        )
        for rank, collectives, times, together, each, own_s, error in zip(
            ranks.tolist(),
            (met / steps).round(4).tolist(),
            (np.bincount(last, minlength=width)[:width] / steps).round(4).tolist(),
            rank_seconds.round(_DIGITS).tolist(),
            waited_for_s.round(_DIGITS).tolist(),
            waits_s.round(_DIGITS).tolist(),
            error_s.round(_DIGITS).tolist(),
            strict=True,
        )
        if together or rank in sharing
    ]
    return tuple(sorted(arrivals, key=lambda item: (-item.rank_seconds, -item.last, item.rank)))


def _sums(
    row: IntArray, column: IntArray, values: FloatArray, shape: tuple[int, int]
) -> FloatArray:
    """Return the sums of values by row and column, in an array of the given shape."""
    cell = row * shape[1] + column
    return np.asarray(
        np.bincount(cell, weights=values, minlength=shape[0] * shape[1]).reshape(shape), np.float64
    )


def _by_chance(beyond_s: FloatArray) -> FloatArray:
    """Return the half width of the 95 % interval (Student) of each rank's mean, shape (ranks,).

    From the variance of the rank's own steps or the mean variance of all ranks, whichever is
    larger: few steps of one rank may be equal by chance. 0 for a single step.

    Parameters
    ----------
    beyond_s : float array, shape (ranks, steps)
    """
    ranks, steps = beyond_s.shape
    if steps < _STEPS_FOR_CHANCE:
        return np.zeros(ranks)
    variance = beyond_s.var(axis=1, ddof=1)
    freedom = (steps - 1) * max(ranks - 1, 1)
    error = np.sqrt(np.maximum(variance, variance.mean()) / steps)
    return np.asarray(student_half(freedom + 1) * error)
