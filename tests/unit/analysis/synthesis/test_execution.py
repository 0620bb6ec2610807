from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.synthesis.execution import ScheduleDeadlockError, StepWork, execute
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.program import JobProgram, TransferGroup
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from tests.unit.analysis.synthesis.jobs import EXACT


@settings(deadline=None)
@given(
    pp=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    schedule=st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]),
)
def test_a_balanced_pipeline_takes_one_slot_for_each_microbatch_and_later_stage(
    pp: int, microbatches: int, schedule: Schedule
) -> None:
    job = JobModel(
        sizes=Sizes(dp=2, pp=pp),
        microbatches=microbatches,
        steps=1,
        schedule=schedule,
        costs=EXACT,
    )

    (step_time_s,) = synthesize(job, seed=0).truth.step_times_s
    assert step_time_s == pytest.approx((microbatches + pp - 1) * 0.030)


@settings(deadline=None)
@given(pp=st.integers(2, 4), vpp=st.integers(2, 3), groups=st.integers(1, 3))
def test_virtual_stages_shrink_the_bubble_by_their_number(pp: int, vpp: int, groups: int) -> None:
    job = JobModel(
        sizes=Sizes(dp=1, pp=pp, vpp=vpp),
        microbatches=pp * groups,
        steps=1,
        schedule=Schedule.INTERLEAVED,
        costs=EXACT,
    )

    (step_time_s,) = synthesize(job, seed=0).truth.step_times_s
    assert step_time_s == pytest.approx((pp * groups + (pp - 1) / vpp) * 0.030)


def test_the_parts_of_a_step_add_up_where_nothing_overlaps() -> None:
    costs = replace(
        EXACT,
        params_ns=1e6,
        grads_ns=2e6,
        layernorm_ns=3e6,
        embedding_ns=4e6,
        clip_ns=5e6,
        optimizer_ns=6e6,
        p2p_ns=7e6,
    )
    job = JobModel(sizes=Sizes(dp=2, pp=2), microbatches=1, steps=1, costs=costs)

    # Parameters, F, send, F, B, send, B, then the end of the step with the embeddings of both
    # stages.
    milliseconds = 1 + 10 + 7 + 10 + 20 + 7 + 20 + 3 + 4 + 2 + 5 + 6
    (step_time_s,) = synthesize(job, seed=0).truth.step_times_s
    assert step_time_s == pytest.approx(milliseconds / 1e3)


def two_operations(
    after: tuple[tuple[int, ...], ...], groups: tuple[TransferGroup, ...]
) -> StepWork:
    program = JobProgram(
        op=np.zeros(2, np.int16),
        stage=np.zeros(2, np.int32),
        microbatch=np.zeros(2, np.int32),
        chunk=np.zeros(2, np.int32),
        after=after,
        groups=groups,
        first=(),
    )
    duration = np.array([[[5.0, 7.0]], [[1.0, 2.0]]])
    delay = np.array([[[0.0, 3.0]], [[10.0, 0.0]]])
    late, rank = np.zeros_like(duration), np.zeros(duration.shape, np.int16)
    return StepWork(program, duration, delay, late, rank)


def test_an_operation_starts_its_delay_after_the_end_of_what_it_waits_for() -> None:
    alone = (TransferGroup((0,), across_dp=False), TransferGroup((1,), across_dp=False))
    execution = execute(two_operations(((), (0,)), alone))

    assert execution.start_ns.tolist() == [[[0, 3]], [[15, 10]]]
    assert execution.end_ns.tolist() == [[[5, 10]], [[16, 12]]]
    assert execution.step_times_ns().tolist() == [16]


def test_a_group_moves_data_when_its_last_member_is_launched() -> None:
    execution = execute(two_operations(((), ()), (TransferGroup((0, 1), across_dp=False),)))

    assert execution.start_ns.tolist() == [[[0, 3]], [[10, 0]]]
    assert execution.end_ns.tolist() == [[[15, 10]], [[11, 5]]]


def test_a_group_across_dp_ranks_waits_for_all_of_them() -> None:
    execution = execute(two_operations(((), ()), (TransferGroup((0, 1), across_dp=True),)))

    assert execution.end_ns.tolist() == [[[15, 17]], [[11, 12]]]


def test_operations_that_wait_for_each_other_are_a_deadlock() -> None:
    alone = (TransferGroup((0,), across_dp=False), TransferGroup((1,), across_dp=False))
    with pytest.raises(ScheduleDeadlockError, match="2 of 2 operations"):
        execute(two_operations(((1,), (0,)), alone))
    # A member of a group waits for another member of the same group.
    with pytest.raises(ScheduleDeadlockError):
        execute(two_operations(((), (0,)), (TransferGroup((0, 1), across_dp=False),)))
