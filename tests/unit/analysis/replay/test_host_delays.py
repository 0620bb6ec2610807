from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.host_delays import Turns, between_steps_ns, turns_of
from app.analysis.replay.session import prepare_replay
from app.analysis.trace.model import Sizes, Trace
from tests.factories import session
from tests.unit.analysis.replay.recordings import consecutive, moved

MS = 1e6


def turns(trace: Trace) -> Turns:
    return turns_of(prepare_replay(trace))


@pytest.mark.parametrize(("dp", "pp"), [(4, 1), (1, 3), (3, 2)])
def test_what_passes_between_steps_is_that_of_the_whole_job(dp: int, pp: int) -> None:
    trace = consecutive(session(dp=dp, pp=pp, steps=8).trace, gap_ns=30 * MS)
    late = moved(trace, from_step=5, by_ns=400 * MS)

    assert np.isnan(turns(late).gap_ns[0])
    assert turns(late).usual_ns == pytest.approx(30 * MS, rel=0.05)
    assert turns(late).gap_ns[5] == pytest.approx(430 * MS, rel=0.05)


def test_a_worker_that_alone_begins_late_opens_no_gap_of_the_job() -> None:
    trace = consecutive(session(dp=4, pp=1, steps=8).trace, gap_ns=30 * MS)
    late = moved(trace, from_step=5, by_ns=400 * MS, dp=2, first_only=True)

    found = turns(late)
    by_worker_ns = found.begins_ns[1:] - found.ends_ns[:-1]
    own_ns = by_worker_ns[4, 0] - by_worker_ns[3, 0]

    assert found.gap_ns[5] < 100 * MS
    assert np.argmax(own_ns) == 2
    assert own_ns[2] == pytest.approx(400 * MS, rel=0.2)


def test_no_time_is_invented_between_windows_that_were_recorded_apart() -> None:
    trace = consecutive(session(dp=4, pp=1, steps=10).trace, gap_ns=30 * MS)
    later = trace.step - trace.step.min() >= 5
    apart = replace(
        trace,
        step=trace.step + 1000 * later,
        start_ns=trace.start_ns + later * np.int64(3_600_000_000_000),
    )

    found = turns(apart)

    assert found.known.tolist() == [False, *[True] * 4, False, *[True] * 4]
    assert np.nanmax(found.gap_ns) < 100 * MS


def test_times_that_count_from_their_step_say_nothing_about_what_is_between() -> None:
    trace = consecutive(session(dp=4, pp=1, steps=8).trace, gap_ns=30 * MS)
    begin = np.array([trace.start_ns[trace.step == step].min() for step in trace.step])
    relative = replace(trace, start_ns=trace.start_ns - begin, step_relative=True)

    assert not turns(relative).known.any()
    assert between_steps_ns(prepare_replay(relative)) == 0.0


def test_what_usually_passes_counts_without_a_pipeline_only() -> None:
    flat, deep = (consecutive(session(dp=4, pp=pp, steps=8).trace, 30 * MS) for pp in (1, 2))

    assert between_steps_ns(prepare_replay(flat)) == pytest.approx(30 * MS, rel=0.05)
    assert between_steps_ns(prepare_replay(deep)) == 0.0


def test_a_single_step_has_no_turn() -> None:
    trace = session(dp=2, pp=1, steps=3).trace
    one = trace.of_rows(np.flatnonzero(trace.step == trace.step.min()))

    assert turns(one).usual_ns == 0.0
    assert one.meta.sizes == Sizes(2, 1)
