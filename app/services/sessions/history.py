"""The sessions of one job: page by page over a time, and those around one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, and_, func, or_, select

from app.db.models.sessions import OF_SESSION, SLOWDOWN, Job, Session, StoredVerdict
from app.services.sessions.fleet import FLEET_SESSIONS
from app.services.sessions.read import SessionRow, session_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from app.db.unit_of_work import Reads

# Sessions on a page.
PAGE: Final = 100

# What the sessions of a job are sorted by; a minus sign in front of its name turns it round.
SORTS: Final[Mapping[str, ColumnElement[Any]]] = {
    "received": Session.received_at.expression,
    "session": Session.number.expression,
    "state": Session.state.expression,
    "slowdown": SLOWDOWN,
    "lost": Session.world * (1 - 1 / SLOWDOWN),
    "discrepancy": StoredVerdict.discrepancy.expression,
    "steps": Session.steps.expression,
    "operations": Session.operations.expression,
}
NEWEST: Final = "-received"


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The sessions of a job in a time."""

    rows: Sequence[SessionRow]  # of one page, in the order asked for
    page: int  # its number, from 1
    total: int  # sessions in all
    # verdicts, slow: how many of these have a verdict, and are slow
    verdicts: int
    slow: int
    worst: float | None  # the largest slowdown

    @property
    def pages(self) -> int:
        """Return how many pages there are."""
        return max(1, -(-self.total // PAGE))


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
    sort: str = NEWEST,
    page: int = 1,
    slow: float,
) -> JobHistory:
    """Return the sessions of a job in a time.

    Parameters
    ----------
    since, until : datetime, optional
        When they were received.
    sort : str
        A name in `SORTS`, with a minus sign for the largest first; those without a value come last.
    page : int
        The last one where there are not that many.
    slow : float
        From this slowdown on a session is slow.
    """
    here = [Job.name == job]
    if since is not None:
        here.append(Session.received_at >= since)
    if until is not None:
        here.append(Session.received_at <= until)
    total, verdicts, slow_ones, worst = tx.session.execute(
        select(
            func.count(),
            func.count(SLOWDOWN),
            func.count().filter(SLOWDOWN.op(">=")(slow)),
            func.max(SLOWDOWN),
        )
        .select_from(Session)
        .join(Job)
        .outerjoin(*OF_SESSION)
        .where(*here)
    ).one()
    page = min(max(page, 1), max(1, -(-total // PAGE)))
    rows = tx.session.execute(
        session_rows().where(*here).order_by(*_order(sort)).limit(PAGE).offset(PAGE * (page - 1))
    )
    return JobHistory(
        rows=[SessionRow(*row) for row in rows],
        page=page,
        total=total,
        verdicts=verdicts,
        slow=slow_ones,
        worst=worst,
    )


def around(tx: Reads, row: SessionRow) -> Around:
    """Return the sessions of a job before one of them, and the one after it."""
    same_time = Session.received_at == row.received_at
    earlier = or_(Session.received_at < row.received_at, and_(same_time, Session.id >= row.id))
    later = or_(Session.received_at > row.received_at, and_(same_time, Session.id < row.id))
    before = tx.session.execute(
        session_rows()
        .where(Job.name == row.job, earlier)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(FLEET_SESSIONS)
    )
    after = tx.session.execute(
        session_rows()
        .where(Job.name == row.job, later)
        .order_by(Session.received_at, Session.id.desc())
        .limit(1)
    ).one_or_none()
    return Around(
        [SessionRow(*found) for found in before][::-1],
        None if after is None else SessionRow(*after),
    )


def _order(sort: str) -> list[ColumnElement[Any]]:
    column = SORTS.get(sort.removeprefix("-"))
    if column is None:
        return _order(NEWEST)
    first = column.desc() if sort.startswith("-") else column.asc()
    return [first.nulls_last(), Session.received_at.desc(), Session.id.asc()]
