"""Impossible durations, which profilers of devices record now and then."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.limits import MAX_TIME_NS
from app.analysis.trace.model import FORWARD_RECV, FORWARD_SEND, OPTIMIZER, Trace
from tests.factories import session
from tests.random_jobs import random_job
from tests.support.nightly import drawn

SECOND = 10**9
SECONDS = {
    "10 s": 10.0,
    "1.1 h": 3960.0,
    "53 h": 190_800.0,
    "337 days": 29_116_800.0,
    "as long as there is": MAX_TIME_NS / SECOND,
}


def slow_job() -> Trace:
    return session(SlowWorker((1, 1), 1.5), dp=2, pp=2, steps=8, microbatches=4, seed=3).trace


def taking(trace: Trace, row: int, seconds: float) -> Trace:
    """Return the trace with a changed duration of one operation."""
    duration = trace.duration_ns.copy()
    duration[row] = min(int(seconds * SECOND), MAX_TIME_NS)
    return dataclasses.replace(trace, duration_ns=duration)


@given(st.integers(0, 10**6), st.sampled_from(sorted(SECONDS)))
@drawn(25)
def test_one_impossible_duration_changes_no_verdict(place: int, how_long: str) -> None:
    trace = slow_job()
    row = place % len(trace)
    clean = analyze(trace).report
    report = analyze(taking(trace, row, SECONDS[how_long])).report
    assert report.headline.slowdown == pytest.approx(clean.headline.slowdown, rel=0.01)
    assert [cause.where for cause in report.causes] == [cause.where for cause in clean.causes]
    (found,) = report.coverage.impossible_durations
    assert (found.step, found.rank) == (trace.step[row], trace.rank[row])
    assert found.op_type == trace.op_names[trace.op[row]]
    assert found.recorded_s == pytest.approx(SECONDS[how_long])
    assert found.taken_s < 1


@given(st.integers(0, 2**32 - 1), st.integers(0, 10**6))
@example(0, 0)
@drawn(40)
def test_impossible_durations_of_random_jobs_are_found(seed: int, place: int) -> None:
    trace = random_job(seed, steps=6, launch_overhead=True).trace
    row = place % len(trace)
    replayed = prepare_replay(taking(trace, row, 190_800.0))
    named = {(one.step, one.rank, one.op_type) for one in replayed.impossible}
    assert named == {(trace.step[row], trace.rank[row], trace.op_names[trace.op[row]])}


@given(st.integers(0, 2**32 - 1), st.sampled_from(["interleaved", "overlap", "launch_overhead"]))
@drawn(40)
def test_random_jobs_have_no_impossible_durations(seed: int, kind: str) -> None:
    trace = random_job(seed, steps=5, **{kind: True}).trace
    assert prepare_replay(trace).impossible == ()


def test_several_impossible_durations_are_counted_and_named() -> None:
    trace = slow_job()
    rows = np.flatnonzero(trace.op == trace.op_names.index(FORWARD_RECV))[3:40:7]
    for row in rows.tolist():
        trace = taking(trace, row, 53 * 3600.0)
    found = analyze(trace).report.coverage.impossible_durations
    assert sorted((one.step, one.rank) for one in found) == sorted(
        zip(trace.step[rows].tolist(), trace.rank[rows].tolist(), strict=True)
    )


def test_a_long_pause_that_all_wait_for_is_possible() -> None:
    """A send that takes a minute delays all that follows: nothing began before its end."""
    trace = slow_job()
    step, rank = 4, int(trace.rank.max())
    held = (trace.step == step) & (trace.op == trace.op_names.index(OPTIMIZER))
    later = trace.step > step
    start, duration = trace.start_ns.copy(), trace.duration_ns.copy()
    duration[held & (trace.rank == rank)] += 60 * SECOND
    start[later] += 60 * SECOND
    paused = dataclasses.replace(trace, start_ns=start, duration_ns=duration)
    assert prepare_replay(paused).impossible == ()


def test_steps_that_count_from_their_begin_tell_by_what_ends_together() -> None:
    trace = slow_job()
    begin = np.full(int(trace.step.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begin, trace.step, trace.start_ns)
    relative = dataclasses.replace(
        trace, start_ns=trace.start_ns - begin[trace.step], step_relative=True
    )
    row = int(np.flatnonzero(trace.op == trace.op_names.index(FORWARD_SEND))[5])
    (found,) = prepare_replay(taking(relative, row, 53 * 3600.0)).impossible
    assert (found.op_type, found.step) == (FORWARD_SEND, trace.step[row])
