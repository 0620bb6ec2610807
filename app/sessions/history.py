"""Sessions by job: latest sessions, a job's history in pages, neighbors of a session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import and_, func, or_, select

from app.analysis.trace.rank_metadata import KEY as LINKS
from app.analysis.trace.rank_metadata import valid_links
from app.incidents.everywhere import Onset, first_slow
from app.incidents.grouping import is_finished
from app.jobs.models import Job
from app.platform.database.columns import as_json
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import OF_SESSION, SLOWDOWN, Session
from app.sessions.read import SESSIONS, SessionRow
from app.web.lists import Page, PageRequest, read, read_page


def verdict_values(sessions: Sequence[SessionRow]) -> list[float | None]:
    """Return the slowdowns of finished sessions in their order; None without a verdict."""
    return [
        None if session.headline is None else session.headline.slowdown
        for session in sessions
        if session.state not in SessionState.UNDERWAY
    ]


# Latest sessions of each job in a list of jobs: the points of the job's sparkline.
FLEET_SESSIONS: Final = 24


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job and its latest sessions, oldest first; it has at least one session."""

    name: str
    sessions: tuple[SessionRow, ...]
    archived: bool = False
    finished: bool = False  # whether the job has reported its end

    @property
    def latest(self) -> SessionRow:
        """Return the job's session that was received last."""
        return self.sessions[-1]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Jobs by name, with the database's time at which they were read."""

    now: datetime
    jobs: tuple[JobSummary, ...]


def fleet(
    tx: Reads,
    *,
    job: str | None = None,
    per_job: int = FLEET_SESSIONS,
    until: datetime | None = None,
) -> Fleet:
    """Return each job with its latest sessions; an archived job with those since its archiving.

    Parameters
    ----------
    job : str, optional
        Only the job of this name, archived or not; none if there is no such job.
    per_job : int
        Limit of the sessions of a job.
    until : datetime, optional
        Only sessions received until then.
    """
    recent = func.row_number().over(
        partition_by=Session.job_id, order_by=(Session.received_at.desc(), Session.id)
    )
    # The subquery sorts only keys, since rows of sessions are long.
    ranked = select(Session.id, recent.label("recent")).join(Job)
    if job is not None:
        ranked = ranked.where(Job.name == job)
    else:
        sent_since = Session.received_at > Job.archived_at
        ranked = ranked.where(or_(Job.archived_at.is_(None), sent_since))
    if until is not None:
        ranked = ranked.where(Session.received_at <= until)
    rows = ranked.subquery()
    query = (
        SESSIONS.query()
        .add_columns(Job.archived_at, Job.finished_at)
        .join(rows, rows.c.id == Session.id)
        .where(rows.c.recent <= per_job)
        .order_by(Job.name, rows.c.recent.desc())
    )
    by_job: dict[str, list[SessionRow]] = {}
    archived, finished_at = set(), {}
    values = tx.session.execute(query).mappings().all()
    for row, value in zip(SESSIONS.rows(values), values, strict=True):
        by_job.setdefault(row.job, []).append(row)
        if value["archived_at"] is not None:
            archived.add(row.job)
        finished_at[row.job] = value["finished_at"]
    jobs = (
        JobSummary(
            name,
            tuple(rows),
            name in archived,
            is_finished(finished_at[name], [rows[-1].received_at]),
        )
        for name, rows in by_job.items()
    )
    return Fleet(tx.now, tuple(jobs))


_ONSETS: Final = TypeAdapter(tuple[Onset | None])
# Number of sessions on a page of the history.
PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class JobHistory:
    """A page of a job's sessions in a time range, with statistics of the range."""

    page: Page[SessionRow]
    verdicts: int  # sessions with a verdict
    slow: int  # slow sessions
    worst: float | None  # the largest slowdown
    last_good: uuid.UUID | None = None
    """The newest session with a verdict that is not slow, of any time."""
    onset: Onset | None = None
    """The start of the slowness that lasts at the end of the range."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Addresses by title, from the metadata of the latest session of any time."""


@dataclass(frozen=True, slots=True)
class Around:
    """A session with the earlier sessions and the next session of its job."""

    sessions: Sequence[SessionRow]  # the session and the earlier ones, oldest first
    after: SessionRow | None


def job_history(  # noqa: PLR0913 - what an address may ask for
    tx: Reads,
    job: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    request: PageRequest,
    slow: float,
) -> JobHistory:
    """Return a page of a job's sessions in a time range, with statistics of the range.

    Parameters
    ----------
    since, until : datetime, optional
        Time range in which the sessions were received.
    slow : float
        Slowdown from which on a session counts as slow.
    """
    in_range = [Job.name == job]
    if since is not None:
        in_range.append(Session.received_at >= since)
    if until is not None:
        in_range.append(Session.received_at <= until)
    last_good = (
        select(Session.id)
        .join(Job)
        .join(*OF_SESSION)
        .where(Job.name == job, slow > SLOWDOWN)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(1)
        .correlate(None)
    )
    onset = first_slow(job, tx.now if until is None else until, slow).correlate(None)
    links = (
        select(Session.meta[LINKS])
        .join(Job)
        .where(Job.name == job)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(1)
        .correlate(None)
    )
    total, verdicts, slow_sessions, worst, good, onsets, addresses = tx.session.execute(
        select(
            func.count(),
            func.count(SLOWDOWN),
            func.count().filter(SLOWDOWN.op(">=")(slow)),
            func.max(SLOWDOWN),
            last_good.scalar_subquery(),
            as_json(onset),
            links.scalar_subquery(),
        )
        .select_from(Session)
        .join(Job)
        .outerjoin(*OF_SESSION)
        .where(*in_range)
    ).one()
    page = read_page(tx, SESSIONS, request, *in_range, total=total)
    [slow_since] = _ONSETS.validate_python(onsets or (None,))
    return JobHistory(
        page, verdicts, slow_sessions, worst, good, slow_since, valid_links(addresses)
    )


def around(tx: Reads, row: SessionRow) -> Around:
    """Return a session with the earlier sessions of its job and the next session."""
    same_time = Session.received_at == row.received_at
    earlier = or_(Session.received_at < row.received_at, and_(same_time, Session.id >= row.id))
    later = or_(Session.received_at > row.received_at, and_(same_time, Session.id < row.id))
    newest_first = (Session.received_at.desc(), Session.id)
    of_job = select(Session.id).join(Job).where(Job.name == row.job)
    before = of_job.where(earlier).order_by(*newest_first).limit(FLEET_SESSIONS)
    after = of_job.where(later).order_by(Session.received_at, Session.id.desc()).limit(1)
    sessions = read(
        tx,
        SESSIONS,
        or_(Session.id.in_(before.correlate(None)), Session.id.in_(after.correlate(None))),
    )
    own = next(at for at, session in enumerate(sessions) if session.id == row.id)
    return Around(sessions[own:][::-1], sessions[own - 1] if own else None)
