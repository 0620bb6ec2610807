"""Steps with impossible times are left out with a reason; the others are judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.replay.impossible_times import without_unusable
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from tests.factories import session
from tests.random_jobs import random_job
from tests.support.nightly import drawn

NS_A_DAY = 86_400 * 10**9


def slow_job(clock_ns: int = 20_000 * NS_A_DAY) -> Trace:
    trace = session(SlowWorker((1, 1), 1.5), dp=2, pp=2, steps=9, microbatches=4, seed=3).trace
    since = trace.start_ns - trace.start_ns.min()
    return dataclasses.replace(trace, start_ns=since + clock_ns, step_relative=False)


@given(
    st.integers(0, 10**6),
    st.sampled_from([("start_ns", 0), ("start_ns", -1), ("duration_ns", -5)]),
    st.sampled_from([20_000 * NS_A_DAY, NS_A_DAY // 24]),
)
@drawn(30)
def test_one_broken_time_costs_its_step(place: int, broken: tuple[str, int], clock_ns: int) -> None:
    trace = slow_job(clock_ns)
    clean = analyze(trace).report
    row = place % len(trace)
    column, value = broken
    values = getattr(trace, column).copy()
    values[row] = value
    report = analyze(dataclasses.replace(trace, **{column: values})).report
    (dropped,) = report.steps.dropped
    assert dropped.step == trace.step[row]
    assert f"rank {trace.rank[row]} has a {trace.op_names[trace.op[row]]}" in dropped.reason
    assert report.headline.slowdown == pytest.approx(clean.headline.slowdown, rel=0.01)
    assert [cause.where for cause in report.causes] == [cause.where for cause in clean.causes]


@given(st.integers(0, 2**32 - 1))
@drawn(30)
def test_random_jobs_on_any_clock_have_all_steps(seed: int) -> None:
    trace = random_job(seed, steps=5, launch_overhead=True).trace
    since = trace.start_ns - trace.start_ns.min()
    for clock_ns in (0, 1, 20_000 * NS_A_DAY, -NS_A_DAY):
        whole = dataclasses.replace(trace, start_ns=since + clock_ns, step_relative=False)
        assert without_unusable(whole)[0] is whole


def test_a_session_without_a_usable_step_is_refused_with_the_reasons() -> None:
    trace = slow_job()
    broken = dataclasses.replace(trace, duration_ns=np.full_like(trace.duration_ns, -1))
    with pytest.raises(UnanalyzableError) as caught:
        prepare_replay(broken)
    assert caught.value.stable_code == "trace.no_complete_step"
    assert "negative duration" in caught.value.faults[0].message
