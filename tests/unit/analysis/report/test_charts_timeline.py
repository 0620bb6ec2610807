from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.report.charts import perfetto, step_timeline
from app.analysis.synthesis.injections.computations import SlowWorker
from app.errors import NotFoundError
from tests.factories import session

TRACE = session(SlowWorker((1, 0), 2.0)).trace
STEP = int(np.unique(TRACE.step)[3])


def test_recorded_lanes_are_the_recording() -> None:
    timeline = step_timeline(TRACE, STEP)
    rows = TRACE.step == STEP
    assert len(timeline.recorded.op) == rows.sum()
    started = np.sort(TRACE.start_ns[rows] - TRACE.start_ns[rows].min())
    assert np.sort(timeline.recorded.start_ns) == pytest.approx(started)
    ends = TRACE.start_ns[rows] + TRACE.duration_ns[rows]
    assert timeline.recorded_s == pytest.approx((ends.max() - TRACE.start_ns[rows].min()) / 1e9)


def test_the_ideal_lane_ends_at_the_ideal_step_time() -> None:
    timeline = step_timeline(TRACE, STEP)
    report = analyze(TRACE).report
    assert timeline.ideal_s == pytest.approx(report.step_times.ideal[0])
    assert timeline.ideal.end_ns.max() / 1e9 == pytest.approx(timeline.ideal_s)
    assert set(timeline.ideal.dp) == {0}
    assert (timeline.ideal.begin_ns >= timeline.ideal.start_ns - 1).all()


def test_operations_begin_after_their_launch_and_end_after_they_begin() -> None:
    lanes = step_timeline(TRACE, STEP).recorded
    assert (lanes.begin_ns >= lanes.start_ns).all()
    assert (lanes.end_ns >= lanes.begin_ns).all()


def test_the_slow_worker_glows() -> None:
    lanes = step_timeline(TRACE, STEP).recorded
    forward = lanes.op == 0
    slow = (lanes.dp == 1) & (lanes.pp == 0)
    assert lanes.ratio[forward & slow].mean() > 1.5
    assert lanes.ratio[forward & ~slow].mean() < 1.0


def test_only_the_chosen_dp_ranks_are_returned() -> None:
    assert set(step_timeline(TRACE, STEP, [2, 0]).recorded.dp) == {0, 2}


def test_unknown_steps_and_dp_ranks_are_refused() -> None:
    with pytest.raises(NotFoundError) as caught:
        step_timeline(TRACE, 10**9)
    assert caught.value.stable_code == "step_not_analyzed"
    with pytest.raises(NotFoundError) as caught:
        step_timeline(TRACE, STEP, [3])
    assert caught.value.stable_code == "dp_rank_unknown"


def test_a_step_comes_a_dp_rank_at_a_time() -> None:
    *pieces, _ = perfetto(step_timeline(TRACE, STEP), {})
    texts = [piece.removeprefix('{"traceEvents":[').removeprefix(",") for piece in pieces]
    ranks = [{event["pid"] for event in json.loads(f"[{text}]")} for text in texts]
    assert ranks == [{0}, {1}, {2}, {1_000_000}]


def test_of_some_dp_ranks_nothing_else_is_built() -> None:
    whole, some = step_timeline(TRACE, STEP), step_timeline(TRACE, STEP, [2])
    assert some.launch_ns.shape == (len(some.nodes), 1)
    assert some.recorded_s == whole.recorded_s
    for name in ("op", "mb", "start_ns", "begin_ns", "end_ns", "ratio"):
        of_rank = getattr(whole.recorded, name)[whole.recorded.dp == 2]
        np.testing.assert_array_equal(getattr(some.recorded, name), of_rank)


def test_perfetto_events_are_json_in_microseconds() -> None:
    timeline = step_timeline(TRACE, STEP)
    document = json.loads("".join(perfetto(timeline, {(0, 0): "node-7"})))
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(timeline.recorded.op) + len(timeline.ideal.op)
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(timeline.recorded_s * 1e6, rel=1e-6)
    names = {
        event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"
    }
    assert "stage 0 compute, node-7" in names
    # Operations of one thread must not overlap, or Perfetto would nest them.
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        spans = by_thread.setdefault((event["pid"], event["tid"]), [])
        spans.append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_thread.values():
        spans.sort()
        for (_, end), (begin, _) in pairwise(spans):
            assert begin >= end - 0.01
