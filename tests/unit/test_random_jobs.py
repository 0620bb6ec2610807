"""Properties of every executed job, derived from its trace alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    EMBEDDING_ALL_REDUCE,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GC,
    GRADS_REDUCE_SCATTER,
    LAYERNORM_ALL_REDUCE,
    OPTIMIZER,
    OPTIMIZER_CLIP,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
    Trace,
)
from tests.random_jobs import random_job
from tests.support.nightly import drawn
from tests.unit.analysis.synthesis.jobs import cells, rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.synthesis.synthesize import SyntheticSession

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

STREAMS = (
    (FORWARD_COMPUTE, BACKWARD_COMPUTE),
    (PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_ALL_REDUCE),
    (FORWARD_SEND,),
    (FORWARD_RECV,),
    (BACKWARD_SEND,),
    (BACKWARD_RECV,),
)

PAIRS = ((FORWARD_SEND, FORWARD_RECV, 1), (BACKWARD_SEND, BACKWARD_RECV, -1))

sessions = st.builds(
    random_job,
    st.integers(0, 2**32 - 1),
    launch_overhead=st.booleans(),
    interleaved=st.booleans(),
    overlap=st.booleans(),
)

prompt_sessions = st.builds(
    random_job,
    st.integers(0, 2**32 - 1),
    interleaved=st.booleans(),
    overlap=st.booleans(),
)


def ends(trace: Trace) -> NDArray[np.int64]:
    return trace.start_ns + trace.duration_ns


@given(sessions)
@drawn(40)
def test_operations_of_one_stream_follow_each_other(session: SyntheticSession) -> None:
    trace = session.trace
    for dp, pp, step in cells(trace):
        for stream in STREAMS:
            mask = rows(trace, *stream, dp=dp, pp=pp, step=step)
            start, end = trace.start_ns[mask], ends(trace)[mask]
            by_start = np.lexsort((end, start))
            assert (end[by_start][:-1] <= start[by_start][1:]).all()


@given(sessions)
@drawn(40)
def test_members_of_a_collective_end_after_all_were_launched(session: SyntheticSession) -> None:
    trace, sizes = session.trace, session.job.sizes
    for step in sorted(set(trace.step.tolist())):
        for op in (PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_ALL_REDUCE):
            for pp in range(sizes.pp):
                mask = rows(trace, op, pp=pp, step=step)
                start = trace.start_ns[mask].reshape(sizes.dp, -1)
                end = ends(trace)[mask].reshape(sizes.dp, -1)
                assert (end.min(axis=0) >= start.max(axis=0)).all()
        mask = rows(trace, OPTIMIZER_CLIP, step=step)
        if mask.any():
            assert mask.sum() == sizes.workers
            assert ends(trace)[mask].min() >= trace.start_ns[mask].max()
        for dp in range(sizes.dp):
            mask = rows(trace, EMBEDDING_ALL_REDUCE, dp=dp, step=step)
            assert mask.sum() in (0, 2)
            assert set(trace.pp[mask].tolist()) <= {0, sizes.pp - 1}
            if mask.any():
                assert ends(trace)[mask].min() >= trace.start_ns[mask].max()


@given(sessions)
@drawn(40)
def test_the_nth_send_and_receive_of_neighbors_move_data_together(
    session: SyntheticSession,
) -> None:
    trace, sizes = session.trace, session.job.sizes
    vpp = sizes.vpp
    for dp, pp, step in cells(trace):
        for send, recv, hop in (
            (FORWARD_SEND, FORWARD_RECV, 1),
            (BACKWARD_SEND, BACKWARD_RECV, -1),
        ):
            sent = rows(trace, send, dp=dp, pp=pp, step=step)
            received = rows(trace, recv, dp=dp, pp=(pp + hop) % sizes.pp, step=step)
            at_end = pp == (sizes.pp - 1 if hop > 0 else 0)
            expected = session.job.microbatches * (vpp - 1 if at_end else vpp)
            assert sent.sum() == received.sum() == expected
            launched = np.maximum(trace.start_ns[sent], trace.start_ns[received])
            assert (ends(trace)[sent] >= launched).all()
            assert (ends(trace)[received] >= launched).all()


@given(sessions)
@drawn(40)
def test_data_flows_forward_through_the_stages_and_back(session: SyntheticSession) -> None:
    trace, job = session.trace, session.job
    for step in sorted(set(trace.step.tolist())):
        for dp in range(job.sizes.dp):
            start, end = {}, {}
            for direction, op in enumerate((FORWARD_COMPUTE, BACKWARD_COMPUTE)):
                for row in np.flatnonzero(rows(trace, op, dp=dp, step=step)):
                    virtual = int(trace.mc[row]) * job.sizes.pp + int(trace.pp[row])
                    start[direction, virtual, int(trace.mb[row])] = trace.start_ns[row]
                    end[direction, virtual, int(trace.mb[row])] = ends(trace)[row]
            last = job.sizes.pp * job.sizes.vpp - 1
            for mb in range(job.microbatches):
                for virtual in range(last):
                    assert end[0, virtual, mb] <= start[0, virtual + 1, mb]
                    assert end[1, virtual + 1, mb] <= start[1, virtual, mb]
                assert end[0, last, mb] <= start[1, last, mb]


@given(sessions)
@drawn(40)
def test_the_end_of_a_step_is_a_chain_on_every_stage(session: SyntheticSession) -> None:
    trace = session.trace
    chain = [GC, LAYERNORM_ALL_REDUCE, EMBEDDING_ALL_REDUCE, SEPARATE_ALL_REDUCE]
    overlapped = rows(trace, SEPARATE_ALL_REDUCE).any() and rows(trace, GRADS_REDUCE_SCATTER).any()
    if not overlapped:
        chain.append(GRADS_REDUCE_SCATTER)
    chain += [OPTIMIZER_CLIP, OPTIMIZER]
    for dp, pp, step in cells(trace):
        computed = rows(trace, FORWARD_COMPUTE, BACKWARD_COMPUTE, dp=dp, pp=pp, step=step)
        latest = ends(trace)[computed].max()
        for op in chain:
            mask = rows(trace, op, dp=dp, pp=pp, step=step)
            if mask.any():
                assert trace.start_ns[mask].min() >= latest
                latest = ends(trace)[mask].max()


@given(prompt_sessions)
@drawn(40)
def test_without_overhead_everything_starts_when_something_of_its_worker_ends(
    session: SyntheticSession,
) -> None:
    trace = session.trace
    for dp, pp, step in cells(trace):
        own = rows(trace, dp=dp, pp=pp, step=step)
        begin = trace.start_ns[rows(trace, step=step)].min()
        assert np.isin(trace.start_ns[own], np.append(ends(trace)[own], begin)).all()


@example(random_job(9420))
@given(sessions)
@drawn(40)
def test_true_step_times_are_those_of_the_trace(session: SyntheticSession) -> None:
    trace = session.trace
    steps = sorted(set(trace.step.tolist()))
    recorded = [
        (ends(trace)[mask].max() - trace.start_ns[mask].min()) / 1e9
        for mask in (rows(trace, step=step) for step in steps)
    ]

    assert recorded == list(session.truth.step_times_s)
    # Injections add work only, with two exceptions: sequence lengths are spread around their mean,
    # and delayed work may compete with fewer transfers.
    if "sequence_length_imbalance" not in session.truth.causes:
        assert session.truth.slowdown >= 1 - session.job.costs.contention


def test_random_jobs_cover_what_a_replay_has_to_cope_with() -> None:
    jobs = [random_job(seed).job for seed in range(60)]

    assert {job.sizes.dp for job in jobs} == {1, 2, 3, 4}
    assert {job.sizes.pp for job in jobs} == {1, 2, 3, 4}
    assert {job.microbatches for job in jobs} == set(range(1, 9))
    assert {job.schedule.value for job in jobs} == {"gpipe", "1f1b"}
    assert any(not job.op_types & {OPTIMIZER_CLIP, GRADS_REDUCE_SCATTER} for job in jobs)
    assert len({job.op_types for job in jobs}) > 10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_seeds_give_equal_jobs_and_others_do_not(seed: int) -> None:
    one, same, other = random_job(seed), random_job(seed), random_job(seed + 100)

    assert one.job == same.job
    assert one.truth == same.truth
    assert (one.trace.start_ns == same.trace.start_ns).all()
    assert (one.trace.duration_ns == same.trace.duration_ns).all()
    assert one.truth != other.truth
