"""Sessions without a replay have arrivals and a breakdown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.json_text import to_json
from app.analysis.report.build import analyze
from app.analysis.report.session_verdict import verdict_of
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.metadata import not_replayed, not_replayed_reason
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from app.sessions.models.reports import open_report
from tests.factories import session

REASON = "its sends and receives fit no pipeline schedule"


def _slow(steps: int = 6) -> Trace:
    return session(SlowWorker((2, 0), 1.6), dp=4, pp=2, steps=steps).trace


def _said(trace: Trace) -> Trace:
    return replace(trace, meta=not_replayed(trace.meta, REASON))


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_what_a_decoder_says_cannot_be_replayed_has_arrivals_and_breakdown(steps: int) -> None:
    trace = _slow(steps)
    report = analyze(_said(trace)).report
    assert not report.fidelity.replayed
    assert not report.has_verdict
    assert REASON in (report.fidelity.reason or "")
    assert report.arrivals is not None
    assert report.arrivals.worst.rank == trace.rank[(trace.dp == 2) & (trace.pp == 0)][0]
    assert report.breakdown is not None
    assert len(report.breakdown.ranks) == 8
    assert report.coverage.operations == len(trace)
    assert (report.causes, report.recommendations, report.budget) == ((), (), None)
    assert report.verdict.sentence.startswith("Rank 2 comes last at 1 of 2 collectives of a step")
    assert report.verdict.level == "none"
    assert verdict_of(report, {}).headline is None
    assert open_report(to_json(report).encode()) == report


def test_arrivals_are_those_of_the_replayed_session() -> None:
    trace = _slow()
    assert analyze(_said(trace)).report.arrivals == analyze(trace).report.arrivals


def _in_a_circle(trace: Trace) -> Trace:
    """Run stage 0's backward passes first: they wait for stage 1, which waits for stage 0."""
    backward = (trace.op == trace.op_names.index("backward-compute")) & (trace.pp == 0)
    return replace(trace, start_ns=np.where(backward, trace.start_ns - 10**9, trace.start_ns))


def test_operations_that_wait_in_a_circle_leave_arrivals() -> None:
    report = analyze(_in_a_circle(_slow())).report
    assert not report.fidelity.replayed
    assert "wait for one another" in (report.fidelity.reason or "")
    assert report.arrivals is not None
    assert (report.arrivals.worst.rank, report.arrivals.straggles) == (2, True)


def test_where_no_ranks_meet_a_refusal_stays() -> None:
    with pytest.raises(UnanalyzableError) as caught:
        analyze(_in_a_circle(session(dp=1, pp=2, steps=4).trace))
    assert caught.value.stable_code == "trace.dependency_cycle"


@pytest.mark.parametrize("text", ["", "x" * 401, "two\nlines", 3, None])
def test_an_unknown_reason_is_none(text: object) -> None:
    meta = session(steps=1).trace.meta
    assert not_replayed_reason(replace(meta, extra={"not_replayed": text})) is None


def test_steps_with_durations_that_cannot_be_tell_nothing_of_arrivals() -> None:
    trace = session(SlowWorker((1, 0), 1.6), dp=3, pp=2, steps=6).trace
    step = int(trace.step[0])
    forward = (trace.op == trace.op_names.index("forward-compute")) & (trace.step == step)
    row = int(np.flatnonzero(forward & (trace.dp == 0) & (trace.order == 1))[0])
    duration = trace.duration_ns.copy()
    duration[row] = 3_600_000_000_000
    report = analyze(replace(trace, duration_ns=duration)).report
    assert [one.step for one in report.coverage.impossible_durations] == [step]
    assert report.arrivals is not None
    assert step not in report.arrivals.steps
    assert report.arrivals.worst.rank == trace.rank[(trace.dp == 1) & (trace.pp == 0)][0]
