"""Impossible durations do not affect the report of a session without a replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.report.unreplayed import with_believed_durations
from app.analysis.trace.metadata import not_replayed
from app.analysis.trace.model import BACKWARD_COMPUTE, BACKWARD_RECV, OPTIMIZER, Trace
from tests.factories import session

HOUR_NS = 3600 * 10**9


def _said(*, ranks: int = 8) -> Trace:
    trace = session(dp=4, pp=2, steps=6, microbatches=4).trace
    if ranks < 8:
        trace = trace.of_rows(np.flatnonzero(trace.rank < ranks))
    return replace(trace, meta=not_replayed(trace.meta, "its schedule is unknown"))


def _taking(trace: Trace, row: int, duration_ns: int) -> Trace:
    durations = trace.duration_ns.copy()
    durations[row] = duration_ns
    return replace(trace, duration_ns=durations)


@pytest.mark.parametrize("name", [BACKWARD_COMPUTE, BACKWARD_RECV, OPTIMIZER])
@pytest.mark.parametrize("at", [1, -1])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_kernel_of_an_hour_changes_neither_breakdown_nor_who_comes_last(
    name: str, at: int, ranks: int
) -> None:
    trace = _said(ranks=ranks)
    step = int(np.unique(trace.step)[at])
    op = trace.op_names.index(name)
    rows = np.flatnonzero((trace.op == op) & (trace.step == step))
    row = int(rows[0])
    usual, report = analyze(trace).report, analyze(_taking(trace, row, HOUR_NS)).report
    (odd,) = report.coverage.impossible_durations
    assert (odd.step, odd.rank, odd.op_type) == (step, int(trace.rank[row]), name)
    assert odd.recorded_s == 3600.0
    assert report.breakdown is not None
    assert usual.breakdown is not None
    assert report.breakdown.step_s == pytest.approx(usual.breakdown.step_s, rel=0.02)
    for now, before in zip(report.breakdown.ranks, usual.breakdown.ranks, strict=True):
        assert now.computing_s == pytest.approx(before.computing_s, rel=0.02)
    if ranks == 8:
        assert report.arrivals is not None
        assert usual.arrivals is not None
        assert report.arrivals.worst.rank == usual.arrivals.worst.rank


def test_durations_that_can_be_stay_as_they_are() -> None:
    trace = _said()
    assert with_believed_durations(trace) == (trace, ())
    assert with_believed_durations(trace)[0] is trace
    # The rank's later steps begin after this long operation, so its duration is possible.
    row = int(np.flatnonzero(trace.op == trace.op_names.index(OPTIMIZER))[0])
    later = (trace.step > trace.step[row]) & (trace.rank == trace.rank[row])
    slow = replace(trace, start_ns=trace.start_ns + np.where(later, HOUR_NS, 0))
    assert with_believed_durations(_taking(slow, row, HOUR_NS))[1] == ()


def test_a_step_that_cannot_be_used_is_named_where_nothing_is_replayed() -> None:
    trace = _said()
    step = int(np.unique(trace.step)[2])
    row = int(np.flatnonzero(trace.step == step)[0])
    report = analyze(_taking(trace, row, -5)).report
    assert [one.step for one in report.steps.dropped] == [step]
    assert report.breakdown is not None
