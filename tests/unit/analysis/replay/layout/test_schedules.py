"""Replayed times of every schedule, compared with jobs executed event by event."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.analysis.replay.session import prepare_replay
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from tests.factories import joined, select
from tests.schedules import END_OF_STEP, EVERYTHING, DeadlockError, Job, executed
from tests.support.nightly import drawn

OPTIONAL = sorted(EVERYTHING)
TRANSFERS = [(d, w) for d in ("forward", "backward") for w in ("send", "recv")]


def replayed_times(trace: Trace) -> list[float]:
    replayed = prepare_replay(trace)
    times = replayed.over_steps(
        lambda group: group.simulator.step_times([group.simulator.keep()])[0]
    )
    return [float(time) for time in times]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    schedule = draw(
        st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble", "v", "two-way"])
    )
    interleaved, turning = schedule == "interleaved", schedule in {"v", "two-way"}
    pp = draw(st.integers(2 if interleaved or turning else 1, 4))
    vpp = draw(st.sampled_from([2, 4])) if interleaved else 2 if turning else 1
    turns = draw(st.integers(1, 3))
    stages = [(stage, chunk) for chunk in range(vpp) for stage in range(pp)]
    missing = draw(st.sets(st.sampled_from(stages), max_size=2)) if interleaved else set()
    assume(all(any((s, c) not in missing for c in range(vpp)) for s in range(pp)))
    return Job(
        schedule=schedule,
        dp=draw(st.integers(1, 3)),
        pp=pp,
        vpp=vpp,
        cp=draw(st.integers(1, 2)),
        microbatches=pp * turns if interleaved else draw(st.integers(2 if turning else 1, 8)),
        overlapped=draw(st.booleans()),
        buckets=draw(st.integers(1, 3)),
        types=frozenset(draw(st.sets(st.sampled_from(OPTIONAL)))),
        missing_chunks=frozenset(missing),
        # Transfers that are recorded for every computation do not show the placement of chunks.
        edge_transfers=not turning and draw(st.booleans()),
    )


@pytest.mark.slow
@drawn(200)
@given(jobs(), st.integers(0, 1 << 30))
def test_replayed_times_equal_the_executed_ones(job: Job, seed: int) -> None:
    try:
        trace, times = executed(job, seed=seed)
    except DeadlockError:
        assume(False)  # noqa: FBT003 - hypothesis' own interface
    assert replayed_times(trace) == times


@pytest.mark.parametrize(
    "job",
    [
        Job("gpipe", pp=4, microbatches=6),
        Job("1f1b", dp=3, pp=4, microbatches=8),
        Job("interleaved", pp=4, vpp=2, microbatches=8),
        Job("interleaved", pp=2, vpp=4, microbatches=6, overlapped=True, buckets=2),
        Job("interleaved", pp=4, vpp=2, microbatches=8, missing_chunks=frozenset({(3, 1)})),
        Job("zero-bubble", pp=4, microbatches=8, overlapped=True),
        Job("1f1b", pp=1, microbatches=4),
        Job("1f1b", dp=1, pp=4, microbatches=4, cp=4),
        Job("1f1b", pp=3, types=frozenset(END_OF_STEP)),
        Job("1f1b", pp=3, types=frozenset()),
        Job("1f1b", pp=2, edge_transfers=True),
        Job("v", pp=4, vpp=2, microbatches=6),
        Job("v", pp=3, vpp=2, types=frozenset()),
        Job("two-way", pp=4, vpp=2, microbatches=6),
        Job("two-way", pp=2, vpp=2, overlapped=True),
    ],
    ids=lambda job: f"{job.schedule}-dp{job.dp}-pp{job.pp}-vpp{job.vpp}",
)
def test_every_schedule_replays_to_the_nanosecond(job: Job) -> None:
    trace, times = executed(job, steps=4, seed=7)
    assert replayed_times(trace) == times


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_with_one_chunk_a_stage_order_tells_the_microbatch(schedule: str) -> None:
    trace, times = executed(Job(schedule, pp=3, microbatches=6), seed=3)
    unnamed = np.full(len(trace), -1, dtype=np.int32)
    assert replayed_times(dataclasses.replace(trace, mb=unnamed, mc=unnamed)) == times


def test_transfers_need_not_name_microbatch_and_chunk() -> None:
    trace, times = executed(Job("interleaved", pp=4, vpp=2, microbatches=8), seed=5)
    transfers = np.isin(trace.op, [trace.op_names.index(f"{d}-{w}") for d, w in TRANSFERS])
    for name in ("mb", "mc"):
        getattr(trace, name)[transfers] = -1
    assert replayed_times(trace) == times


def test_virtual_stages_without_recorded_chunks_are_refused_in_words() -> None:
    trace, _ = executed(Job("interleaved", pp=2, vpp=2, microbatches=4))
    trace.mc[trace.op == 0] = -1
    with pytest.raises(UnanalyzableError, match="model chunk") as caught:
        prepare_replay(trace)
    assert caught.value.stable_code == "trace.missing_model_chunk"
    row = caught.value.faults[0].row
    assert row is not None
    assert (trace.op[row], trace.mc[row]) == (0, -1)


def test_expert_parallel_operations_change_nothing() -> None:
    trace, times = executed(Job(dp=4, pp=2, microbatches=4), seed=2)
    computing = np.flatnonzero(trace.op == 0)
    experts = dataclasses.replace(
        select(trace, computing), op=np.full(len(computing), len(trace.op_names), dtype=np.int16)
    )
    both = joined(trace, experts, op_names=(*trace.op_names, "moe-all-to-all"))
    assert replayed_times(both) == times
    assert replayed_times(select(both, np.random.default_rng(0).permutation(len(both)))) == times
