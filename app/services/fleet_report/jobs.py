"""The jobs of a fleet in the figures of the paper, and the time that these are of."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from app.analysis.replay.metrics import STRAGGLING
from app.db.models.sessions import OF_SESSION, Job, Session, StoredVerdict
from app.services.fleet_report.filters import EVERYTHING, ReportFilter
from app.services.hosts.costs import Span

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

# What a time without a beginning is counted from.
WEEK: Final = timedelta(days=7)
# Shorter times have no period to compare.
SHORTEST: Final = timedelta(minutes=1)
# Jobs whose figures are drawn; the counts are of all.
MOST_JOBS: Final = 20_000


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job in the figures: its median session by S, of those with a verdict.

    Fields are those of `app.analysis.report.paper.PaperMeasures`, and the slowdown is S.
    """

    job: str
    session: uuid.UUID
    number: int
    sessions: int
    gpus: int
    stages: int
    context: int | None
    slowdown: float
    m_w: float | None
    m_s: float | None
    correlation: float | None
    waste_by: Mapping[str, float]
    steps: Sequence[float]

    @property
    def waste(self) -> float:
        """Return the share of its step time that is wasted, by S."""
        return 1 - 1 / self.slowdown

    @property
    def straggles(self) -> bool:
        """Return whether it straggles, as the paper has it."""
        return self.slowdown >= STRAGGLING


def span_of(tx: Reads, since: datetime | None, until: datetime | None) -> Span:
    """Return the time that a report is of.

    Parameters
    ----------
    since : datetime or None
        A week before the end where there is none.
    until : datetime or None
        Now where there is none, or it is yet to come.
    """
    end = tx.now if until is None else min(until, tx.now)
    return Span(end - WEEK if since is None else min(since, end - SHORTEST), end)


def job_figures(
    tx: Reads, since: datetime | None, until: datetime | None, filters: ReportFilter = EVERYTHING
) -> tuple[JobFigures, ...]:
    """Return each job with its median session: one that was, so that it can be opened.

    By S, the slowest first; of the time that `span_of` returns.
    """
    span = span_of(tx, since, until)
    published = StoredVerdict.published
    place = func.row_number().over(partition_by=Session.job_id, order_by=(published, Session.id))
    ranked = (
        select(
            Session.id.label("session_id"),
            place.label("place"),
            func.count().over(partition_by=Session.job_id).label("sessions"),
        )
        .join(*OF_SESSION)
        .where(
            published.is_not(None),
            *span.holds(Session.received_at.expression),
            *filters.of(Session.labels.expression),
        )
        .subquery()
    )
    measures = StoredVerdict.document["measures"]
    rows = tx.session.execute(
        select(
            Job.name,
            Session.id,
            Session.number,
            ranked.c.sessions,
            Session.world,
            Session.pp,
            measures["context"].as_integer(),
            published,
            measures["m_w"].as_float(),
            measures["m_s"].as_float(),
            measures["fb_correlation"].as_float(),
            type_coerce(measures["waste"], JSONB),
            type_coerce(measures["steps"], JSONB),
        )
        .join(ranked, ranked.c.session_id == Session.id)
        .join(*OF_SESSION)
        .join(Job, Job.id == Session.job_id)
        .where(ranked.c.place == (ranked.c.sessions + 1) // 2)
        .order_by(published.desc(), Job.name)
        .limit(MOST_JOBS)
    )
    # More columns than the types of a row go: their order is that of the fields.
    return tuple(JobFigures(*values) for values in map(tuple, rows))
