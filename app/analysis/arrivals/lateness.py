"""Lateness of each rank at each collective, and the waiting that it causes, ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.arrivals.lanes import Cover, Intervals, Lanes, cover, first_claims
from app.analysis.quantities import BoolArray, IntArray
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.trace.model import (
    BETWEEN_STEPS,
    CONTEXT_TYPES,
    EXPERT_TYPES,
    GC,
    KNOWN_OP_TYPES,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    TENSOR_TYPES,
    Trace,
)

# Types of collectives that the computation around them waits for; other types overlap with
# computations.
BLOCKING: Final = (PARAMS_ALL_GATHER, *TENSOR_TYPES, *CONTEXT_TYPES, *EXPERT_TYPES)
COMPUTATIONS: Final = (*sorted(COMPUTE), OPTIMIZER)
COMMUNICATIONS: Final = tuple(
    name for name in KNOWN_OP_TYPES if name not in {*COMPUTATIONS, GC, *BETWEEN_STEPS}
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds by which a rank counts as the last at a collective."""

    # No rank counts as last if all ranks arrive within this share of a step…
    together: float = 0.001
    # …and within this share of a step divided by the number of collectives in a step.
    together_in_all: float = 0.01
    # An absent rank counts as last if all other ranks wait for longer than this.
    least_absent_ns: float = 1e6


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class Lateness:
    """Arrivals and waiting at each meeting, ns; the rows are the rows of `Meetings`."""

    late_ns: IntArray  # (rows,): from the first arrival of the meeting to this rank's
    waited_ns: IntArray  # (rows,): waiting for the last rank without computing
    latest: IntArray  # (meetings,): row of the recorded rank that came last
    awaited: IntArray  # (meetings,): global rank that came last, by however little
    last: IntArray  # (meetings,): the same, -1 where all came together
    last_ns: IntArray  # (meetings,): from the first to the last arrival
    margin_ns: IntArray  # (meetings,): from the next to last to the last arrival
    transfer_ns: IntArray  # (meetings,): duration without waiting
    first_ns: IntArray  # (meetings,): first arrival, since the step's first start


def of_types(trace: Trace, names: tuple[str, ...]) -> BoolArray:
    """Return a mask of the op codes with the given names, shape (types,)."""
    chosen = np.zeros(len(trace.op_names), dtype=bool)
    chosen[[trace.op_names.index(name) for name in names]] = True
    return chosen


def lateness_of(lanes: Lanes, computing: Cover, absent: IntArray, step_ns: float) -> Lateness:
    """Return the lateness at all meetings; there must be at least one meeting.

    Parameters
    ----------
    computing : Cover
        The computing time of ranks; see `own_computing`.
    absent : int64 array, shape (groups,)
        The only rank of each group that recorded nothing, -1 if there is none or several.
    step_ns : float
        Mean duration of a step.
    """
    trace, meetings = lanes.trace, lanes.meetings
    arrival_ns = lanes.arrival_ns
    duration_ns = np.maximum(trace.duration_ns[meetings.row], 0)
    first, meeting = meetings.first, meetings.meeting
    present_ns = np.maximum.reduceat(arrival_ns, first)
    first_ns = np.minimum.reduceat(arrival_ns, first)
    transfer_ns = np.minimum.reduceat(duration_ns, first)
    rows = np.arange(len(arrival_ns))
    latest = arrival_ns == present_ns[meeting]
    row_of_last = np.minimum.reduceat(np.where(latest, rows, len(rows)), first)
    others_ns = arrival_ns.copy()
    others_ns[row_of_last] = np.iinfo(np.int64).min
    margin_ns = present_ns - np.maximum.reduceat(others_ns, first)
    after_ns = _after_all(lanes, transfer_ns, absent[meetings.group])
    by_absent = after_ns > 0
    last_ns = present_ns + after_ns
    # A rank waits at most for its recorded duration.
    until_ns = np.minimum(last_ns[meeting], arrival_ns + duration_ns)
    until_ns = np.maximum(until_ns, arrival_ns)
    waits = Intervals.within_lanes(lanes.met_lane, arrival_ns, until_ns, lanes.span_ns)
    left = Intervals(first_claims(waits), waits.end)
    # Shape (groups,): mean number of collectives in a step
    a_step = np.bincount(meetings.group) / len(lanes.steps)
    in_all = THRESHOLDS.together_in_all / a_step[meetings.group]
    together_ns = np.minimum(THRESHOLDS.together, in_all) * step_ns
    awaited = np.where(by_absent, absent[meetings.group], trace.rank[meetings.row[row_of_last]])
    return Lateness(
        late_ns=arrival_ns - first_ns[meeting],
        waited_ns=_unhidden(lanes, computing, left),
        latest=row_of_last,
        awaited=awaited.astype(np.int64),
        last=np.where(last_ns - first_ns < together_ns, -1, awaited).astype(np.int64),
        last_ns=last_ns - first_ns,
        margin_ns=np.where(by_absent, after_ns, margin_ns),
        transfer_ns=transfer_ns - after_ns,
        first_ns=first_ns,
    )


