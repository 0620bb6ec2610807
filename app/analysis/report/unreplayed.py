"""Reports of sessions without a replay: arrivals and breakdown, no slowdown.

For traces whose decoder or replay refuses a replay, or with a missing stage or a single rank:
``fidelity.replayed`` is false, without verdict, causes or fixes. Required replay fields come
from whole steps (first start to last end of each rank). Impossible durations of a rank take their
usual value.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.arrivals.build import Met, arrivals_of
from app.analysis.arrivals.document import Breakdown
from app.analysis.arrivals.lanes import lanes_of
from app.analysis.diagnosis.verdict import Verdict
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.impossible_times import (
    BEYOND_SESSION,
    FAR_ABOVE,
    GOES_ON,
    NS_A_SECOND,
    ImpossibleDuration,
    without_unusable,
)
from app.analysis.replay.layout.dependency_graph import DEPENDENCY_CYCLE, TRANSFERS_UNMATCHED
from app.analysis.replay.missing_operations import RANK_MISSING
from app.analysis.replay.no_verdict import Unseen
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.report.document import Correlation, CorrelationSample, DiagnosisSummary, Report
from app.analysis.trace.metadata import reason_of
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, OPTIMIZER, Trace
from app.analysis.wording import name_list, percent
from app.errors import UnanalyzableError

# ---- Durations that cannot be, of a trace of which no operation can be replayed ----------------
# What `app.analysis.replay.impossible_times` tells by the peers of an operation and by what waits
# for it, this tells by the rank alone: the duration is far above that of the same type on the rank,
# and the rank computes again in the first half of it, the same type or in a later step. It then
# takes what it usually takes, and no longer than until the rank goes on.


IntArray = NDArray[np.int64]

_COMPUTING = (FORWARD_COMPUTE, BACKWARD_COMPUTE, OPTIMIZER)
_NEVER = np.iinfo(np.int64).max


def with_believed_durations(trace: Trace) -> tuple[Trace, tuple[ImpossibleDuration, ...]]:
    """Return the trace with what impossible durations count with, and which these are.

    The same object where all can be.
    """
    usual_ns = _usual_ns(trace)
    far = trace.duration_ns > FAR_ABOVE * usual_ns
    if not far.any():
        return trace, ()
    goes_on_ns = _goes_on(trace) - trace.start_ns
    followed = far & (goes_on_ns < GOES_ON * trace.duration_ns)
    ends_ns = trace.start_ns + np.where(far, 0, trace.duration_ns)
    session_ns = int(ends_ns.max() - trace.start_ns.min())
    alone = far & (trace.duration_ns > BEYOND_SESSION * max(session_ns, 1))
    rows = np.flatnonzero(followed | alone)
    if not len(rows):
        return trace, ()
    duration_ns = trace.duration_ns.copy()
    taken = np.minimum(usual_ns[rows], np.maximum(goes_on_ns[rows], 1))
    duration_ns[rows] = taken.astype(np.int64)
    found = [
        ImpossibleDuration(
            int(trace.step[row]),
            int(trace.rank[row]),
            trace.op_names[trace.op[row]],
            float(trace.duration_ns[row] / NS_A_SECOND),
            float(duration_ns[row] / NS_A_SECOND),
        )
        for row in rows.tolist()
    ]
    found.sort(key=lambda one: (one.step, one.rank))
    return replace(trace, duration_ns=duration_ns), tuple(found)


def _usual_ns(trace: Trace) -> NDArray[np.float64]:
    """Return the median duration of each operation's type on its rank, shape (operations,)."""
    of = trace.rank.astype(np.int64) * len(trace.op_names) + trace.op
    order = np.lexsort((trace.duration_ns, of))
    _, first, inverse, count = np.unique(
        of[order], return_index=True, return_inverse=True, return_counts=True
    )
    ordered = trace.duration_ns[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    median = low / 2 + high / 2
    usual = np.empty(len(trace))
    usual[order] = median[inverse.ravel()]
    return usual


def _goes_on(trace: Trace) -> IntArray:
    """Return when the rank of each operation computes again, after it, ns; the largest if never."""
    names = [trace.op_names.index(name) for name in _COMPUTING if name in trace.op_names]
    computing = np.flatnonzero(np.isin(trace.op, names))
    next_ns = np.full(len(trace), _NEVER, dtype=np.int64)
    # The next one of its type.
    order = computing[
        np.lexsort((trace.start_ns[computing], trace.op[computing], trace.rank[computing]))
    ]
    alike = (np.diff(trace.rank[order]) == 0) & (np.diff(trace.op[order]) == 0)
    next_ns[order[:-1][alike]] = trace.start_ns[order[1:][alike]]
    # The first of a later step of its rank.
    rank, step = trace.rank.astype(np.int64), trace.step.astype(np.int64)
    turns, of = np.unique(np.stack([rank, step]), axis=1, return_inverse=True)
    of = of.ravel()
    first_ns = np.full(turns.shape[1], _NEVER, dtype=np.int64)
    np.minimum.at(first_ns, of[computing], trace.start_ns[computing])
    later_ns = np.full_like(first_ns, _NEVER)
    for turn in range(turns.shape[1] - 2, -1, -1):
        if turns[0, turn] == turns[0, turn + 1]:
            later_ns[turn] = min(first_ns[turn + 1], later_ns[turn + 1])
    return np.minimum(next_ns, later_ns[of])


# ---- What stands for a trace of which no operation can be replayed -----------------------------


_TYPES: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, OPTIMIZER)


