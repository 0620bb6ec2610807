"""The read side of a host while jobs run on it: its ranks now, and what was noticed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import any_, select

from app.db.models.noticed import PulseNotice, PulseSpan
from app.db.models.sessions import Job
from app.services.pulse.fleet import last_minutes
from app.services.pulse.spans import slow_ranks

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

MOST_NOTICES: Final = 20


@dataclass(frozen=True, slots=True)
class HostRank:
    """A rank of a host among those that compute longest in a job that runs."""

    job: str
    rank: int
    gpu: int
    ratio: float
    step_s: float
    """Of the job, in its last minute."""


@dataclass(frozen=True, slots=True)
class HostNotice:
    """Something that was noticed of a host."""

    job: str
    noticed_at: datetime
    cleared_at: datetime | None
    sentence: str  # and what its GPUs say


@dataclass(frozen=True, slots=True)
class HostNow:
    """A host, as pulses name it."""

    ranks: Sequence[HostRank]
    """The slowest first."""
    notices: Sequence[HostNotice]
    """The latest first."""


def host_now(tx: Reads, host: str) -> HostNow:
    """Return what pulses say of a host."""
    last = last_minutes(
        tx,
        PulseSpan.step_median_s,
        PulseSpan.worst_ranks,
        PulseSpan.worst_hosts,
        PulseSpan.worst_gpus,
        PulseSpan.worst_ratios,
    )
    running = tx.session.execute(
        select(last, Job.name.label("job"))
        .join(Job, Job.id == last.c.job_id)
        .where(any_(last.c.worst_hosts) == host)
    ).all()
    ranks = [
        HostRank(row.job, one.rank, one.gpu, one.ratio, row.step_median_s)
        for row in running
        for one in slow_ranks(row)
        if one.host == host
    ]
    noticed = tx.session.execute(
        select(
            Job.name,
            PulseNotice.noticed_at,
            PulseNotice.cleared_at,
            PulseNotice.evidence,
        )
        .join(Job, Job.id == PulseNotice.job_id)
        .where(any_(PulseNotice.hosts) == host)
        .order_by(PulseNotice.noticed_at.desc(), PulseNotice.number.desc())
        .limit(MOST_NOTICES)
    )
    return HostNow(
        sorted(ranks, key=lambda one: -one.ratio),
        [
            HostNotice(job, noticed_at, cleared_at, evidence.told)
            for job, noticed_at, cleared_at, evidence in noticed
        ],
    )
