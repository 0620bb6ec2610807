"""Hangs and silent processes: when they are declared, and when not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.columns import NO_BEAT, Pulses, joined
from app.analysis.pulse.detector import Detector
from app.analysis.pulse.heartbeats import Limits
from app.analysis.pulse.notices import NoticeKind
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import BEAT_NS, beats, by_time, hanging, with_beats
from tests.unit.analysis.pulse.test_detector import notices_in

DIALS = PulseDials(dp=4, steps=60)


@pytest.mark.parametrize("gone", [False, True])
def test_who_is_waited_for_is_named_a_beat_after_no_step_ended_for_25_seconds(gone: bool) -> None:  # noqa: FBT001
    rng = stream(1, "hang", str(gone))
    job = PulseJob.healthy(DIALS, rng)
    rows, truth = hanging(job, rng, seconds=90, gone=gone)
    (notice,) = notices_in(rows, job.hosts)
    last = int(rows.time_ns[rows.phase == NO_BEAT].max())

    assert (notice.kind, notice.ranks) == (truth.kind, truth.ranks)
    assert notice.noticed_step == truth.from_step
    assert 25e9 < notice.noticed_time_ns - last <= 30e9
    assert notice.cleared_step is None


def test_limits_of_a_tenth_notice_in_a_tenth_of_the_time() -> None:
    rng = stream(1, "tenth")
    job = PulseJob.healthy(DIALS, rng)
    rows, truth = hanging(job, rng, seconds=90, gone=False)
    last = int(rows.time_ns[rows.phase == NO_BEAT].max())
    noticed = []
    for limits in (Limits(), Limits(waits_ns=2_500_000_000)):
        detector = Detector(hosts=dict(job.hosts))
        (notice,) = detector.advance(rows, limits).notices
        assert notice.ranks == truth.ranks
        noticed.append(notice.noticed_time_ns - last)
    # Beats continue, five seconds apart.
    assert 25e9 < noticed[0] <= 30e9
    assert 2.5e9 < noticed[1] <= 2.5e9 + 5e9


def rank_2_dies(step_s: float, *, beats_of_2: bool = True) -> Pulses:
    """Return a pipeline of two stages of eight replicas whose rank 2 dies early in a step.

    Stage 1 still ends the step, then rank 10 waits for rank 2 inside a forward pass.
    """
    job = PulseJob.healthy(PulseDials(dp=8, pp=2, steps=40, step_s=step_s), stream(8, "dies"))
    rows = with_beats(job, stream(8, "beats"))
    ends_ns = job.start_ns + np.cumsum(job.step_ns)
    died_ns = int(ends_ns[-2] + 0.1 * job.step_ns[-1])
    is_2 = rows.rank == 2
    kept = ~is_2 | (rows.time_ns < died_ns)
    if not beats_of_2:
        kept &= ~is_2 | (rows.phase == NO_BEAT)
    # The other ranks of stage 0 wait for rank 2 in the step that stage 1 ends.
    kept &= (rows.rank >= 8) | (rows.time_ns < ends_ns[-1]) | (rows.phase != NO_BEAT)
    parts = [rows.take(kept)]
    for rank in (rank for rank in range(16) if rank != 2):
        stage = rank // 8
        last_ns = int(ends_ns[-1])
        times = last_ns + np.arange(0, int(300e9 + 8e9 * step_s), BEAT_NS)
        phase = "dp-all-reduce" if stage == 0 or rank != 10 else "forward-compute"
        parts.append(
            beats(
                *(job, rank, times),
                steps=np.full(len(times), job.dials.steps - 1 + stage),
                phases=[phase] * len(times),
                since_ns=np.full(len(times), last_ns),
            )
        )
    return by_time(joined(parts))


@pytest.mark.parametrize("step_s", [1.0, 20.0, 60.0])
def test_a_silent_rank_is_named_and_not_the_neighbor_that_waits_for_it(step_s: float) -> None:
    (notice,) = notices_in(rank_2_dies(step_s))

    assert (notice.kind, notice.ranks) == (NoticeKind.SILENT, (2,))


def test_a_rank_that_dies_before_its_first_beat_is_silent() -> None:
    (notice,) = notices_in(rank_2_dies(1.0, beats_of_2=False))

    assert (notice.kind, notice.ranks) == (NoticeKind.SILENT, (2,))


def test_ranks_that_end_because_another_one_died_are_not_named() -> None:
    rows = rank_2_dies(1.0)
    last_ns = int(rows.time_ns[rows.phase == NO_BEAT].max())
    ended = (rows.rank < 8) & (rows.time_ns > last_ns + 60e9)
    (notice,) = notices_in(rows.take(~ended))

    assert (notice.kind, notice.ranks) == (NoticeKind.SILENT, (2,))


@pytest.mark.parametrize("batch", [1 << 16, 7])
def test_a_host_that_is_gone_is_one_notice_with_all_its_ranks(batch: int) -> None:
    rng = stream(6, "host")
    job = PulseJob.healthy(replace(DIALS, host_ranks=2), rng)
    rows, truth = hanging(job, rng, seconds=90, gone=True)
    host = [rank for rank in range(4) if job.hosts[rank] == job.hosts[truth.ranks[0]]]
    gone = np.isin(rows.rank, host) & (rows.phase != NO_BEAT) & (rows.step == truth.from_step)
    (notice,) = notices_in(rows.take(~gone), job.hosts, batch)

    assert (notice.kind, notice.ranks) == (NoticeKind.SILENT, tuple(host))


def test_a_hang_that_resolves_says_how_long_it_was() -> None:
    rng = stream(2, "resolves")
    job = PulseJob.healthy(DIALS, rng)
    rows, truth = hanging(job, rng, seconds=60, gone=False)
    after = PulseJob.healthy(DIALS, rng)
    after.first_step, after.start_ns = DIALS.steps, int(rows.time_ns.max())
    (notice,) = notices_in(joined([rows, after.rows()]))

    assert notice.kind is NoticeKind.HANG
    assert notice.cleared_step == truth.from_step
    assert notice.evidence.seconds == pytest.approx(61, abs=2)


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "compile", "data"])
def test_phases_that_may_take_long_are_no_hang(phase: str) -> None:
    rng = stream(3, "phases")
    job = PulseJob.healthy(DIALS, rng)
    job.gap[40] = 200e9

    assert notices_in(with_beats(job, rng, phase)) == ()


def test_a_job_that_ends_does_not_hang() -> None:
    rng = stream(4, "ends")
    job = PulseJob.healthy(DIALS, rng)
    rows, truth = hanging(job, rng, seconds=90, gone=False)
    finished = rows.phases.index("finished")
    beats = (rows.phase != NO_BEAT) & (rows.step == truth.from_step)

    assert notices_in(replace(rows, phase=np.where(beats, finished, rows.phase))) == ()


def test_ranks_that_send_nothing_while_steps_go_on_are_not_silent() -> None:
    rng = stream(5, "missing")
    job = PulseJob.healthy(replace(DIALS, steps=120), rng)
    rows = with_beats(job, rng)

    assert notices_in(rows.take((rows.rank != 2) | (rows.step < 40))) == ()


@pytest.mark.parametrize("gone", [False, True])
def test_a_job_hangs_where_a_rank_stays_in_its_operation_and_else_it_is_slow(gone: bool) -> None:  # noqa: FBT001
    rng = stream(7, "moves", str(gone))
    job = PulseJob.healthy(DIALS, rng)
    rows, truth = hanging(job, rng, seconds=90, gone=gone)
    for begun, moves in ((rows.since_ns, False), (rows.time_ns - 10**9, True)):
        detector = Detector(hosts=dict(job.hosts))
        (notice,) = detector.advance(replace(rows, since_ns=begun)).notices
        assert notice.kind is truth.kind
        assert detector.heartbeats.moves(Limits()) is moves
