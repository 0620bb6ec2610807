"""Queries of a job's notices, of a running job for its page, and of the largest running jobs."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter
from sqlalchemy import ScalarSelect, Select, func, select, true, tuple_, type_coerce
from sqlalchemy.dialects.postgresql import JSONB, distinct_on

from app.analysis.pulse.notices import Evidence, NoticeKind
from app.analysis.pulse.step_pace import Pace
from app.incidents.models.facts import Outcome
from app.jobs.models import Job
from app.platform.database.columns import as_json
from app.platform.database.projects import Project, is_there
from app.platform.database.unit_of_work import Reads
from app.pulse.keep import MINUTE
from app.pulse.models import PulseNotice, PulseSpan, PulseState
from app.pulse.recordings import PATIENCE, open_requests
from app.pulse.spans import Resolution, SlowRank, SpanRow, slow_ranks, spans, spans_query

MOST_LISTED: Final = 200
HOUR_NS: Final = 3_600e9


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A notice of a job."""

    attempt: int
    number: int
    """Number within the attempt; a later notice may have a smaller one."""
    kind: NoticeKind
    ranks: list[int]
    """Blamed global ranks; may be empty."""
    hosts: list[str]
    factor: float | None
    """Duration of the slow steps as a multiple of the normal one; null for a hang or silence."""
    from_step: int
    noticed_step: int
    noticed_time_ns: int
    """When the slowdown was noticed, by the host's clock, nanoseconds since the epoch."""
    noticed_at: datetime
    """When the server noticed the slowdown, by the server's clock."""
    cleared_step: int | None
    """First step that is normal again; null while open."""
    evidence: Evidence
    cleared_at: datetime | None
    """When the notice was cleared, by the server's clock; null while open."""
    outcome: Outcome | None
    """Whether the requested session confirms the notice."""
    session: uuid.UUID | None
    """Id of the session that was recorded for the notice."""
    cause: str
    """Cause that the session names; may be empty."""
    gpu_hours: float
    """GPU-hours lost so far."""


_NOTICES: Final = TypeAdapter(list[NoticeRow])


def notices_of_job(tx: Reads, job: str, most: int = MOST_LISTED) -> list[NoticeRow]:
    """Return the notices of a job, the latest first."""
    return notices([row._asdict() for row in tx.session.execute(_noticed(job, most))])


def notices(rows: object) -> list[NoticeRow]:
    """Return the notices from a row of `notices_query`."""
    return _NOTICES.validate_python(rows or ())


def notices_query(job: str, most: int) -> ScalarSelect[Any]:
    """Return a query for the notices of a job as JSON, the latest first."""
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
    """Return the clock errors above two seconds in a job's last attempt, seconds by host."""
    clocks = tx.session.execute(
        select(PulseState.clocks)
        .join(Job, Job.id == PulseState.job_id)
        .where(Job.name == job)
        .order_by(PulseState.attempt.desc())
        .limit(1)
    ).scalar()
    return clocks or {}


def left_out(tx: Reads, job: str) -> Mapping[str, int]:
    """Return the number of dropped rows, columns and bodies of a job's pulse, by code."""
    counts: Counter[str] = Counter()
    for attempt_counts in tx.session.execute(
        select(PulseState.counts).join(Job, Job.id == PulseState.job_id).where(Job.name == job)
    ).scalars():
        counts.update(attempt_counts)
    return dict(sorted(counts.items()))


# Number of minutes that the page of a job shows.
MINUTES: Final = 720
MOST_NOTICES: Final = 20
# Number of latest steps whose median time is shown as the current step time.
_LATEST: Final = 20


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A requested session of a job that has not arrived yet."""

    steps: int
    reason: str
    handed: bool
    """Whether the job has received the request."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The pulse of a job: its latest attempt, minutes and notices."""

    job: str
    now: datetime
    attempt: int
    heard_at: datetime
    """When rows of its pulse were last read."""
    sends: bool
    """Whether its pulse is recent, so that an answer can request a session."""
    ranks: int
    step_s: float | None
    """Median duration of the latest 20 steps, seconds; null without steps."""
    minutes: list[SpanRow]
    """The last `MINUTES` minutes of all attempts, the earliest first."""
    notices: list[NoticeRow]
    """Notices, the latest first."""
    request: TraceRequest | None

    @property
    def open(self) -> list[NoticeRow]:
        """Return the notices that are not cleared, the latest first."""
        return [notice for notice in self.notices if notice.cleared_at is None]


