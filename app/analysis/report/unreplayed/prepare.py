"""Reports of sessions that no replay can come from: arrivals and breakdown, and no slowdown.

Who comes last at collectives, and what steps pass with, is known of any trace that has operations
(`app.analysis.arrivals.build`). A report is made of it alone where

- a decoder says that steps cannot be replayed: it gives the metadata of its trace the reason by
  `app.analysis.trace.recordings.unreplayable.not_replayed`; operations have whatever types are
  known of them, and sends and receives need no peers;
- the replay refuses the trace because its transfers match no computations, or wait for one another
  in a circle (`FALLS_BACK`), and ranks meet in collectives;
- a pipeline stage is missing, or all ranks but one, of which the breakdown is told.

Such a report has ``fidelity.replayed`` false, no verdict, no causes and no fixes. What a report
must have of a replay is that of whole steps: each rank computes from its first start to its last
end. That tells nothing of stragglers, and nothing shows it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from app.analysis.arrivals.build import Met, arrivals_of
from app.analysis.arrivals.document import Breakdown
from app.analysis.diagnosis.verdict import Verdict
from app.analysis.replay.adaptations.evidence import Name
from app.analysis.replay.layout.graph import DEPENDENCY_CYCLE, TRANSFERS_UNMATCHED
from app.analysis.replay.repairs.absent import RANK_MISSING
from app.analysis.replay.repairs.unusable import without_unusable
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.replay.unseen import Unseen
from app.analysis.report.document import Report
from app.analysis.report.findings import DiagnosisSummary
from app.analysis.report.measures import Correlation, CorrelationSample
from app.analysis.report.unreplayed.durations import with_believed_durations
from app.analysis.report.unreplayed.whole_steps import whole_steps
from app.analysis.trace.model import Trace
from app.analysis.trace.recordings.unreplayable import reason_of
from app.analysis.wording import named, percent
from app.errors import UnanalyzableError

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
    who = named("rank", [str(one.rank) for one in ranks])
    does = "spends" if len(ranks) == 1 else "spend"
    return f"{who[:1].upper()}{who[1:]} {does} steps of {step_s:.3g} s {', '.join(parts)}"
