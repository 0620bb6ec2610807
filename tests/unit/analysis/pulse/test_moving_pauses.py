"""Moving pauses: in each step another rank or host pauses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.detector_state import from_bytes, to_bytes
from app.analysis.pulse.notices import Notice, NoticeKind, Part
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import EVENTS
from tests.unit.analysis.pulse.test_detector import notices_in

DIALS = PulseDials(dp=16, steps=300, host_ranks=4)
BEGIN, END = 150, 210


def moving(part: Part, share: float, dials: PulseDials = DIALS, *, hosts: bool = False) -> PulseJob:
    """Return a job with a pause of another rank, or host, in each step from BEGIN to END.

    Every rank pauses once before any pauses again, as with staggered garbage collections.
    """
    rng = stream(3, "pauses", part)
    job = PulseJob.healthy(dials, rng)
    longer = job.collecting if part is Part.GC else job.computing
    each = dials.host_ranks if hosts else 1
    places = np.arange(dials.world // each)
    order = np.concatenate([rng.permutation(places) for _ in range(END - BEGIN)])
    for step in range(BEGIN, END):
        first = int(order[step]) * each
        longer[step, first : first + each] += share * dials.step_s * 1e9
    return job


@pytest.mark.parametrize("share", [0.1, 0.25])
@pytest.mark.parametrize("part", [Part.GC, Part.COMPUTING])
@pytest.mark.parametrize("hosts", [False, True], ids=["rank", "host"])
def test_pauses_of_another_rank_in_each_step_blame_none(
    part: Part, share: float, *, hosts: bool
) -> None:
    job = moving(part, share, replace(DIALS, dp=32), hosts=hosts)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert (notice.kind, notice.ranks, notice.hosts) == (NoticeKind.SPELLS, (), ())
    assert notice.evidence.rotating
    assert notice.evidence.grew is part
    assert ("another host" in notice.evidence.sentence) == hosts
    assert abs(notice.from_step - BEGIN) <= 3
    assert notice.noticed_step <= BEGIN + 20
    assert notice.cleared_step is not None
    assert abs(notice.cleared_step - END) <= 3
    assert notice.factor == pytest.approx(1 + share / 0.7, abs=0.06)


def test_the_notice_of_garbage_collections_names_a_fix() -> None:
    job = moving(Part.GC, 0.2)
    (notice,) = notices_in(job.rows(), job.hosts)

    assert "gc.freeze" in notice.evidence.sentence


def test_a_slow_rank_after_moving_pauses_is_named() -> None:
    job = moving(Part.GC, 0.2, replace(DIALS, steps=400))
    job.computing[END - 30 :, 5] *= 1.4
    named = notices_in(job.rows(), job.hosts)

    assert [(notice.kind, notice.ranks) for notice in named if notice.ranks] == [
        (NoticeKind.SLOW_RANK, (5,))
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("event", ["collections", "hiccups", "curriculum"])
def test_what_healthy_ranks_always_do_is_not_noticed(event: str, seed: int) -> None:
    rng = stream(seed, "healthy", event)
    job = PulseJob.healthy(replace(DIALS, steps=600, noise=0.02), rng)
    EVENTS[event](job, rng)

    assert notices_in(job.rows(), job.hosts) == ()


def test_batches_and_stored_states_change_nothing() -> None:
    rows = moving(Part.GC, 0.2).rows()
    whole = notices_in(rows)
    detector, record = Detector(), Record()
    for start in range(0, len(rows), 333):
        record.take(detector.advance(rows.take(slice(start, start + 333))))
        detector = from_bytes(to_bytes(detector))
    record.take(detector.finish())

    assert record.listed == whole
    assert [notice.kind for notice in whole] == [NoticeKind.SPELLS]


def test_pauses_that_come_back_are_the_same_notice() -> None:
    first, rows = moving(Part.GC, 0.2), moving(Part.GC, 0.2, replace(DIALS, steps=600))
    rows.collecting[400:460] = first.collecting[BEGIN:END]
    (notice,) = notices_in(rows.rows(), rows.hosts)

    assert isinstance(notice, Notice)
    assert notice.cleared_step is not None
    assert abs(notice.cleared_step - 460) <= 3
