from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.trace.model import BETWEEN_STEPS, CHECKPOINT, DATA_LOADING
from tests.factories import session
from tests.unit.analysis.replay.recordings import consecutive, host_operation

MS = 1_000_000
TRACE = consecutive(session(dp=4, pp=1, steps=8).trace, gap_ns=200 * MS)


@pytest.mark.parametrize("name", BETWEEN_STEPS)
def test_what_is_done_between_steps_is_no_part_of_the_step_that_it_opens(name: str) -> None:
    step = int(TRACE.step.max())
    begin = int(TRACE.start_ns[TRACE.step == step].min())
    opened = host_operation(
        TRACE, name, step=step, dp=1, start_ns=begin - 150 * MS, duration_ns=150 * MS
    )

    plain, with_it = prepare_replay(TRACE), prepare_replay(opened)

    assert np.array_equal(plain.layout.start_ns, with_it.layout.start_ns)
    assert np.array_equal(plain.layout.begin_ns, with_it.layout.begin_ns)
    assert len(plain.host_operations) == 0
    assert len(with_it.host_operations) == len(with_it.host_operations.of(name)) == 1
    assert with_it.host_operations.dp.tolist() == [1]


def test_a_report_counts_them_among_the_known_operations() -> None:
    step = int(TRACE.step.max())
    end = int((TRACE.start_ns + TRACE.duration_ns)[TRACE.step == step].max())
    closed = host_operation(TRACE, CHECKPOINT, step=step, dp=0, start_ns=end, duration_ns=900 * MS)

    report = analyze(closed).report

    assert report.coverage.unknown_op_types == {}
    assert report.coverage.operations == report.coverage.operations_replayed + 1
    assert report.step_times == analyze(TRACE).report.step_times


def test_times_that_count_from_their_step_place_nothing_between_steps() -> None:
    step = int(TRACE.step.max())
    begin = int(TRACE.start_ns[TRACE.step == step].min())
    opened = host_operation(
        TRACE, DATA_LOADING, step=step, dp=1, start_ns=begin - 150 * MS, duration_ns=150 * MS
    )
    first = np.array([opened.start_ns[opened.step == number].min() for number in opened.step])
    relative = replace(opened, start_ns=opened.start_ns - first, step_relative=True)

    assert len(prepare_replay(relative).host_operations) == 0


def test_where_a_clock_was_set_they_are_where_they_were() -> None:
    steps = np.unique(TRACE.step)
    begin = int(TRACE.start_ns[TRACE.step == steps[6]].min())
    opened = host_operation(
        TRACE, DATA_LOADING, step=int(steps[6]), dp=1, start_ns=begin - 150 * MS, duration_ns=MS
    )
    clean = prepare_replay(opened).host_operations
    hosts = {int(rank): f"node-{rank}" for rank in np.unique(TRACE.rank)}
    opened = replace(opened, meta=replace(opened.meta, hosts=hosts))
    later = (opened.dp == 1) & (opened.step >= steps[4])
    set_later = replace(opened, start_ns=opened.start_ns + np.where(later, 500 * MS, 0))
    replayed = prepare_replay(set_later)

    assert [one.step for one in replayed.clocks.clock_steps] == [steps[4]]
    assert replayed.host_operations.start_ns == pytest.approx(clean.start_ns, abs=5 * MS)
