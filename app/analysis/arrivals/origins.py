"""Origins of waits: the ranks whose own work made the last rank of a collective late.

The last rank of a collective is late because it worked longer than its peers since the exchange
that held it up before, or because that exchange ended later for it than for its peers. In the
second case the last rank of that exchange is looked at in the same way, and so on, back through
receives, sends and collectives of all groups. All comparisons are between ranks of one group, whose
clocks agree; the clocks of two stages are never compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.arrivals.collective_matching import GroupKind, Places, places_of
from app.analysis.arrivals.lanes import Cover, Lanes
from app.analysis.arrivals.lateness import COMMUNICATIONS, COMPUTATIONS, Lateness, of_types
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.layout.pipeline import BACKWARD, DIRECTIONS, FORWARD, Direction
from app.analysis.trace.model import EMBEDDING_ALL_REDUCE

_TRANSFERS: Final = (FORWARD.send, FORWARD.recv, BACKWARD.send, BACKWARD.recv)
# Recorded times of one moment differ by up to this: clocks are rounded, and a computation may begin
# before the recorded end of the exchange that it waits for.
_MOMENT_NS: Final = 50_000
# A walk ends when less than this share of the lateness is left to explain.
_LEFT: Final = 0.002
# The last rank of an exchange explains another rank's lateness if it is at least this share as late
# as the other rank was when it arrived there.
_EXPLAINS: Final = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Credits:
    """Waiting by the rank that causes it; each row is a meeting and a rank."""

    meeting: IntArray
    rank: IntArray  # global
    waited_ns: FloatArray


def credits_of(lanes: Lanes, lateness: Lateness, computing: Cover) -> Credits:
    """Return the waiting at all meetings, divided among the origins of the last rank's lateness.

    The credits of a meeting add up to the time that its ranks wait. In steps of which not all
    operations are sampled, a last rank has the mean shares that it has in the sampled steps.

    Parameters
    ----------
    computing : Cover
        The computing time of ranks; see `app.analysis.arrivals.lateness.own_computing`.
    """
    meetings = lanes.meetings
    waits_ns = lateness.waited_ns.astype(np.float64)
    waited_ns = np.asarray(np.bincount(meetings.meeting, weights=waits_ns), np.float64)
    sampled = lanes.weighed[np.searchsorted(lanes.steps, meetings.step)]
    walked = np.flatnonzero(sampled & (waited_ns > 0))
    exchanges = _exchanges_of(lanes, lateness, computing)
    places = {group: index for index, group in enumerate(GroupKind)}
    kinds = np.array([places[group.kind] for group in meetings.groups])
    last = exchanges.row_of(meetings.row[lateness.latest[walked]])
    credit: list[tuple[int, int, float]] = []
    for meeting, kind, row, awaited in zip(
        walked.tolist(),
        kinds[meetings.group[walked]].tolist(),
        last.tolist(),
        lateness.awaited[walked].tolist(),
        strict=True,
    ):
        recorded = exchanges.rank[row] == awaited
        shares = _origins(exchanges, kind, row) if recorded else {awaited: 1.0}
        credit += [(meeting, rank, share) for rank, share in shares.items()]
    meeting_, rank_, share_ = zip(*credit, strict=True) if credit else ((), (), ())
    found = Credits(
        np.array(meeting_, dtype=np.int64),
        np.array(rank_, dtype=np.int64),
        np.array(share_) * waited_ns[list(meeting_)],
    )
    rest = np.flatnonzero(~sampled & (waited_ns > 0))
    return _extended(found, rest, waited_ns, meetings.group, lateness.awaited)


def _extended(
    found: Credits, rest: IntArray, waited_ns: FloatArray, group: IntArray, awaited: IntArray
) -> Credits:
    """Return the credits with those of the meetings `rest`, which were not sampled.

    A meeting has the mean shares of the sampled meetings of its group with the same last rank, and
    without any, its waiting is credited to the last rank.
    """
    if not len(rest):
        return found
    key = group * (int(awaited.max()) + 1) + awaited
    (keys, ranks), of_pair = np.unique(
        np.stack((key[found.meeting], found.rank)), axis=1, return_inverse=True
    )
    total_ns = np.bincount(of_pair.ravel(), weights=found.waited_ns)
    first, end = (np.searchsorted(keys, key[rest], side=side) for side in ("left", "right"))
    count = end - first
    pair = np.arange(int(count.sum())) + np.repeat(first - (np.cumsum(count) - count), count)
    meeting = np.repeat(rest, count)
    before_ns = np.concatenate([[0.0], np.cumsum(total_ns)])
    share = total_ns[pair] / np.repeat(before_ns[end] - before_ns[first], count)
    alone = rest[count == 0]
    return Credits(
        np.concatenate([found.meeting, meeting, alone]),
        np.concatenate([found.rank, ranks[pair], awaited[alone]]),
        np.concatenate([found.waited_ns, share * waited_ns[meeting], waited_ns[alone]]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Exchanges:
    """Communication of the sampled steps: a row for each rank that takes part, by lane and start.

    Lists, as the walk reads single values. Times are ns since the step's first start.
    """

    by_row: tuple[IntArray, IntArray]  # rows of the trace, ascending, and their rows here
    rank: list[int]  # global
    lane: list[int]
    begin_ns: list[int]
    # Row of the rank that comes last at the same exchange; its own row if that is unknown, and -1
    # if that rank recorded nothing.
    last: list[int]
    last_rank: list[int]
    # Row of the earlier stage of a transfer, which a longer transfer is credited to in both
    # directions, since it is not known which end is slow; else the row itself
    earlier_end: list[int]
    holding: list[int]  # rows of exchanges that held up their rank, by lane and end
    before: list[int]  # place in `holding` of the latest end before a row begins, -1 for none
    # By kind of group and row: when the rank could go on after the exchange, and the means of its
    # peers in its group of this kind, NaN without peers
    free_ns: list[list[int]]
    peers_begin_ns: list[list[float]]
    peers_free_ns: list[list[float]]

    def row_of(self, trace_row: IntArray) -> IntArray:
        """Return the rows here of the given rows of the trace."""
        ascending, rows = self.by_row
        return rows[np.searchsorted(ascending, trace_row)]


def _origins(exchanges: _Exchanges, kind: int, row: int) -> dict[int, float]:
    """Return the shares of ranks in the lateness of an arrival; they add up to 1.

    Parameters
    ----------
    kind : int
        Index of the kind of group whose ranks are compared.
    row : int
        Row of the rank that comes last.
    """
    rank, begin, peers_begin = exchanges.rank, exchanges.begin_ns, exchanges.peers_begin_ns[kind]
    free, peers_free = exchanges.free_ns[kind], exchanges.peers_free_ns[kind]
    origin_ns: dict[int, float] = defaultdict(float)
    first, scale = rank[row], 1.0
    least_ns = _LEFT * (begin[row] - peers_begin[row])
    if not least_ns > 0:
        return {first: 1.0}
    # The number of rows is the limit for damaged recordings, whose exchanges may form a circle.
    for _ in range(len(rank)):
        late_ns = scale * (begin[row] - peers_begin[row])
        held = _held_up(exchanges, kind, row)
        inherited_ns = scale * (free[held] - peers_free[held]) if held >= 0 else 0.0
        if inherited_ns <= least_ns:
            origin_ns[rank[row]] += late_ns
            break
        origin_ns[rank[row]] += late_ns - inherited_ns
        arrived_ns = scale * (begin[held] - peers_begin[held])
        last = exchanges.last[held]
        if last < 0:
            origin_ns[exchanges.last_rank[held]] += inherited_ns
            break
        last_late_ns = scale * (begin[last] - peers_begin[last])
        if not last_late_ns >= _EXPLAINS * min(arrived_ns, inherited_ns):
            last, last_late_ns = held, arrived_ns
        # The rest of the wait is a longer transfer.
        explained_ns = min(max(last_late_ns, 0.0), inherited_ns)
        origin_ns[rank[exchanges.earlier_end[held]]] += inherited_ns - explained_ns
        if explained_ns <= least_ns:
            break
        scale *= explained_ns / last_late_ns
        row = last
    positive = {origin: late for origin, late in origin_ns.items() if late > 0}
    total_ns = sum(positive.values())
    if not positive:
        return {first: 1.0}
    return {origin: late / total_ns for origin, late in positive.items()}


def _held_up(exchanges: _Exchanges, kind: int, row: int) -> int:
    """Return the row of the latest exchange that held up a rank, and its peers, before an arrival.

    -1 if there is none. An exchange that ended for the peers only after they arrived is another
    one's business: collectives in flight together do not wait for one another.
    """
    begin = exchanges.begin_ns[row] + _MOMENT_NS
    peers_begin = exchanges.peers_begin_ns[kind][row] + _MOMENT_NS
    free, peers_free = exchanges.free_ns[kind], exchanges.peers_free_ns[kind]
    for place in range(exchanges.before[row], -1, -1):
        held = exchanges.holding[place]
        if exchanges.lane[held] != exchanges.lane[row]:
            return -1
        if held < row and free[held] <= begin and peers_free[held] <= peers_begin:
            return held
    return -1


def _exchanges_of(lanes: Lanes, lateness: Lateness, computing: Cover) -> _Exchanges:
    trace, meetings, span_ns = lanes.trace, lanes.meetings, lanes.span_ns
    rows = _rows_of(lanes)
    row, lane, start, end = rows.row, rows.lane, rows.start, rows.end
    rank = lanes.ranks[lane % len(lanes.ranks)]
    # A rank that computes while an exchange ends is not held up by it.
    holds = computing.until(end) - computing.until(end - 2 * _MOMENT_NS) <= _MOMENT_NS
    holding = np.flatnonzero(holds)
    holding = holding[np.argsort(end[holding], kind="stable")]
    before = np.searchsorted(end[holding], start + _MOMENT_NS, side="right") - 1
    by_row = np.argsort(row, kind="stable")
    sampled = np.flatnonzero(lanes.weighed[lanes.met_lane // len(lanes.ranks)])
    met, of_last = (
        by_row[np.searchsorted(row[by_row], meetings.row[met_row])]
        for met_row in (sampled, lateness.latest[meetings.meeting[sampled]])
    )
    last, earlier_end = _ends_of_transfers(lanes, rows)
    last[met] = of_last
    last_rank = rank[last]
    last_rank[met] = lateness.awaited[meetings.meeting[sampled]]
    last[last_rank != rank[last]] = -1
    begin_ns = start - lane * span_ns
    order = trace.order[row].astype(np.int64)
    same = lane // len(lanes.ranks) * len(trace.op_names) + rows.op
    same = same * (int(order.max(initial=0)) + 2) + order
    computed = _Computed(lanes, lane, end)
    free_ns: list[list[int]] = []
    peers_begin_ns: list[list[float]] = []
    peers_free_ns: list[list[float]] = []
    for group_of in meetings.group_of:
        if (group_of < 0).all():
            free_ns.append([])
            peers_begin_ns.append([])
            peers_free_ns.append([])
            continue
        peers = _Peers(group_of[rank], same)
        count = peers.most(np.where(holds, computed.count, 0))
        free = computed.free_at(end, count) - lane * span_ns
        free_ns.append(free.tolist())
        peers_begin_ns.append(peers.mean(begin_ns).tolist())
        peers_free_ns.append(peers.mean(free).tolist())
    return _Exchanges(
        by_row=(row[by_row], by_row),
        rank=rank.tolist(),
        lane=lane.tolist(),
        begin_ns=begin_ns.tolist(),
        last=last.tolist(),
        last_rank=last_rank.tolist(),
        earlier_end=earlier_end.tolist(),
        holding=holding.tolist(),
        before=before.tolist(),
        free_ns=free_ns,
        peers_begin_ns=peers_begin_ns,
        peers_free_ns=peers_free_ns,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Communication of ranks, arrays of shape (rows,), by lane and start."""

    row: IntArray  # row of the trace
    lane: IntArray
    op: IntArray
    start: IntArray  # position on the axis of lanes
    end: IntArray

    @classmethod
    def joined(cls, parts: Sequence[_Rows]) -> _Rows:
        """Return the rows of all parts in order."""
        columns = [
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__
        ]
        order = np.argsort(columns[cls.__slots__.index("start")], kind="stable")
        return cls(*(column[order] for column in columns))


