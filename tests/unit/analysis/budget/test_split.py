from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.analysis.budget.split import Part, Split, split
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel, Needs, Profiler, Range, draw_job
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    DATA_LOADING,
    FORWARD_COMPUTE,
    KNOWN_OP_TYPES,
    Sizes,
    Trace,
)
from tests.random_jobs import random_job
from tests.unit.analysis.budget.sessions import GAP_NS, following

SMALL = Range(dp=(1, 2, 3, 4), pp=(1, 1, 2, 3, 4), most_microbatches=6, operations=3_000)
PIPELINE = JobModel(sizes=Sizes(dp=4, pp=4), microbatches=8, steps=24)
FLAT = JobModel(sizes=Sizes(dp=8, pp=1), microbatches=4, steps=24)

FORWARD = KNOWN_OP_TYPES.index(FORWARD_COMPUTE)


def split_of(trace: Trace) -> Split:
    replayed = prepare_replay(trace)
    return split(replayed, measure(replayed))


def session(job: JobModel, *troubles: SlowWorker) -> Trace:
    return following(synthesize(job, troubles, seed=5).trace)


def with_loading(trace: Trace, ranks: tuple[int, ...], *, step: int, ns: int) -> Trace:
    """Return a trace in which ranks record loading a batch before their first backward pass."""
    backward = KNOWN_OP_TYPES.index(BACKWARD_COMPUTE)
    there = np.isin(trace.dp, ranks) & (trace.step == step) & (trace.op == backward)
    rows = np.flatnonzero(there & (trace.order == 0))
    loads = trace.of_rows(rows)
    loads = replace(
        loads,
        op=np.full(len(rows), KNOWN_OP_TYPES.index(DATA_LOADING), np.int16),
        start_ns=loads.start_ns - ns,
        duration_ns=np.full(len(rows), ns),
    )
    columns = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")
    joined: dict[str, Any] = {
        n: np.concatenate([getattr(trace, n), getattr(loads, n)]) for n in columns
    }
    return replace(trace, **joined)


def share(found: Split, part: Part) -> float:
    return float(found.of(part).sum() / found.wall_ns.sum())


