from __future__ import annotations

import pytest

from tests.real_jobs.faults import (
    RECORDED_STEPS,
    Fault,
    HeavyStage,
    Pace,
    Pauses,
    SlowLink,
    SlowWorker,
    UnevenLengths,
)
from tests.real_jobs.jobs import JOBS, MICROBATCHES, Job, Place
from tests.real_jobs.scenarios import REPRESENTATIVE, SCENARIOS, run_fault
from tests.real_jobs.truth import spread, true_slowdown, truth_of

TWO_BY_TWO = JOBS["hwC"]
FOUR_STAGES = JOBS["hw4"]
VIRTUAL = JOBS["tpI"]

EVERY_FORWARD = [
    (Place(dp, pp), step, microbatch)
    for dp in range(2)
    for pp in range(2)
    for step in range(1, RECORDED_STEPS + 1)
    for microbatch in range(MICROBATCHES)
]


def pace(job: Job, fault: Fault, place: Place) -> Pace:
    return Pace(job, fault, place, forward_s=0.04)


def test_the_true_slowdown_is_the_ratio_of_mean_step_times() -> None:
    assert true_slowdown([1.5, 1.7, 1.6], [1.0, 0.9, 1.1]) == pytest.approx(1.6)


def test_the_spread_is_that_of_the_farthest_steps() -> None:
    assert spread([1.0, 1.02, 0.99, 1.0, 1.05]) == pytest.approx(0.06)


def test_an_uneven_job_is_held_against_the_same_work_shared_evenly() -> None:
    reference = run_fault(SCENARIOS["hw4-heavy-fourth"].reference)
    heavy = SCENARIOS["hw4-heavy-fourth"].fault

    def total(fault: Fault) -> float:
        return sum(fault.work(FOUR_STAGES, Place(0, pp), 1, 0) for pp in range(4))

    assert total(reference) == pytest.approx(total(heavy))
    assert len({reference.work(FOUR_STAGES, Place(0, pp), 1, 0) for pp in range(4)}) == 1


def test_other_faults_are_held_against_the_healthy_run() -> None:
    assert SCENARIOS["hwC-slow1.8"].reference == "healthy"
    assert SCENARIOS["hwC-lengths"].reference == "healthy"


@pytest.mark.parametrize(("stage", "at_an_end"), [(0, True), (1, False), (3, True)])
def test_a_slow_worker_without_peers_is_at_an_end_or_not(stage: int, *, at_an_end: bool) -> None:
    names = {0: "hw4-first1.8", 1: "hw4-second1.8", 3: "hw4-fourth1.8"}
    truth = truth_of(SCENARIOS[names[stage]], [1.4], [1.0])
    assert truth.one_dp_rank
    assert (truth.stage, truth.at_an_end) == (stage, at_an_end)
    assert truth.worker == Place(0, stage)


def test_a_healthy_job_has_no_worker_to_blame() -> None:
    truth = truth_of(SCENARIOS["hwC-healthy"], [1.0, 1.01], [1.0, 1.01])
    assert (truth.slowdown, truth.cause, truth.worker, truth.stage) == (1.0, None, None, None)


def test_a_slow_worker_alone_is_slow_in_both_directions() -> None:
    fault = SlowWorker(Place(1, 0), 1.5)
    slow, other = pace(TWO_BY_TWO, fault, Place(1, 0)), pace(TWO_BY_TWO, fault, Place(1, 1))
    assert slow.computation_s(1, 0, backward=False) == pytest.approx(0.06)
    assert slow.computation_s(1, 0, backward=True) == pytest.approx(0.12)
    assert other.computation_s(1, 0, backward=True) == pytest.approx(0.08)


def test_a_heavy_stage_is_heavy_on_all_its_workers() -> None:
    fault = HeavyStage(1, 1.5)
    assert [fault.work(TWO_BY_TWO, Place(dp, 1), 1, 0) for dp in range(2)] == [1.5, 1.5]
    assert fault.work(TWO_BY_TWO, Place(0, 0), 1, 0) == 1


def test_pauses_hit_their_share_of_recorded_forwards_and_no_warm_up() -> None:
    fault = Pauses(recorded=True)
    stalls = [fault.pauses(TWO_BY_TWO, *forward) for forward in EVERY_FORWARD]
    stalled = [seconds for seconds in stalls if seconds]
    assert len(stalled) == round(0.04 * len(EVERY_FORWARD))
    assert min(stalled) == pytest.approx(0.1)
    assert max(stalled) == pytest.approx(0.3)
    assert not any(fault.pauses(TWO_BY_TWO, Place(0, 0), 0, mb) for mb in range(MICROBATCHES))
    assert pace(VIRTUAL, fault, Place(0, 0)).pause_s(1, 0, chunk=1) == 0


def test_sequence_lengths_fill_each_microbatch_and_leave_the_mean_work_as_it_is() -> None:
    fault = UnevenLengths()
    lengths = fault.lengths(TWO_BY_TWO)
    tokens = {sum(s) for lanes in lengths.values() for lane in lanes for s in lane}
    assert len(tokens) == 1
    work = [fault.work(TWO_BY_TWO, *forward) for forward in EVERY_FORWARD]
    assert sum(work) / len(work) == pytest.approx(1)
    assert max(work) > 1.2 * min(work)
    assert fault.work(TWO_BY_TWO, Place(1, 0), 2, 3) == fault.work(TWO_BY_TWO, Place(1, 1), 2, 3)


def test_a_slow_link_adds_to_what_all_transfers_take() -> None:
    fault = SlowLink(dp=1, first_stage=0, takes_s=0.024)
    wired = JOBS["hwW"]
    assert pace(wired, fault, Place(1, 1)).wire_s(0) == pytest.approx(wired.wire_s + 0.024)
    assert pace(wired, fault, Place(0, 1)).wire_s(0) == pytest.approx(wired.wire_s)


def test_the_representative_ones_have_every_framework_layout_and_fault() -> None:
    chosen = [SCENARIOS[name] for name in REPRESENTATIVE]
    everything = SCENARIOS.values()
    assert {s.job.framework for s in chosen} == {s.job.framework for s in everything}
    assert {s.job.schedule for s in chosen} == {s.job.schedule for s in everything}
    assert {(s.job.dp, s.job.pp) for s in chosen} == {(s.job.dp, s.job.pp) for s in everything}
    assert {s.fault.cause for s in chosen} == {s.fault.cause for s in everything}
