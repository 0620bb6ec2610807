"""Seal a session: no more chunks come, analyze what is there.

A request says so, every producer has sent its last chunk, or nothing came for so long that nothing
will. While a session is recorded, its job may pause for longer, as for a checkpoint; once the first
producer has sent its last chunk, the session is recorded, and the others' chunks are on their way.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import func, select, update

from app.db.models.chunks import Chunk, Intake
from app.db.models.sessions import Job, Session
from app.db.models.tasks import ANALYZE_SESSION
from app.db.states import SealedBy, SessionState
from app.errors import ConflictError, NotFoundError
from app.services.sessions.transition import move_session

if TYPE_CHECKING:
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# A session is sealed after this time without a chunk, or after this multiple of the longest pause
# that it had so far: slow jobs are sampled with pauses of minutes.
SILENCE_S: Final = 120.0
SILENT_GAPS: Final = 5.0

# Sealed in one pass of the sweeper, whose transaction should stay short.
SEALED_A_PASS: Final = 64

# The key of the metadata that lists the producers to wait for.
PRODUCERS_KEY: Final = "producers"
# The key for the longest pause between two chunks that a producer expects, in seconds.
PAUSE_KEY: Final = "pause_s"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SealReceipt:
    """A sealed session; `sealed` unless it was so before."""

    session: uuid.UUID
    state: SessionState
    sealed: bool


def seal_session(container: Container, job: str, attempt: int, number: int) -> SealReceipt:
    """Seal a session and queue its analysis; a sealed one stays as it is.

    Raises
    ------
    NotFoundError
        If there is no such session.
    ConflictError
        ``session.whole``: it came in one body.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.id, Intake.session_id)
            .join(Job)
            .outerjoin(Intake, Intake.session_id == Session.id)
            .where(Job.name == job, Session.attempt == attempt, Session.number == number)
        ).one_or_none()
        if row is None:
            raise NotFoundError(f"The job has no session {number} in attempt {attempt}.")
        session_id, intake = row
        if intake is None:
            raise no_chunks(number)
        sealed = seal(tx, session_id, "request")
        state = tx.session.execute(
            select(Session.state).where(Session.id == session_id)
        ).scalar_one()
    if sealed:
        log.info("session sealed", session=str(session_id), job=job, number=number)
    return SealReceipt(session_id, state, sealed)


def seal(tx: UnitOfWork, session_id: uuid.UUID, by: SealedBy) -> bool:
    """Seal a session that came in chunks and queue its analysis; False where it was sealed.

    The update waits for a chunk that is being added, and decides between two that seal.
    """
    project_id = tx.session.execute(
        update(Intake)
        .where(Intake.session_id == session_id, Intake.sealed_at.is_(None))
        .values(sealed_at=tx.now, sealed_by=by)
        .returning(Intake.project_id)
    ).scalar()
    if project_id is None:
        return False
    move_session(tx, session_id, state=SessionState.QUEUED)
    tx.enqueue(ANALYZE_SESSION, session_id, project_id)
    return True


def seal_silent(tx: UnitOfWork, limit_s: float) -> int:
    """Seal sessions of which nothing was heard for too long; return how many.

    Parameters
    ----------
    limit_s : float
        Seconds after which silence is too long, whatever the pauses were.
    """
    silence_s = func.least(
        func.greatest(SILENCE_S, SILENT_GAPS * Intake.longest_gap_s, Intake.pause_s), limit_s
    )
    # SKIP LOCKED: a chunk is coming in right now.
    silent = tx.session.execute(
        select(Intake.session_id)
        .where(
            Intake.sealed_at.is_(None),
            func.extract("epoch", tx.now - Intake.last_chunk_at) > silence_s,
        )
        .order_by(Intake.last_chunk_at)
        .limit(SEALED_A_PASS)
        .with_for_update(skip_locked=True)
    ).scalars()
    return sum(seal(tx, session_id, "silence") for session_id in silent.all())


def silence(longest_gap_s: float, limit_s: float, pause_s: float = 0.0) -> timedelta:
    """Return the silence after which a session is sealed; `seal_silent` says it in SQL."""
    longest_s = max(SILENCE_S, SILENT_GAPS * longest_gap_s, pause_s)
    return timedelta(seconds=min(longest_s, limit_s))


def is_complete(tx: UnitOfWork, session: Session, producer: str) -> bool:
    """Return whether all expected producers are complete, after a chunk of `producer`.

    A producer is complete when its chunk of the highest number is final and none below is missing.
    Expected are those that the metadata names, else all that sent anything, once their operations
    cover every cell of the DP × PP grid.
    """
    complete = (
        select(Chunk.producer)
        .where(Chunk.session_id == session.id)
        .group_by(Chunk.producer)
        .having(
            func.max(Chunk.number) + 1 == func.count(),
            func.max(Chunk.number) == func.max(Chunk.number).filter(Chunk.final),
        )
    )
    # Most chunks are not their producer's last one: theirs alone are looked at.
    if tx.session.execute(complete.where(Chunk.producer == producer)).first() is None:
        return False
    done = set(tx.session.execute(complete).scalars())
    expected = session.meta.get(PRODUCERS_KEY)
    if isinstance(expected, list) and expected:
        return {str(name) for name in expected} <= done
    known = set(
        tx.session.execute(
            select(Chunk.producer).where(Chunk.session_id == session.id).distinct()
        ).scalars()
    )
    return known == done and _cells_seen(tx, session.id) == session.dp * session.pp


def no_chunks(number: int) -> ConflictError:
    """Return what is raised where a session that came in one body is asked to take chunks."""
    return ConflictError(f"Session {number} came whole, in one body.", code="session.whole")


def _cells_seen(tx: UnitOfWork, session_id: uuid.UUID) -> int:
    cells = (
        select(func.unnest(Chunk.cells)).where(Chunk.session_id == session_id).distinct().subquery()
    )
    return tx.session.execute(select(func.count()).select_from(cells)).scalar_one()
