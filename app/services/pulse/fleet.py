"""The jobs of a project whose pulse comes now: what a list of jobs says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import exists, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by, distinct_on

from app.db.models.noticed import PulseNotice, PulseSpan, PulseState
from app.db.models.sessions import Job, Session
from app.services.pulse.keep import MINUTE

if TYPE_CHECKING:
    from sqlalchemy import Subquery
    from sqlalchemy.orm import InstrumentedAttribute

    from app.db.unit_of_work import Reads

# Larger jobs come first.
MOST_JOBS: Final = 500
# A job whose pulse was read less long ago runs.
_SINCE: Final = timedelta(minutes=2)
# Of its last minute: steps may be minutes long.
_MINUTES: Final = timedelta(minutes=30)
# With whose typical minute the last one is compared.
_BEFORE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class LiveStep:
    """A job that runs, in its last minute."""

    job: str
    ranks: int
    step_s: float
    before_s: float
    """The median of the minutes of the last hour."""
    suspicions: Sequence[str]
    """Sentences of notices that are open, the latest first."""
    recorded: bool
    """Whether it has ever sent a session."""

    @property
    def change(self) -> float:
        """Return by how much a step takes longer than in the last hour, as a share."""
        return self.step_s / self.before_s - 1 if self.before_s else 0.0


def last_minutes(tx: Reads, *columns: InstrumentedAttribute[Any]) -> Subquery:
    """Return the last minute of each job that runs: `job_id`, and columns of `PulseSpan`."""
    return (
        select(PulseSpan.job_id, *columns)
        .join(PulseState, PulseState.job_id == PulseSpan.job_id)
        .where(
            PulseState.advanced_at > tx.now - _SINCE,
            PulseSpan.seconds == MINUTE,
            PulseSpan.start > tx.now - _MINUTES,
        )
        .ext(distinct_on(PulseSpan.job_id))
        .order_by(PulseSpan.job_id, PulseSpan.start.desc(), PulseSpan.attempt.desc())
        .subquery()
    )


def live_steps(tx: Reads) -> list[LiveStep]:
    """Return the jobs that run, those with most ranks first."""
    last = last_minutes(tx, PulseSpan.ranks, PulseSpan.step_median_s)
    before = (
        select(func.percentile_cont(0.5).within_group(PulseSpan.step_median_s))
        .where(
            PulseSpan.job_id == last.c.job_id,
            PulseSpan.seconds == MINUTE,
            PulseSpan.start > tx.now - _BEFORE,
        )
        .scalar_subquery()
    )
    sentence = PulseNotice.evidence["sentence"].astext
    suspicions = (
        select(func.array_agg(aggregate_order_by(sentence, PulseNotice.noticed_at.desc())))
        .where(PulseNotice.job_id == last.c.job_id, PulseNotice.cleared_at.is_(None))
        .scalar_subquery()
    )
    query = (
        select(
            Job.name,
            last.c.ranks,
            last.c.step_median_s,
            before,
            suspicions,
            exists().where(Session.job_id == last.c.job_id),
        )
        .join(Job, Job.id == last.c.job_id)
        .order_by(last.c.ranks.desc(), Job.name)
        .limit(MOST_JOBS)
    )
    return [
        LiveStep(job, ranks, step_s, before_s, said or (), recorded)
        for job, ranks, step_s, before_s, said, recorded in tx.session.execute(query)
    ]