def _rows_of(lanes: Lanes) -> _Rows:
    """Return the recorded communication of the sampled steps, and transfers that follow from it."""
    chosen = np.flatnonzero(of_types(lanes.trace, COMMUNICATIONS)[lanes.op])
    rows = _Rows(
        lanes.row[chosen],
        lanes.lane[chosen],
        lanes.op[chosen].astype(np.int64),
        lanes.start[chosen],
        lanes.end[chosen],
    )
    places = places_of(lanes.trace)
    parts = [rows]
    if lanes.trace.meta.sizes.pp > 1:
        parts += [_handovers(lanes, places, direction) for direction in DIRECTIONS]
    if places.member.any():
        parts.append(_shared_transfers(lanes, places, rows))
    return _Rows.joined(parts) if len(parts) > 1 else rows


def _handovers(lanes: Lanes, places: Places, direction: Direction) -> _Rows:
    """Return the transfers of a direction if the trace has only the computations around them.

    A result is sent when its computation ends. It is received when the next stage begins to compute
    with it, which waits from the end of its operation before.
    """
    trace = lanes.trace
    codes = [trace.op_names.index(name) for name in (direction.send, direction.recv)]
    chosen = np.flatnonzero(lanes.op == trace.op_names.index(direction.compute))
    if np.isin(lanes.op, codes).any():
        chosen = chosen[:0]
    stage = places.stage[lanes.lane[chosen] % len(lanes.ranks)]
    last = trace.meta.sizes.pp - 1
    first, final = (0, last) if direction is FORWARD else (last, 0)
    sent, received = chosen[stage != final], chosen[stage != first]
    ended = np.maximum.accumulate(lanes.end)[np.maximum(received - 1, 0)]
    begin = lanes.lane[received] * lanes.span_ns
    free = np.clip(ended, begin, lanes.start[received])
    both = np.concatenate([sent, received])
    return _Rows(
        lanes.row[both],
        lanes.lane[both],
        np.repeat(codes, [len(sent), len(received)]),
        np.concatenate([lanes.end[sent], free]),
        np.concatenate([lanes.end[sent], lanes.start[received]]),
    )


