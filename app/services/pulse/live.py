"""The read side of a job while it runs: its pace, the last minutes, notices, what is asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
from sqlalchemy import select, true, tuple_

from app.analysis.pulse.evidence.pace import Pace
from app.db.models.noticed import PulseState
from app.db.models.sessions import Job
from app.services.pulse.read import NoticeRow, notices, notices_query
from app.services.pulse.recordings import PATIENCE, open_requests
from app.services.pulse.spans import Resolution, SpanRow, spans, spans_query

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

# Minutes that a page shows.
MINUTES: Final = 720
MOST_NOTICES: Final = 20
# Of the latest steps, whose median is the step time now.
_LATEST: Final = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A session that the job is asked for and that has not come."""

    steps: int
    reason: str
    handed: bool
    """Whether the job was told."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job's latest attempt that sent a pulse."""

    job: str
    now: datetime
    attempt: int
    heard_at: datetime
    """When rows of its pulse were read last."""
    sends: bool
    """Whether it can be asked to record: its pulse came not long ago."""
    ranks: int
    step_s: float | None
    """The median of its latest 20 steps; null of fewer than one."""
    minutes: list[SpanRow]
    """Of the last `MINUTES`, of all attempts, the earliest first."""
    notices: list[NoticeRow]
    """The latest first."""
    asked: Asked | None

    @property
    def open(self) -> list[NoticeRow]:
        """Return what goes on, the latest first."""
        return [notice for notice in self.notices if notice.cleared_at is None]


def live_job(tx: Reads, job: str) -> LiveJob | None:
    """Return a job as its pulse shows it, with one statement; None of one that never sent any."""
    of_job = (
        select(PulseState.job_id, PulseState.attempt)
        .join(Job, Job.id == PulseState.job_id)
        .where(Job.name == job, PulseState.advanced_at.is_not(None))
        .order_by(PulseState.attempt.desc())
        .limit(1)
        .subquery()
    )
    asked = open_requests(tx.now, of_job.c.job_id, of_job.c.attempt).limit(1).lateral()
    since = tx.now - timedelta(minutes=MINUTES)
    state = tx.session.execute(
        select(
            PulseState.attempt,
            PulseState.advanced_at,
            PulseState.pace,
            notices_query(job, MOST_NOTICES).label("notices"),
            spans_query(job, since, tx.now, Resolution.MINUTE).label("minutes"),
            asked.c.steps,
            asked.c.reason,
            asked.c.handed_at,
        )
        .join(of_job, tuple_(*of_job.c) == tuple_(PulseState.job_id, PulseState.attempt))
        .outerjoin(asked, true())
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
        asked=None
        if state.steps is None
        else Asked(state.steps, state.reason, state.handed_at is not None),
    )