def _after_all(lanes: Lanes, transfer_ns: IntArray, absent: IntArray) -> IntArray:
    """Return the time from the last recorded arrival to the absent rank's, shape (meetings,), ns.

    The time is the shortest duration that the other ranks recorded at the meeting, less the
    shortest duration at any meeting of the same kind, which is only transfer. It is 0 if this
    difference is within the variation of transfers.
    """
    meetings = lanes.meetings
    if (absent < 0).all():
        return np.zeros_like(transfer_ns)
    kind, index = np.unique(
        meetings.group * len(lanes.trace.op_names) + meetings.op, return_inverse=True
    )
    least_ns = np.full(len(kind), np.iinfo(np.int64).max)
    np.minimum.at(least_ns, index.ravel(), transfer_ns)
    usual_ns = least_ns[index.ravel()]
    after_ns = transfer_ns - usual_ns
    late = (absent >= 0) & (after_ns > usual_ns) & (after_ns > THRESHOLDS.least_absent_ns)
    return np.where(late, after_ns, 0)


def _unhidden(lanes: Lanes, computing: Cover, waits: Intervals) -> IntArray:
    """Return the part of each wait during which the rank does not compute, shape (rows,), ns.

    For steps of which not all operations are sampled, the mean share of the sampled steps is
    assumed, by operation type and group.
    """
    whole_ns = waits.end - waits.start
    if lanes.weighed.all():
        return np.asarray(np.maximum(whole_ns - computing.within(waits), 0))
    meetings = lanes.meetings
    measured = lanes.weighed[lanes.met_lane // len(lanes.ranks)]
    unhidden_ns = whole_ns.copy()
    unhidden_ns[measured] -= computing.within(waits.of(measured))
    kind = meetings.group * len(lanes.trace.op_names) + meetings.op
    kinds, of_meeting = np.unique(kind, return_inverse=True)
    of_row = of_meeting.ravel()[meetings.meeting]
    shown, whole = (
        np.bincount(of_row[measured], values[measured].astype(np.float64), minlength=len(kinds))
        for values in (unhidden_ns, whole_ns)
    )
    share = np.where(whole > 0, shown / np.maximum(whole, 1.0), 1.0)[of_row]
    return np.asarray(
        np.where(measured, np.maximum(unhidden_ns, 0), (whole_ns * share).astype(np.int64))
    )


def own_computing(lanes: Lanes) -> Cover:
    """Return the union of computations, less the blocking collectives inside them."""
    trace, span_ns = lanes.trace, lanes.span_ns
    computing = cover(lanes.of(of_types(trace, COMPUTATIONS)), lanes.count, span_ns, in_order=True)
    blocking = lanes.of(of_types(trace, BLOCKING))
    inside = computing.within(blocking) > 0
    if not inside.any():
        return computing
    return without(computing, cover(blocking.of(inside), lanes.count, span_ns, in_order=True))


def without(base: Cover, other: Cover) -> Cover:
    """Return the time that the first cover covers and the second does not."""
    if not len(base.start) or not len(other.start):
        return base
    # Between neighboring boundaries of the two covers, each of them covers either everything or
    # nothing.
    cuts = np.unique(np.concatenate([base.start, base.end, other.start, other.end]))
    begin, end = cuts[:-1], cuts[1:]

    def covered(by: Cover) -> BoolArray:
        piece = np.searchsorted(by.start, begin, side="right") - 1
        return (piece >= 0) & (begin < by.end[np.maximum(piece, 0)])

    kept = covered(base) & ~covered(other)
    start, end = begin[kept], end[kept]
    before = np.concatenate([[0], np.cumsum(end - start)])
    return Cover(base.span_ns, base.lanes, start, end, before)
