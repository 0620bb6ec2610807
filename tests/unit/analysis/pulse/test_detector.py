"""Notices in pulses of known truth, which do not depend on the order of arrival of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.columns import Pulses, joined
from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.detector_state import from_bytes, to_bytes
from app.analysis.pulse.notices import Notice, NoticeKind, Part
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob, PulseTruth
from app.analysis.synthesis.random_pulses import EVENTS, FAULTS

DIALS = PulseDials(dp=8, pp=2, steps=320, noise=0.02)


def notices_in(
    rows: Pulses, hosts: dict[int, str] | None = None, batch: int = 1 << 16
) -> tuple[Notice, ...]:
    detector, record = Detector(hosts=hosts or {}), Record()
    for start in range(0, len(rows), batch):
        record.take(detector.advance(rows.take(slice(start, start + batch))))
    record.take(detector.finish())
    return record.listed


def job_with(fault: str, factor: float, dials: PulseDials = DIALS) -> tuple[PulseJob, PulseTruth]:
    rng = stream(7, "a job", fault)
    job = PulseJob.healthy(dials, rng)
    return job, FAULTS[fault](job, rng, 120, factor)


@pytest.mark.parametrize(("factor", "within"), [(1.1, 20), (1.5, 3)])
def test_a_slow_rank_is_named_within_a_few_steps(factor: float, within: int) -> None:
    job, truth = job_with("rank", factor)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_RANK, truth.ranks)
    assert notice.hosts == (job.hosts[truth.ranks[0]],)
    assert truth.from_step <= notice.noticed_step <= truth.from_step + within
    assert notice.from_step == truth.from_step
    assert notice.cleared_step == truth.end_step
    assert notice.factor == pytest.approx(factor, abs=0.03)


@pytest.mark.parametrize("first", [10, 1 << 40])
def test_ranks_may_have_any_numbers_and_come_in_any_order(first: int) -> None:
    job, truth = job_with("rank", 1.3)
    rows = job.rows()
    order = np.lexsort((-rows.rank, rows.step))
    (notice,) = notices_in(replace(rows, rank=rows.rank + first).take(order))

    (rank,) = truth.ranks
    assert (notice.ranks, notice.from_step) == ((rank + first,), truth.from_step)


def test_steps_whose_numbers_have_gaps_and_doubled_rows_are_the_same_steps() -> None:
    job, truth = job_with("rank", 1.3)
    rows = job.rows()
    twice = rows.take(np.repeat(np.arange(len(rows)), 2))
    detector, record = Detector(), Record()
    record.take(detector.advance(replace(twice, step=twice.step * 10)))
    record.take(detector.finish())

    (notice,) = record.listed
    assert (notice.ranks, notice.from_step) == (truth.ranks, truth.from_step * 10)
    assert detector.counts == {"pulse.doubled": len(rows)}


@pytest.mark.parametrize("batch", [1 << 16, 97])
def test_a_rank_that_collects_garbage_in_every_step_is_slow(batch: int) -> None:
    job, truth = job_with("collector", 1.2)
    (notice,) = notices_in(job.rows(), job.hosts, batch)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_RANK, truth.ranks)
    assert notice.evidence.grew is Part.GC
    assert notice.evidence.sentence.endswith("; what grew is garbage collection")
    assert notice.from_step == truth.from_step + 3
    assert notice.noticed_step <= truth.from_step + 6
    assert notice.cleared_step == truth.end_step
    assert notice.factor == pytest.approx(1.2, abs=0.03)


def test_a_rank_that_collects_garbage_in_every_second_step_is_named() -> None:
    job = PulseJob.healthy(replace(DIALS, pp=1), stream(7, "collects"))
    job.collecting[120::2, 5] = 0.3 * job.computing[120::2, 5]
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.ranks, notice.evidence.grew) == ((5,), Part.GC)


@pytest.mark.parametrize("every", [2, 3, 4, 8])
def test_ranks_that_always_collect_garbage_in_turn_make_no_notice(every: int) -> None:
    job = PulseJob.healthy(replace(DIALS, pp=1, steps=600), stream(18, "in turn"))
    job.collecting[(np.arange(600)[:, None] + np.arange(8)) % every == 0] = 0.2e9

    assert notices_in(job.rows(), job.hosts) == ()


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_ranks_that_collect_garbage_at_random_make_no_notice(share: float) -> None:
    rng = stream(0, "at random")
    job = PulseJob.healthy(PulseDials(dp=16, steps=600), rng)
    job.collecting[rng.random((600, 16)) < share] = 0.15e9

    assert notices_in(job.rows(), job.hosts) == ()


def test_all_ranks_of_a_slow_host_are_one_notice() -> None:
    job, truth = job_with("host", 1.2)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_RANK, truth.ranks)
    assert len(notice.hosts) == 1


def test_the_sentence_names_all_slow_ranks_where_hosts_are_unknown() -> None:
    job = PulseJob.healthy(replace(DIALS, pp=1, noise=0.005), stream(17, "two slow ranks"))
    job.computing[120:, [2, 5]] *= 1.2
    (notice,) = notices_in(job.rows())

    assert notice.ranks == (2, 5)
    assert notice.evidence.sentence.startswith("Ranks 2, 5: computing takes 1.")


def test_a_rank_is_named_while_the_only_other_host_is_missing() -> None:
    job = PulseJob.healthy(replace(DIALS, dp=16, pp=1), stream(11, "missing"))
    job.computing[150:, 2] *= 1.4
    job.missing[140:250, 8:] = True
    (notice,) = notices_in(job.rows(), job.hosts)

    assert notice.ranks == (2,)
    assert notice.noticed_step < 160


def test_a_slow_network_blames_no_rank_and_says_that_waiting_grew() -> None:
    job, truth = job_with("network", 1.25)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_JOB, ())
    assert notice.evidence.grew is Part.WAITING
    assert notice.noticed_step <= truth.from_step + 30


@pytest.mark.parametrize("lengths", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("factor", [1.15, 1.5])
def test_a_job_of_long_tailed_tokens_whose_ranks_all_compute_longer_is_slow(
    lengths: float, factor: float
) -> None:
    dials = PulseDials(dp=8, steps=400, noise=0.004, lengths=lengths, constant=0.2, squared=0.1)
    job, truth = job_with("job", factor, dials)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.SLOW_JOB, ())
    assert notice.evidence.grew is Part.COMPUTING
    assert notice.noticed_step <= truth.from_step + 30
    assert notice.factor == pytest.approx(factor, abs=0.02)


@pytest.mark.parametrize("lengths", [0.1, 0.3, 0.8])
def test_a_curriculum_of_long_tailed_tokens_makes_no_notice(lengths: float) -> None:
    rng = stream(6, "curriculum")
    job = PulseJob.healthy(PulseDials(dp=16, steps=500, lengths=lengths, squared=0.1), rng)
    EVENTS["curriculum"](job, rng)

    assert notices_in(job.rows(), job.hosts) == ()


def test_spells_are_one_notice_of_their_rank() -> None:
    job, truth = job_with("spells", 1.4, replace(DIALS, steps=450))
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.SPELLS, truth.ranks)
    assert not notice.evidence.rotating
    assert notice.evidence.share is not None
    assert 0.05 < notice.evidence.share < 0.6


def test_a_straggler_that_rotates_blames_no_rank() -> None:
    job, _ = job_with("rotating", 1.4, replace(DIALS, steps=450))
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks, notice.hosts) == (NoticeKind.SPELLS, (), ())
    assert notice.evidence.rotating


def test_a_steady_growth_is_a_drift_with_its_slope() -> None:
    job, truth = job_with("drift", 1.3, PulseDials(dp=8, steps=2500, noise=0.01))
    (notice,) = notices_in(job.rows())
    hours = 2380 * float(np.median(job.step_ns)) / 3.6e12

    assert (notice.kind, notice.ranks) == (NoticeKind.DRIFT, truth.ranks)
    assert notice.evidence.slope_per_day == pytest.approx(0.3 / hours * 24, rel=0.5)


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_a_drift_of_one_percent_in_a_hundred_steps_is_noticed_within_six_hundred(
    noise: float,
) -> None:
    job = PulseJob.healthy(PulseDials(dp=64, steps=900, noise=noise), stream(12, "drift"))
    job.computing[200:, 37] *= 1 + 1e-4 * np.arange(700)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.DRIFT, (37,))
    assert notice.noticed_step < 200 + 600
    # The part that the baseline had followed counts.
    assert notice.factor == pytest.approx(1.07, abs=0.015)


@pytest.mark.parametrize("dp", [16, 64])
def test_ranks_of_a_host_that_drift_are_one_notice(dp: int) -> None:
    job = PulseJob.healthy(PulseDials(dp=dp, steps=900), stream(14, "host drifts"))
    job.computing[200:, 8:16] *= 1 + 1e-4 * np.arange(700)[:, None]
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks) == (NoticeKind.DRIFT, tuple(range(8, 16)))
    assert notice.noticed_step < 200 + 600


def test_ranks_that_wander_by_a_few_percent_make_no_drift() -> None:
    dials = PulseDials(dp=64, steps=1500, noise=0.01)
    rng = stream(13, "waves")
    job = PulseJob.healthy(dials, rng)
    turns = np.arange(1500)[:, None] / rng.uniform(300, 2500, 64) + rng.random(64)
    job.computing *= 1 + 0.015 * np.sin(2 * np.pi * turns)

    assert notices_in(job.rows(), job.hosts) == ()


@pytest.mark.parametrize("event", EVENTS)
def test_usual_changes_of_healthy_jobs_make_no_notice(event: str) -> None:
    rng = stream(3, "healthy", event)
    job = PulseJob.healthy(replace(DIALS, steps=600), rng)
    EVENTS[event](job, rng)

    assert notices_in(job.rows(), job.hosts) == ()


def test_a_new_process_group_begins_anew() -> None:
    # The next process group of the attempt has fewer ranks, other offsets, and repeated step
    # numbers.
    rng = stream(4, "elastic")
    job = PulseJob.healthy(replace(DIALS, offsets=0.03, steps=200), rng)
    after = PulseJob.healthy(replace(DIALS, dp=7, offsets=0.03, steps=200), rng)
    before = job.rows()
    after.first_step, after.start_ns = 180, int(before.time_ns[-1]) + 60_000_000_000

    assert notices_in(joined([before, after.rows()])) == ()


@pytest.mark.parametrize("batch", [1 << 16, 97])
def test_ranks_may_be_renumbered_when_a_world_shrinks_after_a_pause(batch: int) -> None:
    # Rank 3 is on another device from step 150 on: usual among the ranks, but slower than before.
    job = PulseJob.healthy(replace(DIALS, pp=1, dp=16, noise=0.005), stream(10, "renumbered"))
    job.computing[:150, 3] *= 0.94
    job.computing[150:, 3] *= 1.03
    job.missing[150:, 14:] = True
    job.gap[150] = 40e9

    assert notices_in(job.rows(), batch=batch) == ()
    job.gap[150] = 0
    assert [notice.ranks for notice in notices_in(job.rows(), batch=batch)] == [(3,)]


def test_a_rank_that_is_slow_from_its_first_step_on_is_noticed() -> None:
    job = PulseJob.healthy(replace(DIALS, steps=120), stream(5, "from the start"))
    job.computing[:, 3] *= 1.3
    (notice,) = notices_in(job.rows())

    assert notice.ranks == (3,)
    assert notice.noticed_step < 60


def test_notices_are_the_same_however_rows_are_cut_and_after_any_restart() -> None:
    rng = stream(6, "cut")
    job = PulseJob.healthy(replace(DIALS, pp=1, steps=260), rng)
    job.computing[100:150, 2] *= 1.2
    job.computing[180:, 5] *= 1.5
    EVENTS["missing host"](job, rng)
    job.missing[:, [2, 5]] = False
    rows = job.rows()
    # Late, repeated and unsorted rows.
    order = np.argsort(np.arange(len(rows)) + rng.integers(0, 12, len(rows)), kind="stable")
    rows = rows.take(np.insert(order, 700, order[:40]))
    whole = notices_in(rows)

    assert [notice.ranks for notice in whole] == [(2,), (5,)]
    detector, record, start = Detector(), Record(), 0
    while start < len(rows):
        end = start + int(rng.integers(1, 90))
        record.take(detector.advance(rows.take(slice(start, end))))
        detector = from_bytes(to_bytes(detector))
        start = end
    record.take(detector.finish())
    assert record.listed == whole


def test_the_state_does_not_grow_with_steps() -> None:
    rows = PulseJob.healthy(replace(DIALS, steps=900), stream(8, "state")).rows()
    sizes = []
    detector = Detector()
    for start in range(0, len(rows), len(rows) // 3):
        detector.advance(rows.take(slice(start, start + len(rows) // 3)))
        sizes.append(len(to_bytes(detector)))

    assert sizes[2] < 1.1 * sizes[1]


def test_single_long_steps_are_stalls_and_no_notice() -> None:
    rng = stream(9, "stalls")
    job = PulseJob.healthy(DIALS, rng)
    job.data[31::32] += 6e8
    detector = Detector()
    changes = detector.advance(job.rows())
    (stall,) = detector.stalls

    assert changes.notices == ()
    assert (stall.cause, stall.lined_up, stall.period_steps) == (Part.DATA, True, 32.0)
    assert stall.lost_ns == pytest.approx(stall.steps * 6e8, rel=0.1)


def test_rows_that_cannot_be_used_are_counted_and_stop_nothing() -> None:
    job, truth = job_with("rank", 1.5)
    rows = job.rows()
    compute = rows.compute_ns.copy()
    compute[::97] = -1
    dp_rank = rows.dp_rank.copy()
    dp_rank[50:60] = 99
    detector, record = Detector(), Record()
    record.take(detector.advance(replace(rows, compute_ns=compute)))
    record.take(detector.advance(replace(rows, dp_rank=dp_rank).take(slice(0, 60))))

    assert record.listed[0].ranks == truth.ranks
    assert {"pulse.negative", "pulse.late"} <= detector.counts.keys()


def test_a_clock_that_is_wrong_is_named_by_its_offset() -> None:
    job, truth = job_with("rank", 1.5)
    rows = job.rows()
    lying = (truth.ranks[0] + 1) % DIALS.world
    time_ns = rows.time_ns + np.where(rows.rank == lying, 3_600_000_000_000, 0)
    detector, record = Detector(), Record()
    record.take(detector.advance(replace(rows, time_ns=time_ns)))

    assert record.listed[0].ranks == truth.ranks
    assert detector.offsets.keys() == {lying}
    assert detector.offsets[lying] == pytest.approx(3.6e12, rel=1e-3)
