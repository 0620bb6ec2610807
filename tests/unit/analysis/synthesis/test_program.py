from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.program import stage_order
from app.analysis.trace.model import Sizes


def written(job: JobModel, stage: int) -> str:
    return " ".join(
        f"{'F' if c.forward else 'B'}{c.microbatch}" + (f".{c.chunk}" if job.sizes.vpp > 1 else "")
        for c in stage_order(job, stage)
    )


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"),
        (1, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"),
    ],
)
def test_1f1b_warms_up_by_the_distance_to_the_last_stage(stage: int, order: str) -> None:
    job = JobModel(sizes=Sizes(dp=1, pp=4), microbatches=5, steps=1)

    assert written(job, stage) == order


def test_1f1b_with_fewer_microbatches_than_stages_has_no_steady_phase_on_the_first() -> None:
    job = JobModel(sizes=Sizes(dp=1, pp=4), microbatches=2, steps=1)

    assert written(job, 0) == "F0 F1 B0 B1"
    assert written(job, 2) == "F0 F1 B0 B1"
    assert written(job, 3) == "F0 B0 F1 B1"


def test_gpipe_does_every_forward_first() -> None:
    job = JobModel(sizes=Sizes(dp=1, pp=2), microbatches=3, steps=1, schedule=Schedule.GPIPE)

    assert written(job, 0) == written(job, 1) == "F0 F1 F2 B0 B1 B2"


def test_interleaved_takes_microbatches_through_the_chunks_in_groups() -> None:
    job = JobModel(
        sizes=Sizes(dp=1, pp=2, vpp=2),
        microbatches=4,
        steps=1,
        schedule=Schedule.INTERLEAVED,
    )

    assert written(job, 1) == (
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    )
    assert written(job, 0).startswith("F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1")


@settings(deadline=None)
@given(pp=st.integers(1, 6), microbatches=st.integers(1, 12), data=st.data())
def test_1f1b_holds_no_more_microbatches_in_flight_than_stages_to_come(
    pp: int, microbatches: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, pp - 1))
    job = JobModel(sizes=Sizes(dp=1, pp=pp), microbatches=microbatches, steps=1)
    order = stage_order(job, stage)

    in_flight = most = 0
    for computation in order:
        in_flight += 1 if computation.forward else -1
        most = max(most, in_flight)
    assert in_flight == 0
    assert most == min(microbatches, pp - stage)


@settings(deadline=None)
@given(pp=st.integers(2, 5), vpp=st.integers(2, 4), groups=st.integers(1, 4), data=st.data())
def test_interleaved_does_each_chunk_of_each_microbatch_once_and_forward_first(
    pp: int, vpp: int, groups: int, data: st.DataObject
) -> None:
    job = JobModel(
        sizes=Sizes(dp=1, pp=pp, vpp=vpp),
        microbatches=pp * groups,
        steps=1,
        schedule=Schedule.INTERLEAVED,
    )
    order = stage_order(job, data.draw(st.integers(0, pp - 1)))

    position = {(c.forward, c.microbatch, c.chunk): i for i, c in enumerate(order)}
    assert len(position) == len(order) == 2 * job.microbatches * vpp
    assert all(
        position[True, mb, chunk] < position[False, mb, chunk]
        for mb in range(job.microbatches)
        for chunk in range(vpp)
    )
