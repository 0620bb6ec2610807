"""The read side of pulses."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import func, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from app.alerts.notices.facts import Outcome
from app.analysis.pulse.notices import Evidence, NoticeKind
from app.db.json_values import as_json
from app.db.models.noticed import PulseNotice, PulseState
from app.db.models.sessions import Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import ScalarSelect, Select

    from app.db.unit_of_work import Reads

MOST_LISTED: Final = 200
HOUR_NS: Final = 3_600e9


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """Something that was noticed in a job."""

    attempt: int
    number: int
    """Counts those of the attempt; a later one may have a smaller number."""
    kind: NoticeKind
    ranks: list[int]
    """Global ranks to blame; empty where none is."""
    hosts: list[str]
    factor: float | None
    """How many times as long it takes; null of a hang or silence."""
    from_step: int
    noticed_step: int
    noticed_time_ns: int
    """By the clock of the host, since the epoch."""
    noticed_at: datetime
    """By the server's clock."""
    cleared_step: int | None
    """The first step that is as before; null while it goes on."""
    evidence: Evidence
    cleared_at: datetime | None
    """When it ended by the server's clock."""
    outcome: Outcome | None
    """What a session that was asked for says of it."""
    session: uuid.UUID | None
    """That session."""
    cause: str
    """That it names; empty: none."""
    gpu_hours: float
    """What it has cost."""


_NOTICES: Final = TypeAdapter(list[NoticeRow])


def notices_of_job(tx: Reads, job: str, most: int = MOST_LISTED) -> list[NoticeRow]:
    """Return what was noticed in a job, the latest first."""
    return notices([row._asdict() for row in tx.session.execute(_noticed(job, most))])


def notices(rows: object) -> list[NoticeRow]:
    """Return the rows that `notices_query` found."""
    return _NOTICES.validate_python(rows or ())


def notices_query(job: str, most: int) -> ScalarSelect[Any]:
    """Return the query of what was noticed in a job, the latest first, as JSON."""
    return as_json(_noticed(job, most))


def _noticed(job: str, most: int) -> Select[*tuple[Any, ...]]:
    return (
        select(
            PulseNotice.attempt,
            PulseNotice.number,
            PulseNotice.kind,
            PulseNotice.ranks,
            PulseNotice.hosts,
            PulseNotice.factor,
            PulseNotice.from_step,
            PulseNotice.noticed_step,
            PulseNotice.noticed_time_ns,
            PulseNotice.noticed_at,
            PulseNotice.cleared_step,
            type_coerce(PulseNotice.evidence, JSONB).label("evidence"),
            PulseNotice.cleared_at,
            PulseNotice.outcome,
            PulseNotice.session_id.label("session"),
            PulseNotice.cause,
            (func.greatest(PulseNotice.lost_ns, 0.0) / HOUR_NS).label("gpu_hours"),
        )
        .join(Job, Job.id == PulseNotice.job_id)
        .where(Job.name == job)
        .order_by(PulseNotice.noticed_at.desc(), PulseNotice.number.desc())
        .limit(most)
    )


def wrong_clocks(tx: Reads, job: str) -> Mapping[str, float]:
    """Return the hosts of a job's last attempt whose clocks are wrong, and by how many seconds."""
    found = tx.session.execute(
        select(PulseState.clocks)
        .join(Job, Job.id == PulseState.job_id)
        .where(Job.name == job)
        .order_by(PulseState.attempt.desc())
        .limit(1)
    ).scalar()
    return found or {}


def left_out(tx: Reads, job: str) -> Mapping[str, int]:
    """Return how much of a job's pulse was left out, by code."""
    counts: Counter[str] = Counter()
    for of_attempt in tx.session.execute(
        select(PulseState.counts).join(Job, Job.id == PulseState.job_id).where(Job.name == job)
    ).scalars():
        counts.update(of_attempt)
    return dict(sorted(counts.items()))