def _shared_transfers(lanes: Lanes, places: Places, rows: _Rows) -> _Rows:
    """Return transfers for ranks that recorded none, from another rank of their worker.

    Some recordings have the transfers between stages of one rank of a worker only, but they hold up
    all of its ranks.
    """
    transfers = np.flatnonzero(of_types(lanes.trace, _TRANSFERS)[rows.op])
    first = np.searchsorted(rows.lane[transfers], np.arange(lanes.count + 1))
    count = np.diff(first)
    worker = places.dp * lanes.trace.meta.sizes.pp + places.stage
    workers = int(worker.max()) + 1
    worker = np.add.outer(np.arange(len(lanes.steps)) * workers, worker).ravel()
    giver = np.full(len(lanes.steps) * workers, -1)
    giver[worker[np.flatnonzero(count)]] = np.flatnonzero(count)
    lacking = (np.bincount(rows.lane, minlength=lanes.count) > 0) & (count == 0)
    taking = np.flatnonzero(lacking & (giver[worker] >= 0))
    given = giver[worker[taking]]
    copies = count[given]
    copied = transfers[
        np.arange(int(copies.sum()))
        + np.repeat(first[given] - (np.cumsum(copies) - copies), copies)
    ]
    lane = np.repeat(taking, copies)
    shift = (lane - rows.lane[copied]) * lanes.span_ns
    return _Rows(
        rows.row[copied],
        lane,
        rows.op[copied],
        rows.start[copied] + shift,
        rows.end[copied] + shift,
    )


