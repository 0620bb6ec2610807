"""Hangs and silent processes: when they are declared, and when not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.columns import NO_BEAT, joined
from app.analysis.pulse.detector import Detector
from app.analysis.pulse.heartbeats import Limits
from app.analysis.pulse.notices import NoticeKind
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import hanging, with_beats
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