def shares_of_workers(
    found: Split, part: Part
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the share of a part for each worker, shape (pp, dp)."""
    return np.asarray(found.of(part).sum(axis=1) / found.wall_ns.sum(axis=1))


def check_adds_up(trace: Trace) -> None:
    found = split_of(trace)
    # Parts add up to the step for each worker in each step, and so do all their sums.
    assert np.abs(found.parts_ns.sum(axis=0) - found.wall_ns).max() <= 1e-9 * found.wall_ns.mean()
    assert min(share(found, part) for part in Part) >= -1e-12


def random_trace(seed: int) -> Trace:
    """Return a session of a random job, with or without gaps and incomplete steps."""
    rng = np.random.default_rng(seed)
    job = draw_job(rng, Needs(workers=1), SMALL)
    lossy = Profiler(lost_share=0.01 if seed % 5 == 0 else 0.0)
    trace = synthesize(replace(job, profiler=lossy), (), seed=seed).trace
    if seed % 2:
        steps = rng.permutation(job.steps)
        trace = following(
            trace,
            stalls_ns={int(steps[0]): int(rng.integers(10**10))},
            stretched={int(step): float(rng.uniform(0.5, 3)) for step in steps[:4]},
        )
        if seed % 3 == 0 and job.steps > 4:
            # One worker lacks one of the steps.
            gone = (trace.step == steps[1]) & (trace.rank == rng.choice(np.unique(trace.rank)))
            trace = trace.of_rows(np.flatnonzero(~gone))
    return trace


@pytest.mark.parametrize("seed", range(25))
def test_the_parts_of_a_random_job_add_up(seed: int) -> None:
    check_adds_up(random_trace(seed))


@pytest.mark.slow
def test_the_parts_of_a_thousand_random_jobs_add_up() -> None:
    for seed in range(25, 1000):
        check_adds_up(random_trace(seed))


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_of_a_wild_job_add_up(seed: int) -> None:
    interleaved = seed % 3 == 0
    wild = random_job(seed, steps=6, launch_overhead=True, interleaved=interleaved).trace
    check_adds_up(following(wild) if seed % 2 else wild)


def test_a_healthy_job_computes_communicates_and_has_a_bubble() -> None:
    found = split_of(session(PIPELINE))
    # The bubble is 3 of 8 + 3 forward and backward passes of a stage (paper, section 2).
    step = 1 - share(found, Part.BETWEEN_STEPS) - share(found, Part.COMMUNICATION)
    assert share(found, Part.BUBBLE) == pytest.approx(3 / 11 * step, abs=0.02)
    lost = (Part.OWN_SLOWNESS, Part.WAITING, Part.SLOW_TOGETHER, Part.COMMUNICATION_ABOVE)
    assert sum(share(found, part) for part in lost) < 0.03


def test_what_a_slow_worker_computes_longer_is_its_own_and_others_wait_for_it() -> None:
    found = split_of(session(FLAT, SlowWorker((2, 0), 1.5)))
    own = shares_of_workers(found, Part.OWN_SLOWNESS)[0]
    waiting = shares_of_workers(found, Part.WAITING)[0]
    assert own.argmax() == 2
    assert own[2] > 0.25
    assert np.delete(own, 2) == pytest.approx(0, abs=0.02)
    assert np.delete(waiting, 2) == pytest.approx(own[2], abs=0.02)
    assert waiting[2] == pytest.approx(0, abs=0.02)


def test_an_own_slowness_is_negative_for_a_worker_that_is_faster() -> None:
    found = split_of(session(FLAT, SlowWorker((2, 0), 0.8)))
    assert shares_of_workers(found, Part.OWN_SLOWNESS)[0, 2] < -0.1
    assert share(found, Part.OWN_SLOWNESS) == pytest.approx(0)


def test_stalls_of_all_workers_pass_between_steps() -> None:
    trace = synthesize(FLAT, (), seed=5).trace
    found = split_of(following(trace, stalls_ns={7: 5 * 10**9, 19: 5 * 10**9}))
    above = found.of(Part.BETWEEN_STEPS_ABOVE)[0, :, 0]
    assert np.flatnonzero(above).tolist() == [6, 18]
    assert above[[6, 18]] == pytest.approx(5e9)
    usual = found.of(Part.BETWEEN_STEPS)[0, :, 0]
    assert usual[:-1] == pytest.approx(GAP_NS)
    assert usual[-1] == 0


def test_a_stall_of_one_worker_is_late_there_and_waited_for_elsewhere() -> None:
    trace = session(FLAT)
    late = (trace.dp == 3) & (trace.step % 4 == 0)
    stalled = replace(trace, start_ns=trace.start_ns + np.where(late, 10**9, 0))
    found = split_of(following(stalled))
    late_there = shares_of_workers(found, Part.LAUNCH_DELAYS)[0]
    assert late_there.argmax() == 3
    assert late_there[3] > 0.1
    assert np.delete(late_there, 3) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("job", [FLAT, PIPELINE])
def test_steps_that_all_workers_compute_slower_are_slow_together(job: JobModel) -> None:
    trace = synthesize(job, (), seed=5).trace
    plain = split_of(following(trace))
    found = split_of(following(trace, stretched=dict.fromkeys(range(8, 16), 3.0)))
    grown = found.wall_ns.sum() - plain.wall_ns.sum()
    together = share(found, Part.SLOW_TOGETHER) * found.wall_ns.sum()
    # Communication takes longer too.
    assert 0.8 * grown < together < grown
    assert share(found, Part.OWN_SLOWNESS) < 0.01


@pytest.mark.parametrize("ranks", [(3,), tuple(range(8))])
def test_batches_that_are_loaded_within_a_step_pass_between_steps(ranks: tuple[int, ...]) -> None:
    trace = session(FLAT)
    late = np.isin(trace.dp, ranks) & (trace.step == 7) & (trace.op != FORWARD)
    # These ranks load for 3 s before their first backward pass.
    stalled = replace(trace, start_ns=trace.start_ns + np.where(late, 3 * 10**9, 0))
    found = split_of(with_loading(following(stalled), ranks, step=7, ns=3 * 10**9))
    above = found.of(Part.BETWEEN_STEPS_ABOVE)[0, 7]
    assert above[list(ranks)] == pytest.approx(3e9, rel=0.02)
    assert np.delete(above, ranks) == pytest.approx(0)
    assert share(found, Part.LAUNCH_DELAYS) < 0.01


def test_gaps_between_recorded_windows_are_not_lost() -> None:
    trace = session(FLAT)
    apart = replace(trace, step=trace.step + np.where(trace.step >= 12, 500, 0))
    later = np.where(trace.step >= 12, 3600 * 10**9, 0)
    found = split_of(replace(apart, start_ns=trace.start_ns + later))
    assert found.wall_ns.sum() == pytest.approx(
        split_of(trace).wall_ns.sum() - GAP_NS * FLAT.sizes.dp
    )
    assert share(found, Part.BETWEEN_STEPS_ABOVE) == 0


def test_a_step_that_a_worker_did_not_record_is_missing() -> None:
    trace = session(FLAT)
    found = split_of(trace.of_rows(np.flatnonzero((trace.step != 9) | (trace.dp != 4))))
    wall_ns = split_of(trace).wall_ns
    assert found.wall_ns.sum() == pytest.approx(wall_ns.sum())
    # The missing step includes the times before and after it.
    missing = found.of(Part.MISSING)[0, :, 0]
    assert np.flatnonzero(missing).tolist() == [8]
    assert missing[8] == pytest.approx(wall_ns[0, 9, 0] + GAP_NS)


def test_an_odd_step_counts_with_those_that_are_left_out() -> None:
    trace = synthesize(FLAT, (), seed=5).trace
    found = split_of(following(trace, stretched={9: 10.0}))
    missing = found.of(Part.MISSING)[0, :, 0]
    assert np.flatnonzero(missing).tolist() == [8]
    assert missing[8] == pytest.approx(10 * found.wall_ns[0, 10, 0], rel=0.05)
    assert share(found, Part.SLOW_TOGETHER) == 0


@pytest.mark.parametrize(("odd", "holder"), [(0, 0), (FLAT.steps - 1, -1)])
def test_an_odd_step_at_an_end_of_the_session_counts_there(odd: int, holder: int) -> None:
    trace = synthesize(FLAT, (), seed=5).trace
    found = split_of(following(trace, stretched={odd: 10.0}))
    assert found.wall_ns.shape[1] == FLAT.steps - 1
    missing = found.of(Part.MISSING)[0, :, 0]
    assert np.flatnonzero(missing).tolist() == [np.arange(FLAT.steps - 1)[holder]]
    assert missing[holder] == pytest.approx(10 * found.wall_ns[0, 10, 0], rel=0.05)
    assert found.parts_ns.sum(axis=0) == pytest.approx(found.wall_ns, rel=1e-9)


def test_starts_that_count_from_each_step_show_no_time_between_steps() -> None:
    trace = session(FLAT)
    first = np.zeros(FLAT.steps, np.int64)
    first[:] = np.iinfo(np.int64).max
    np.minimum.at(first, trace.step, trace.start_ns)
    relative = replace(trace, start_ns=trace.start_ns - first[trace.step], step_relative=True)
    found = split_of(relative)
    assert share(found, Part.BETWEEN_STEPS) == 0
    assert share(found, Part.COMPUTING) == pytest.approx(
        share(split_of(trace), Part.COMPUTING) / (1 - share(split_of(trace), Part.BETWEEN_STEPS))
    )


def test_a_clock_set_back_between_steps_makes_no_time() -> None:
    trace = session(FLAT)
    back = np.where(trace.step >= 12, -3600 * 10**9, 0)
    found = split_of(replace(trace, start_ns=trace.start_ns + back))
    assert (found.wall_ns > 0).all()
    assert share(found, Part.BETWEEN_STEPS_ABOVE) == pytest.approx(0, abs=1e-3)
