"""The sessions of one job: page by page over a time, and those around one of them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter
from sqlalchemy import and_, func, or_, select

from app.analysis.trace.ranks.links import KEY as LINKS
from app.analysis.trace.ranks.links import sound_links
from app.db.json_values import as_json
from app.db.models.sessions import OF_SESSION, SLOWDOWN, Job, Session
from app.lists.listing import read, read_page
from app.services.alerts.onset import Onset, first_slow
from app.services.sessions.fleet import FLEET_SESSIONS
from app.services.sessions.read import SESSIONS, SessionRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from app.db.unit_of_work import Reads
    from app.lists.listing import PageRequest
    from app.lists.pages import Page

_ONSETS: Final = TypeAdapter(tuple[Onset | None])
# Sessions on a page.
PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The sessions of a job in a time."""

    page: Page[SessionRow]
    # verdicts, slow: how many of these have a verdict, and are slow
    verdicts: int
    slow: int
    worst: float | None  # the largest slowdown
    # the newest session with a verdict that is not slow, of any time
    last_good: uuid.UUID | None = None
    onset: Onset | None = None  # since when it has been slow by the end of that time
    # of the latest session, of any time: addresses by what they are called
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Around:
    """A session among those of its job."""

    sessions: Sequence[SessionRow]  # it, and the latest before it; oldest first
    after: SessionRow | None  # the next one


def job_history(  # noqa: PLR0913 - what an address may ask for
    tx: Reads,
    job: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    request: PageRequest,
    slow: float,
) -> JobHistory:
    """Return the sessions of a job in a time.

    Parameters
    ----------
    since, until : datetime, optional
        When they were received.
    slow : float
        From this slowdown on a session is slow.
    """
    here = [Job.name == job]
    if since is not None:
        here.append(Session.received_at >= since)
    if until is not None:
        here.append(Session.received_at <= until)
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
    total, verdicts, slow_ones, worst, good, since_when, said = tx.session.execute(
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
        .where(*here)
    ).one()
    page = read_page(tx, SESSIONS, request, *here, total=total)
    [began] = _ONSETS.validate_python(since_when or (None,))
    return JobHistory(page, verdicts, slow_ones, worst, good, began, sound_links(said))


def around(tx: Reads, row: SessionRow) -> Around:
    """Return the sessions of a job before one of them, and the one after it."""
    same_time = Session.received_at == row.received_at
    earlier = or_(Session.received_at < row.received_at, and_(same_time, Session.id >= row.id))
    later = or_(Session.received_at > row.received_at, and_(same_time, Session.id < row.id))
    newest_first = (Session.received_at.desc(), Session.id)
    of_job = select(Session.id).join(Job).where(Job.name == row.job)
    before = of_job.where(earlier).order_by(*newest_first).limit(FLEET_SESSIONS)
    after = of_job.where(later).order_by(Session.received_at, Session.id.desc()).limit(1)
    found = read(
        tx,
        SESSIONS,
        or_(Session.id.in_(before.correlate(None)), Session.id.in_(after.correlate(None))),
    )
    own = next(at for at, one in enumerate(found) if one.id == row.id)
    return Around(found[own:][::-1], found[own - 1] if own else None)