def live_job(tx: Reads, job: str) -> LiveJob | None:
    """Return the pulse of a job, read with one statement; None if the job never sent a pulse."""
    of_job = (
        select(PulseState.job_id, PulseState.attempt)
        .join(Job, Job.id == PulseState.job_id)
        .where(Job.name == job, PulseState.advanced_at.is_not(None))
        .order_by(PulseState.attempt.desc())
        .limit(1)
        .subquery()
    )
    request = open_requests(tx.now, of_job.c.job_id, of_job.c.attempt).limit(1).lateral()
    since = tx.now - timedelta(minutes=MINUTES)
    state = tx.session.execute(
        select(
            PulseState.attempt,
            PulseState.advanced_at,
            PulseState.pace,
            notices_query(job, MOST_NOTICES).label("notices"),
            spans_query(job, since, tx.now, Resolution.MINUTE).label("minutes"),
            request.c.steps,
            request.c.reason,
            request.c.handed_at,
        )
        .join(of_job, tuple_(*of_job.c) == tuple_(PulseState.job_id, PulseState.attempt))
        .outerjoin(request, true())
    ).one_or_none()
    if state is None:
        return None
    pace = Pace.from_bytes(state.pace)
    return LiveJob(
        job=job,
        now=tx.now,
        attempt=state.attempt,
        heard_at=state.advanced_at,
        sends=state.advanced_at > tx.now - PATIENCE,
        ranks=pace.ranks(),
        step_s=float(np.median(pace.step_ns[-_LATEST:])) / 1e9 if len(pace.step_ns) else None,
        minutes=spans(state.minutes),
        notices=notices(state.notices),
        request=None
        if state.steps is None
        else TraceRequest(state.steps, state.reason, state.handed_at is not None),
    )


# Number of largest running jobs for which metrics are exported.
MOST_JOBS: Final = 20
# A job that has no whole minute within this time is not running.
SINCE: Final = timedelta(minutes=10)
# Age from which a minute is complete, since its last steps arrive up to 15 seconds after its end.
WHOLE: Final = timedelta(seconds=MINUTE + 15)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job with the measurements of its last whole minute."""

    project: str
    job: str
    ranks: int
    step_s: float
    tokens_per_s: float | None
    lost_gpu_hours: float
    """GPU-hours lost in all attempts since the first pulse."""
    slowest: list[SlowRank]


def running_jobs(tx: Reads) -> list[RunningJob]:
    """Return the `MOST_JOBS` running jobs of all projects with the most ranks."""
    last = (
        select(PulseSpan)
        .where(
            PulseSpan.seconds == MINUTE,
            PulseSpan.start >= tx.now - SINCE,
            PulseSpan.start <= tx.now - WHOLE,
        )
        .ext(distinct_on(PulseSpan.job_id))
        .order_by(PulseSpan.job_id, PulseSpan.start.desc(), PulseSpan.attempt.desc())
        .subquery()
    )
    lost = (
        select(func.sum(PulseState.lost_gpu_s))
        .where(PulseState.job_id == last.c.job_id)
        .scalar_subquery()
    )
    query = (
        select(last, Project.name.label("project"), Job.name.label("job"), lost.label("lost"))
        .join(Job, Job.id == last.c.job_id)
        .join(Project, Project.id == Job.project_id)
        .where(is_there(Job.project_id))
        .order_by(last.c.ranks.desc(), last.c.job_id)
        .limit(MOST_JOBS)
    )
    return [
        RunningJob(
            project=row.project,
            job=row.job,
            ranks=row.ranks,
            step_s=row.step_median_s,
            tokens_per_s=row.tokens / row.busy_s if row.tokens and row.busy_s else None,
            lost_gpu_hours=(row.lost or 0.0) / 3_600,
            slowest=slow_ranks(row),
        )
        for row in tx.session.execute(query)
    ]
