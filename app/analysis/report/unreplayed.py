"""Reports of sessions that cannot be replayed: arrivals and breakdown, but no slowdown.

Arrivals and breakdown can be computed from any trace with operations
(`app.analysis.arrivals.build`). A report has only these, with ``fidelity.replayed`` false and
without verdict, causes or fixes, if

- the decoder states that steps cannot be replayed (`app.analysis.trace.metadata.not_replayed`);
- the replay refuses the trace (`FALLS_BACK`) because transfers match no computations or wait for
  one another in a circle, and ranks meet in collectives;
- a pipeline stage is missing, or all ranks but one.

The required fields of a replay are then computed from whole steps: each rank computes from its
first start to its last end, which says nothing of stragglers, and no page shows it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import numpy as np

from app.analysis.arrivals.build import MeasuredArrivals, arrivals_of
from app.analysis.arrivals.document import Breakdown
from app.analysis.arrivals.lanes import lanes_of
from app.analysis.diagnosis.verdict import Verdict
from app.analysis.quantities import NS_A_SECOND, FloatArray, IntArray
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.impossible_times import (
    BEYOND_SESSION,
    FAR_ABOVE,
    GOES_ON,
    ImpossibleDuration,
    without_unusable,
)
from app.analysis.replay.layout.dependency_graph import DEPENDENCY_CYCLE, TRANSFERS_UNMATCHED
from app.analysis.replay.missing_operations import RANK_MISSING
from app.analysis.replay.no_verdict import Unseen
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.report.document import Correlation, CorrelationSample, DiagnosisSummary, Report
from app.analysis.trace.metadata import not_replayed_reason
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, OPTIMIZER, Trace
from app.analysis.wording import name_list, percent
from app.errors import UnanalyzableError

_COMPUTING: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, OPTIMIZER)
_NEVER: Final = np.iinfo(np.int64).max


def with_believed_durations(trace: Trace) -> tuple[Trace, tuple[ImpossibleDuration, ...]]:
    """Return the trace with impossible durations replaced, and a list of these durations.

    `app.analysis.replay.impossible_times` compares a rank with its peers; this function uses the
    rank alone: a duration is impossible if it is far above the median of its type on the rank, and
    the rank computes again in the first half of the duration (the same type, or a later step). The
    replacement is the median, or the time until the rank computes again if that is shorter. Returns
    the same object if all durations are possible.
    """
    usual_ns = _usual_ns(trace)
    far = trace.duration_ns > FAR_ABOVE * usual_ns
    if not far.any():
        return trace, ()
    goes_on_ns = _next_computation_ns(trace) - trace.start_ns
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
    impossible = [
        ImpossibleDuration(
            int(trace.step[row]),
            int(trace.rank[row]),
            trace.op_names[trace.op[row]],
            float(trace.duration_ns[row] / NS_A_SECOND),
            float(duration_ns[row] / NS_A_SECOND),
        )
        for row in rows.tolist()
    ]
    impossible.sort(key=lambda item: (item.step, item.rank))
    return replace(trace, duration_ns=duration_ns), tuple(impossible)


def _usual_ns(trace: Trace) -> FloatArray:
    """Return the median duration of each operation's type on its rank, (operations,), ns."""
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


def _next_computation_ns(trace: Trace) -> IntArray:
    """Return the next computation's start on each operation's rank, ns; int64's maximum if none."""
    names = [trace.op_names.index(name) for name in _COMPUTING if name in trace.op_names]
    computing = np.flatnonzero(np.isin(trace.op, names))
    next_ns = np.full(len(trace), _NEVER, dtype=np.int64)
    # Start of the next computation of the same type.
    order = computing[
        np.lexsort((trace.start_ns[computing], trace.op[computing], trace.rank[computing]))
    ]
    alike = (np.diff(trace.rank[order]) == 0) & (np.diff(trace.op[order]) == 0)
    next_ns[order[:-1][alike]] = trace.start_ns[order[1:][alike]]
    # Start of the first computation in a later step of the rank.
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