def whole_steps(trace: Trace) -> Trace:
    """Return a trace in which each rank computes from its first start in a step to its last end.

    That is an optimizer's, for which no other stage waits, after a nanosecond each of forward and
    backward; on one clock, as far as collectives tell.
    """
    lanes = lanes_of(trace, most=len(trace))
    lane = np.unique(lanes.lane)
    start_ns = lanes.start[np.searchsorted(lanes.lane, lane)] - lane * lanes.span_ns
    end_ns = lanes.ends_ns().ravel()[lane]
    short_ns = np.ones_like(start_ns)
    rest_ns = np.maximum(end_ns - start_ns - 2, 1)
    start_ns += lanes.begin_ns[lane // len(lanes.ranks)]
    head = np.zeros(len(lane), dtype=np.int64)
    stretch = trace.stretches().first
    step = np.searchsorted(lanes.steps, trace.step[stretch])
    own = step * len(lanes.ranks) + np.searchsorted(lanes.ranks, trace.rank[stretch])
    head[np.searchsorted(lane, own)] = stretch
    types = [trace.op_names.index(name) for name in _TYPES]
    thrice = np.tile(head, len(types))
    return replace(
        trace.of_rows(thrice),
        op=np.repeat(np.array(types, dtype=np.int16), len(head)),
        mb=np.zeros(len(thrice), dtype=np.int32),
        mc=np.zeros(len(thrice), dtype=np.int32),
        order=np.zeros(len(thrice), dtype=np.int32),
        start_ns=np.concatenate([start_ns, start_ns + 1, start_ns + 2]),
        duration_ns=np.concatenate([short_ns, short_ns, rest_ns]),
        copies=trace.copies,
    )


# ---- Reports of sessions that no replay can come from: arrivals and breakdown, and no slowdown ---
# Who comes last at collectives, and what steps pass with, is known of any trace that has operations
# (`app.analysis.arrivals.build`). A report is made of it alone where
#
# - a decoder says that steps cannot be replayed: it gives the metadata of its trace the reason by
#   `app.analysis.trace.metadata.not_replayed`; operations have whatever types are
#   known of them, and sends and receives need no peers;
# - the replay refuses the trace because its transfers match no computations, or wait for one
# another
#   in a circle (`FALLS_BACK`), and ranks meet in collectives;
# - a pipeline stage is missing, or all ranks but one, of which the breakdown is told.
#
# Such a report has ``fidelity.replayed`` false, no verdict, no causes and no fixes. What a report
# must have of a replay is that of whole steps: each rank computes from its first start to its last
# end. That tells nothing of stragglers, and nothing shows it.


# Refusals of the replay that leave arrivals to be told.
FALLS_BACK: Final = frozenset({TRANSFERS_UNMATCHED, DEPENDENCY_CYCLE, RANK_MISSING})

# A smaller share of a step is not worth a word.
_WORTH_SAYING: Final = 0.005


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A trace and what is replayed of it."""

    trace: Trace
    replayed: Replayed
    # Why these are whole steps and not operations; None where they are operations.
    unseen: Unseen | None
    met: Met | None  # where it is known already


def replay_or_steps(trace: Trace, without: Collection[Name] = ()) -> Prepared:
    """Prepare a replay of operations; where none can be, one of whole steps.

    Raises
    ------
    UnanalyzableError
        Where not even that can be; see `prepare_replay`.
    """
    reason, refusal = reason_of(trace.meta), None
    if reason is None:
        try:
            return Prepared(trace, prepare_replay(trace, without), None, None)
        except UnanalyzableError as refused:
            if refused.stable_code not in FALLS_BACK:
                raise
            refusal = refused
            reason = refused.message[:1].lower() + refused.message[1:]
    usable, unusable = without_unusable(trace)
    usable, impossible = with_believed_durations(usable)
    met = arrivals_of(usable)
    if met.arrivals is None and refusal is not None and refusal.stable_code != RANK_MISSING:
        raise refusal
    steps = whole_steps(usable)
    last = "" if met.arrivals is None else "who comes last at collectives, and "
    # Its times are those of one clock.
    alike = replace(trace.meta, hosts=dict.fromkeys(range(trace.meta.sizes.world), "one"))
    unseen = Unseen(
        verdict=f"steps cannot be replayed, {reason}",
        reason=f"Steps cannot be replayed: {reason}. What is told is {last}what steps pass with.",
        timed=False,
    )
    replayed = prepare_replay(replace(steps, meta=alike), whole_steps=True)
    dropped = tuple(sorted((*replayed.dropped, *unusable), key=attrgetter("step")))
    replayed = replace(replayed, dropped=dropped, impossible=impossible)
    return Prepared(steps, replayed, unseen, met)


def without_slowdown(report: Report) -> Report:
    """Return a report of whole steps without what only a replay of operations tells."""
    return replace(
        report,
        fidelity=replace(report.fidelity, adaptations=(), late_launches=(), replayed=False),
        fb_correlation=Correlation(None, 0, 0, CorrelationSample((), ())),
        diagnosis=DiagnosisSummary((), (), 0.0, 1.0),
        recommendations=(),
        budget=None,
        computing=None,
        verdict=_verdict(report),
    )


def _verdict(report: Report) -> Verdict:
    """Return what is known, in a sentence, after why there is no verdict."""
    met = report.arrivals
    if met is None:
        breakdown = report.breakdown
        # Steps of a damaged recording may take no time.
        told = ""
        if breakdown is not None and breakdown.step_s > 0:
            told = f"{_of_steps(breakdown)}. "
        return Verdict(f"{told}{report.verdict.sentence}", report.verdict.level)
    return Verdict(f"{met.words}. {report.verdict.sentence}", report.verdict.level)


def _of_steps(breakdown: Breakdown) -> str:
    """Return what the steps of the ranks that are there pass with."""
    ranks, step_s = breakdown.ranks, breakdown.step_s
    parts = [
        f"{words} {percent(share, 0)}"
        for words, times_s in (
            ("computing", [one.computing_s for one in ranks]),
            ("communicating and waiting", [one.communication_s for one in ranks]),
            ("loading data", [one.data_s for one in ranks]),
            ("idle", [one.idle_s for one in ranks]),
        )
        for share in [sum(times_s) / len(ranks) / step_s]
        if share >= _WORTH_SAYING
    ]
    who = name_list("rank", [str(one.rank) for one in ranks])
    does = "spends" if len(ranks) == 1 else "spend"
    return f"{who[:1].upper()}{who[1:]} {does} steps of {step_s:.3g} s {', '.join(parts)}"
