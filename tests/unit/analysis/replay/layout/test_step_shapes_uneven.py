"""DP ranks with different numbers of microbatches: each is replayed with its own number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.layout.step_shapes import numbered
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.trace.model import ABSENT, Trace
from app.errors import UnanalyzableError
from tests.schedules import Job, executed

STEPS = 6
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")


def drawn(dp: int, low: int, high: int, of: int = 1, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    counts = np.random.default_rng(seed).integers(low, high + 1, (STEPS, dp)) * of
    return tuple(tuple(row) for row in counts.tolist())


def without_names(trace: Trace, types: tuple[str, ...] = TRANSFERS) -> Trace:
    """Return a trace whose transfers have no microbatch and no chunk, like published ones."""
    those = np.isin(trace.op, [trace.op_names.index(name) for name in types])
    return replace(
        trace, mb=np.where(those, ABSENT, trace.mb), mc=np.where(those, ABSENT, trace.mc)
    )


JOBS = {
    "1f1b": Job("1f1b", dp=3, pp=4, counts=drawn(3, 4, 9)),
    "1f1b, fewer than stages": Job("1f1b", dp=3, pp=4, counts=drawn(3, 1, 6)),
    "1f1b, overlapped": Job("1f1b", dp=3, pp=2, overlapped=True, counts=drawn(3, 3, 6)),
    "1f1b, transfers at the ends": Job(
        "1f1b", dp=3, pp=3, edge_transfers=True, counts=drawn(3, 3, 6)
    ),
    "gpipe": Job("gpipe", dp=3, pp=3, counts=drawn(3, 3, 6)),
    "zero bubble": Job("zero-bubble", dp=3, pp=3, counts=drawn(3, 3, 6)),
    "interleaved": Job("interleaved", dp=3, pp=2, vpp=2, counts=drawn(3, 2, 4, of=2)),
    "interleaved, deep": Job("interleaved", dp=2, pp=4, vpp=3, counts=drawn(2, 2, 4, of=4)),
    "no pipeline": Job("1f1b", dp=4, pp=1, counts=drawn(4, 2, 6)),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", JOBS)
def test_steps_are_replayed_to_the_nanosecond(name: str, *, named: bool) -> None:
    trace, times = executed(JOBS[name], steps=STEPS)
    replayed = prepare_replay(trace if named else without_names(trace))
    metrics = measure(replayed)

    assert replayed.steps.tolist() == list(range(STEPS))
    assert replayed.recreated.total == 0
    assert (replayed.clamped, metrics.clamped_delays) == (0, 0)
    assert sum(group.layout.operations for group in replayed.groups) == len(trace)
    np.testing.assert_allclose(metrics.simulated_s * 1e9, times, rtol=1e-12)
    np.testing.assert_allclose(metrics.recorded_s * 1e9, times, rtol=1e-12)
    assert Name.PADDED_MICROBATCHES in {made.name for made in replayed.adaptations}


def test_evened_steps_are_as_long_as_those_of_a_job_that_runs_as_many() -> None:
    """All durations are equal, so the ideal step is the mean of even steps."""
    job = Job("1f1b", dp=4, pp=3, compute_ns=20_000_000, transfer_ns=400_000)
    counts = ((4, 8, 6, 6),) * STEPS
    ideal = measure(prepare_replay(executed(replace(job, counts=counts), steps=STEPS)[0])).ideal_s
    _, even = executed(replace(job, microbatches=6), steps=STEPS)
    assert float(ideal.mean()) == pytest.approx(np.mean(even) / 1e9, rel=0.005)


def test_what_is_lost_of_such_a_job_is_made_anew_and_nothing_else() -> None:
    trace, times = executed(replace(JOBS["1f1b"], compute_ns=20_000_000), steps=STEPS)
    lost = np.flatnonzero(trace.op == trace.op_names.index("forward-compute"))[[7, 90]]
    replayed = prepare_replay(trace.of_rows(np.setdiff1d(np.arange(len(trace)), lost)))
    assert replayed.recreated.by_optype == {"forward-compute": 2}
    assert replayed.steps.tolist() == list(range(STEPS))
    assert measure(replayed).simulated_s.sum() * 1e9 == pytest.approx(sum(times), rel=0.02)


def test_one_step_alone_among_others_is_taken_for_a_recording_that_ended() -> None:
    counts = ((4, 4, 4),) * (STEPS - 1) + ((4, 2, 4),)
    replayed = prepare_replay(executed(Job(dp=3, counts=counts), steps=STEPS)[0])
    assert [one.step for one in replayed.dropped] == [STEPS - 1]
    assert "DP ranks run different numbers of microbatches, 2 to 4" in replayed.dropped[0].reason


def test_without_the_adaptation_the_refusal_names_the_difference() -> None:
    job = Job(dp=3, pp=2, counts=((4, 9, 4),) * STEPS)
    with pytest.raises(UnanalyzableError) as refused:
        prepare_replay(executed(job, steps=STEPS)[0], {Name.PADDED_MICROBATCHES})
    assert "DP ranks run different numbers of microbatches" in str(refused.value.faults[0])


def test_even_jobs_have_no_empty_places() -> None:
    replayed = prepare_replay(executed(Job(dp=3, pp=2), steps=STEPS)[0])
    assert replayed.layout.padding is None


def test_names_of_microbatches_number_them_and_else_their_order_in_a_chunk_does() -> None:
    mb = np.array([3, 7, 3, 7], dtype=np.int32)
    mc = np.array([0, 0, 1, 1], dtype=np.int32)
    assert numbered(mb, mc, 2).tolist() == [0, 1, 0, 1]
    absent = np.full(4, ABSENT, dtype=np.int32)
    assert numbered(absent, mc, 2).tolist() == [0, 1, 0, 1]
    assert numbered(absent, absent, 2).tolist() == [0, 0, 1, 1]