def whole_steps(trace: Trace) -> Trace:
    """Return a trace in which each rank computes from its first start in a step to its last end.

    Each rank has a nanosecond of forward and a nanosecond of backward in a step, then an optimizer,
    for which no other stage waits; times are on a common clock, as far as collectives align it.
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
    types = [trace.op_names.index(name) for name in _COMPUTING]
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


# Codes of refused replays for which a report of arrivals is made instead.
FALLS_BACK: Final = frozenset({TRANSFERS_UNMATCHED, DEPENDENCY_CYCLE, RANK_MISSING})

_WORTH_SAYING: Final = 0.005  # smallest share of a step in the sentence


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A trace and its replay."""

    trace: Trace
    replayed: Replayed
    unseen: Unseen | None  # why whole steps are replayed; None if operations are
    met: MeasuredArrivals | None  # arrivals and breakdown; None if not computed yet


def replay_or_steps(trace: Trace, without: Collection[Name] = ()) -> Prepared:
    """Return a replay of operations, or of whole steps if operations cannot be replayed.

    Raises
    ------
    UnanalyzableError
        Neither is possible; see `prepare_replay`.
    """
    reason, refusal = not_replayed_reason(trace.meta), None
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
    last = "" if met.arrivals is None else "which ranks arrive last at collectives and "
    # All ranks get one host, as `whole_steps` has put all times on one clock.
    alike = replace(trace.meta, hosts=dict.fromkeys(range(trace.meta.sizes.world), "one"))
    unseen = Unseen(
        verdict=f"steps cannot be replayed, {reason}",
        reason=f"Steps cannot be replayed: {reason}. This report shows {last}how steps spend time.",
        timed=False,
    )
    replayed = prepare_replay(replace(steps, meta=alike), whole_steps=True)
    dropped = tuple(sorted((*replayed.dropped, *unusable), key=attrgetter("step")))
    replayed = replace(replayed, dropped=dropped, impossible=impossible)
    return Prepared(steps, replayed, unseen, met)


def without_slowdown(report: Report) -> Report:
    """Return a report of whole steps, without the results that need a replay of operations."""
    breakdown = report.breakdown
    summary = ""
    if report.arrivals is not None:
        summary = f"{report.arrivals.words}. "
    elif breakdown is not None and breakdown.step_s > 0:
        # A damaged recording may contain only steps of no duration.
        summary = f"{_breakdown_in_words(breakdown)}. "
    return replace(
        report,
        fidelity=replace(report.fidelity, adaptations=(), late_launches=(), replayed=False),
        fb_correlation=Correlation(None, 0, 0, CorrelationSample((), ())),
        diagnosis=DiagnosisSummary((), (), 0.0, 1.0),
        recommendations=(),
        budget=None,
        computing=None,
        verdict=Verdict(f"{summary}{report.verdict.sentence}", report.verdict.level),
    )


def _breakdown_in_words(breakdown: Breakdown) -> str:
    """Return the sentence about how the recorded ranks spend a mean step."""
    ranks, step_s = breakdown.ranks, breakdown.step_s
    parts = [
        f"{words} {percent(share, 0)}"
        for words, times_s in (
            ("computing", [rank.computing_s for rank in ranks]),
            ("communicating and waiting", [rank.communication_s for rank in ranks]),
            ("loading data", [rank.data_s for rank in ranks]),
            ("idle", [rank.idle_s for rank in ranks]),
        )
        for share in [sum(times_s) / len(ranks) / step_s]
        if share >= _WORTH_SAYING
    ]
    who = name_list("rank", [str(rank.rank) for rank in ranks])
    does = "spends" if len(ranks) == 1 else "spend"
    return f"{who[:1].upper()}{who[1:]} {does} steps of {step_s:.3g} s {', '.join(parts)}"
