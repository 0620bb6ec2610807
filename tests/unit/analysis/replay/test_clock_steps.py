"""Clocks that are set while a session is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from tests.factories import session
from tests.random_jobs import random_job
from tests.support.nightly import drawn

SIZES = ((2, 1), (4, 1), (1, 3), (2, 2), (3, 4))
# Seconds by which a clock is set, forward or back.
SET_BY = (0.05, 0.5, -0.5, 3.0, -120.0, 600.0)


@cache
def slow_job(dp: int, pp: int) -> Trace:
    """Return a job with a slow worker, each rank on a separate host."""
    trace = session(SlowWorker((dp - 1, pp - 1), 1.5), dp=dp, pp=pp, steps=10, seed=3).trace
    return on_hosts(trace)


def on_hosts(trace: Trace) -> Trace:
    hosts = {int(rank): f"node-{rank}" for rank in np.unique(trace.rank)}
    meta = dataclasses.replace(trace.meta, hosts=hosts)
    return dataclasses.replace(trace, meta=meta)


@cache
def clean(dp: int, pp: int) -> Report:
    return analyze(slow_job(dp, pp)).report


def setting(trace: Trace, ranks: Sequence[int], place: int, by_s: float) -> tuple[Trace, int]:
    """Return the trace with clocks that are set between two steps, and the first step after."""
    step = int(np.unique(trace.step)[place])
    moved = np.isin(trace.rank, ranks) & (trace.step >= step)
    start = trace.start_ns + np.where(moved, int(by_s * 1e9), 0)
    return dataclasses.replace(trace, start_ns=start), step


@given(st.sampled_from(SIZES), st.integers(1, 9), st.sampled_from(SET_BY), st.data())
@drawn(40)
def test_a_clock_that_is_set_changes_no_verdict(
    sizes: tuple[int, int], place: int, by_s: float, data: st.DataObject
) -> None:
    trace = slow_job(*sizes)
    host = data.draw(st.sampled_from(sorted(set(trace.rank.tolist()))))
    trace, step = setting(trace, [host], place, by_s)
    report, before = analyze(trace).report, clean(*sizes)
    assert report.headline.slowdown == pytest.approx(before.headline.slowdown, rel=0.01)
    assert [cause.where for cause in report.causes] == [cause.where for cause in before.causes]
    assert report.fidelity.verdict is before.fidelity.verdict
    (found,) = report.clocks.settings
    assert found.step == step
    assert abs(found.by_s) == pytest.approx(abs(by_s), abs=0.002)
    # If steps are sampled with pauses, it is unknown which of two clocks was set.
    if np.prod(sizes) > 2:
        assert found.by_s * by_s > 0
        assert [report.workers.rank[dp][pp] for dp, pp in found.workers] == [host]
        assert f"node-{host} was set" in report.clocks.warnings[0]


def in_a_row(trace: Trace) -> Trace:
    """Return the trace with its steps made consecutive."""
    steps, number = np.unique(trace.step, return_inverse=True)
    begin = np.array([trace.start_ns[trace.step == step].min() for step in steps])
    ends = trace.start_ns + trace.duration_ns
    length = np.array([ends[trace.step == step].max() for step in steps]) - begin
    new = np.concatenate([[0], np.cumsum(length[:-1] + 2_000_000)])
    start = trace.start_ns - begin[number] + new[number] + 1_760_000_000 * 10**9
    return dataclasses.replace(trace, step=number.astype(np.int64), start_ns=start)


@pytest.mark.parametrize("by_s", [0.5, -0.5, 60.0, -60.0])
@pytest.mark.parametrize("sizes", [(2, 2), (4, 1)])
def test_a_step_within_which_a_clock_is_set_is_left_out(
    sizes: tuple[int, int], by_s: float
) -> None:
    trace = in_a_row(slow_job(*sizes))
    rank = int(trace.rank.max())
    mine = trace.rank == rank
    middle = np.median(trace.start_ns[mine & (trace.step == 4)])
    moved = mine & ((trace.step > 4) | ((trace.step == 4) & (trace.start_ns >= middle)))
    start = trace.start_ns + np.where(moved, int(by_s * 1e9), 0)
    report = analyze(dataclasses.replace(trace, start_ns=start)).report
    before = clean(*sizes)
    assert report.headline.slowdown == pytest.approx(before.headline.slowdown, rel=0.01)
    assert [cause.where for cause in report.causes] == [cause.where for cause in before.causes]
    assert [(one.step, one.reason) for one in report.steps.dropped] == [
        (4, "a clock was set within it")
    ]
    (found,) = report.clocks.settings
    assert (found.step, round(found.by_s, 2)) == (5, by_s)
    assert [report.workers.rank[dp][pp] for dp, pp in found.workers] == [rank]


def test_steps_of_two_windows_and_of_any_numbers_lose_no_time() -> None:
    trace = in_a_row(slow_job(2, 2))
    later = trace.step >= 5
    windows = dataclasses.replace(
        trace,
        step=trace.step + np.where(later, 100, 0),
        start_ns=trace.start_ns + np.where(later, 3600 * 10**9, 0),
    )
    sampled = dataclasses.replace(
        trace, step=trace.step * 7, start_ns=trace.start_ns + trace.step * 10**9
    )
    for session_ in (windows, sampled):
        report = analyze(session_).report
        assert report.headline.slowdown == pytest.approx(clean(2, 2).headline.slowdown, rel=0.01)
        assert report.clocks.settings == ()
        assert report.budget is not None
        assert report.budget.shares.between_steps_above < 0.01


def test_a_clock_may_be_set_several_times_and_another_in_between() -> None:
    trace = slow_job(2, 2)
    first, second = (int(rank) for rank in np.unique(trace.rank)[:2])
    steps = []
    for ranks, place, by_s in (([first], 2, 0.5), ([second], 5, -0.3), ([first], 7, 90.0)):
        trace, step = setting(trace, ranks, place, by_s)
        steps.append(step)
    report = analyze(trace).report
    assert report.headline.slowdown == pytest.approx(clean(2, 2).headline.slowdown, rel=0.01)
    found = [(one.step, round(one.by_s, 3)) for one in report.clocks.settings]
    assert found == list(zip(steps, (0.5, -0.3, 90.0), strict=True))


@pytest.mark.parametrize("hosts", [True, False], ids=["many hosts", "one host"])
def test_a_clock_of_all_ranks_that_is_set_back_costs_no_time(hosts: bool) -> None:  # noqa: FBT001
    trace = slow_job(2, 2)
    if not hosts:
        one = dict.fromkeys(trace.meta.hosts, "node-0")
        trace = dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, hosts=one))
    ranks = np.unique(trace.rank).tolist()
    back, step = setting(trace, ranks, 4, -3600.0)
    report = analyze(back).report
    assert report.headline.slowdown == pytest.approx(clean(2, 2).headline.slowdown, rel=0.01)
    (found,) = report.clocks.settings
    assert found.step == step
    assert "all ranks" in report.clocks.warnings[0]


@given(st.integers(0, 2**32 - 1), st.integers(5, 30))
@drawn(60)
def test_clocks_of_random_jobs_are_not_set(seed: int, steps: int) -> None:
    trace = on_hosts(random_job(seed, steps=steps, launch_overhead=True).trace)
    assert prepare_replay(trace).clocks.clock_steps == ()


def test_clocks_that_drift_are_not_set() -> None:
    trace = slow_job(2, 2)
    since = (trace.start_ns - trace.start_ns.min()).astype(np.float64)
    drift = (trace.rank * 20e-6 * since).astype(np.int64)
    replayed = prepare_replay(dataclasses.replace(trace, start_ns=trace.start_ns + drift))
    assert replayed.clocks.clock_steps == ()
