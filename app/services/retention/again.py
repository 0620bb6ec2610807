"""Use cases: analyze a session again, or many after an update.

What is there stays until the new analysis is through: a report is replaced as a whole.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import CursorResult, exists, func, or_, select, update

from app.db.models.chunks import Chunk
from app.db.models.sessions import Job, Session
from app.db.models.tasks import ANALYZE_SESSION
from app.db.states import SessionState
from app.errors import ConflictError
from app.services.access.audit import Action, record
from app.services.sessions.read import no_session

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# Queued in one transaction: each is a few statements.
BATCH: Final = 50


@dataclass(frozen=True, slots=True)
class Again:
    """A session that is to be analyzed; `queued` unless it was under way already."""

    session: uuid.UUID
    state: SessionState
    queued: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """Which sessions are analyzed again."""

    states: tuple[SessionState, ...] = (SessionState.FAILED,)
    """Of those that are through."""
    job: str | None = None
    """Only of this job."""
    before: datetime | None = None
    """Only those whose state is older: after an update, those that the version before analyzed."""


@dataclass(frozen=True, slots=True)
class ManyAgain:
    """How many sessions were queued, and how many more there are to queue.

    `before` is what to ask with for the rest: those that were queued are not found again.
    """

    queued: int
    left: int
    before: datetime


def analyze_again(container: Container, session_id: uuid.UUID) -> Again:
    """Queue another analysis of a session; one that is under way is not doubled.

    Raises
    ------
    NotFoundError
        If there is no such session.
    ConflictError
        ``session.open`` while its chunks arrive, ``session.trace_removed`` where nothing is left
        to analyze.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.state, Job.name, Session.number, _has_trace().label("has_trace"))
            .join(Job, Job.id == Session.job_id)
            .where(Session.id == session_id)
        ).one_or_none()
        if row is None:
            raise no_session(session_id)
        if row.state is SessionState.OPEN:
            raise ConflictError("The session's chunks still arrive.", code="session.open")
        if not row.has_trace and not row.state.underway:
            raise ConflictError(
                "The session's operations were deleted.", code="session.trace_removed"
            )
        queued = not row.state.underway and _queue(tx, session_id)
        if queued:
            record(
                tx,
                container.principal,
                Action.ANALYZED_AGAIN,
                f"session {row.number} of {row.name}",
            )
        state = tx.session.execute(
            select(Session.state).where(Session.id == session_id)
        ).scalar_one()
    return Again(session_id, state, queued)


def analyze_many_again(container: Container, selection: Selection, limit: int) -> ManyAgain:
    """Queue another analysis of many sessions, the newest first, in small transactions.

    Cut off in the middle, what was queued stays so; asked again, the rest follows.

    Parameters
    ----------
    limit : int
        Of how many at most: they wait in the same queue as what comes in.
    """
    queued = 0
    before = selection.before
    while True:
        with container.uow() as tx:
            before = before or tx.now
            wanted = (
                select(Session.id)
                .join(Job, Job.id == Session.job_id)
                .where(
                    Session.state.in_(selection.states),
                    Session.state.not_in(SessionState.UNDERWAY),
                    Session.state_changed_at < before,
                    _has_trace(),
                )
            )
            if selection.job is not None:
                wanted = wanted.where(Job.name == selection.job)
            some = min(BATCH, limit - queued)
            newest = wanted.order_by(Session.received_at.desc(), Session.id).limit(some)
            found = tx.session.execute(newest).scalars().all()
            done = sum(_queue(tx, session_id) for session_id in found)
            queued += done
            if done:
                record(tx, container.principal, Action.ANALYZED_AGAIN, "sessions", count=done)
            if len(found) == some and queued < limit:
                continue
            left = tx.session.execute(
                select(func.count()).select_from(wanted.subquery())
            ).scalar_one()
            break
    return ManyAgain(queued, left, before)


def _has_trace() -> ColumnElement[bool]:
    chunks = exists().where(Chunk.session_id == Session.id, Chunk.blob.is_not(None))
    return or_(Session.trace_blob.is_not(None), chunks)


def _queue(tx: UnitOfWork, session_id: uuid.UUID) -> bool:
    """Queue an analysis; False where another one was faster, or nothing is left to analyze.

    The task run comes first, as everywhere: no two of these transactions can deadlock.
    """
    with tx.session.begin_nested() as attempt:
        tx.enqueue(ANALYZE_SESSION, session_id)
        moved = cast(
            "CursorResult[Any]",
            tx.session.execute(
                update(Session)
                .where(
                    Session.id == session_id,
                    Session.state.not_in(SessionState.UNDERWAY),
                    _has_trace(),
                )
                .values(
                    state=SessionState.QUEUED,
                    state_changed_at=func.now(),
                    reason_code=None,
                    reason=None,
                    reason_detail=None,
                )
            ),
        ).rowcount
        if moved != 1:
            attempt.rollback()
            return False
    tx.notify_session(session_id)
    return True