class _Computed:
    """Numbers of computations that ranks have finished when their exchanges end."""

    def __init__(self, lanes: Lanes, lane: IntArray, end: IntArray) -> None:
        computing = of_types(lanes.trace, COMPUTATIONS)[lanes.op]
        self._ends = np.sort(lanes.end[computing])
        first = np.searchsorted(self._ends, np.arange(lanes.count + 1) * lanes.span_ns)
        self._first, self._number = first[lane], np.diff(first)[lane]
        # Number of finished computations at the end of each exchange
        self.count = np.searchsorted(self._ends, end + _MOMENT_NS, side="right") - self._first

    def free_at(self, end: IntArray, count: IntArray) -> IntArray:
        """Return when each exchange has ended and its rank has finished `count` computations."""
        later = np.flatnonzero((count > self.count) & (count <= self._number))
        free = end.copy()
        free[later] = np.maximum(end[later], self._ends[(self._first + count - 1)[later]])
        return free


class _Peers:
    """Rows of one operation on the ranks of one group.

    Parameters
    ----------
    group : int64 array, shape (rows,)
        Group of each row's rank, -1 if it has none.
    same : int64 array, shape (rows,)
        Key that the rows of one operation have in common.
    """

    def __init__(self, group: IntArray, same: IntArray) -> None:
        self._alone = group < 0
        key = group * (int(same.max(initial=0)) + 1) + same
        _, self._of, self._count = np.unique(key, return_inverse=True, return_counts=True)
        self._of = self._of.ravel()

    def most(self, values: IntArray) -> IntArray:
        """Return the largest value of each row's group."""
        most = np.zeros(len(self._count), dtype=np.int64)
        np.maximum.at(most, self._of, values)
        return most[self._of]

    def mean(self, times_ns: IntArray) -> FloatArray:
        """Return the mean over the other ranks of each row's group; NaN if there are none."""
        total_ns = np.bincount(self._of, weights=times_ns.astype(np.float64))
        others = np.where(self._alone, 0, self._count[self._of] - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_ns = (total_ns[self._of] - times_ns) / others
        return np.where(others > 0, mean_ns, np.nan)


def _ends_of_transfers(lanes: Lanes, rows: _Rows) -> tuple[IntArray, IntArray]:
    """Return the rows of the last rank, and of the earlier stage, of each row's transfer.

    Both ends of a transfer end at the same moment, so that the shorter of them began later. Other
    rows, and transfers of which only one end is recorded, have their own index.
    """
    trace, places = lanes.trace, places_of(lanes.trace)
    place, duration_ns = rows.lane % len(lanes.ranks), rows.end - rows.start
    stage, sizes = places.stage[place], trace.meta.sizes
    link = np.full(len(rows.op), -1, dtype=np.int64)
    for number, (direction, to) in enumerate(((FORWARD, 1), (BACKWARD, -1))):
        send, receive = (
            rows.op == trace.op_names.index(name) for name in (direction.send, direction.recv)
        )
        receiver = stage[send] + to
        # With virtual stages, the last stage sends to the first one.
        receiver = receiver % sizes.pp if sizes.vpp > 1 else receiver
        link[send] = np.where((receiver >= 0) & (receiver < sizes.pp), 3 * receiver + number, -1)
        link[receive] = 3 * stage[receive] + number
    # The first and the last stage share the embedding's weights.
    link[rows.op == trace.op_names.index(EMBEDDING_ALL_REDUCE)] = 2
    key, order = rows.lane // len(lanes.ranks), trace.order[rows.row].astype(np.int64)
    for column in (link, places.dp[place], places.member[place], order):
        key = key * (int(column.max(initial=0)) + 2) + column + 1
    linked = np.flatnonzero(link >= 0)
    linked = linked[np.argsort(key[linked], kind="stable")]
    _, first, count = np.unique(key[linked], return_index=True, return_counts=True)
    pairs = first[count == 2]  # noqa: PLR2004 - both ends of a transfer
    one, other = linked[pairs], linked[pairs + 1]
    last, earlier = np.arange(len(link)), np.arange(len(link))
    earlier[one] = earlier[other] = np.where(stage[other] < stage[one], other, one)
    last[one] = np.where(duration_ns[other] < duration_ns[one], other, one)
    last[other] = np.where(duration_ns[one] < duration_ns[other], one, other)
    return last, earlier
