"""The largest jobs whose pulse comes now, over all projects: what metrics show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on

from app.db.models.access import Project
from app.db.models.noticed import PulseSpan, PulseState
from app.db.models.sessions import Job
from app.services.access.projects import is_there
from app.services.pulse.keep import MINUTE
from app.services.pulse.spans import SlowRank, slow_ranks

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

MOST_JOBS: Final = 20
# A job of which no minute was whole since then does not run.
SINCE: Final = timedelta(minutes=10)
# After its end, until its last steps are there.
WHOLE: Final = timedelta(seconds=MINUTE + 15)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in its last whole minute."""

    project: str
    job: str
    ranks: int
    step_s: float
    tokens_per_s: float | None
    lost_gpu_hours: float
    """Of all attempts since its first pulse."""
    slowest: list[SlowRank]


def running_jobs(tx: Reads) -> list[RunningJob]:
    """Return the jobs with most ranks, at most `MOST_JOBS`; for a transaction of all projects."""
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
