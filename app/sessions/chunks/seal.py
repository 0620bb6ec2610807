"""Seal a session: no more chunks come, analyze what is there.

A request says so, every producer has sent its last chunk, or nothing came for so long that nothing
will. While a session is recorded, its job may pause for longer, as for a checkpoint; once the first
producer has sent its last chunk, the session is recorded, and the others' chunks are on their way.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import structlog
from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.orm import InstrumentedAttribute

from app.errors import ConflictError, NotFoundError
from app.jobs.models import Job
from app.platform.blobs import delete_blob
from app.platform.container import Container
from app.platform.database.states import SealedBy, SessionState
from app.platform.database.task_runs import ANALYZE_SESSION
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.chunks.inbox import RefusedChunk, refused_chunks
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session

# ---- The change of a session's state, the same for every caller --------------------------------


def move_session(tx: UnitOfWork, session_id: uuid.UUID, **values: Any) -> None:  # noqa: ANN401 - columns differ in type
    """Set columns of a session that changes its state, and tell listeners on commit."""
    tx.session.execute(
        update(Session).where(Session.id == session_id).values(state_changed_at=tx.now, **values)
    )
    tx.notify_session(session_id)


# A session is sealed after this time without a chunk, or after this multiple of the longest pause
# that it had so far: slow jobs are sampled with pauses of minutes.
SILENCE_S: Final = 120.0
SILENT_GAPS: Final = 5.0

# Sealed in one pass of the sweeper, whose transaction should stay short.
SEALED_A_PASS: Final = 64

# Why a session is discarded of whose folder some files never came.
UPLOAD_INCOMPLETE: Final = "upload.incomplete"

# The key of the metadata that lists the producers to wait for.
PRODUCERS_KEY: Final = "producers"
# The key for the longest pause between two chunks that a producer expects, in seconds.
PAUSE_KEY: Final = "pause_s"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SealReceipt:
    """A sealed session; `sealed` unless it was so before.

    `refused` are chunks that could not be taken, of those that were decoded so far.
    """

    session: uuid.UUID
    number: int
    state: SessionState
    sealed: bool
    refused: tuple[RefusedChunk, ...] = ()


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
        refused = refused_chunks(tx, session_id)
    if sealed:
        log.info("session sealed", session=str(session_id), job=job, number=number)
    return SealReceipt(session_id, number, state, sealed, refused)


def seal(tx: UnitOfWork, session_id: uuid.UUID, by: SealedBy) -> bool:
    """Seal a session that came in chunks and queue its analysis; False where it was sealed.

    The lock waits for a chunk that is being added or appended to the inbox, and decides between
    two that seal: the analysis finds all that was acknowledged.
    """
    row = tx.session.execute(
        select(Intake.project_id, Intake.traceparent)
        .where(Intake.session_id == session_id, Intake.sealed_at.is_(None))
        .with_for_update()
    ).one_or_none()
    if row is None:
        return False
    tx.session.execute(
        update(Intake).where(Intake.session_id == session_id).values(sealed_at=tx.now, sealed_by=by)
    )
    move_session(tx, session_id, state=SessionState.QUEUED)
    # However it came to its end, the trace is that of its beginning.
    tx.enqueue(ANALYZE_SESSION, session_id, row.project_id, caused_by=row.traceparent)
    return True


def seal_silent(tx: UnitOfWork, limit_s: float) -> int:
    """Seal sessions of which nothing was heard for too long; return how many.

    Those of the files of a folder are discarded.

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
        select(Intake.session_id, Session.content_sha256.is_not(None).label("of_folder"))
        .join(Session, Session.id == Intake.session_id)
        .where(
            Intake.sealed_at.is_(None),
            func.extract("epoch", tx.now - Intake.last_chunk_at) > silence_s,
            # What waits for a worker was heard.
            ~_waits(Intake.session_id),
        )
        .order_by(Intake.last_chunk_at)
        .limit(SEALED_A_PASS)
        .with_for_update(of=Intake, skip_locked=True)
    ).all()
    for row in silent:
        if row.of_folder:
            _abandon(tx, row.session_id)
        else:
            seal(tx, row.session_id, "silence")
    return len(silent)


def _abandon(tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Discard a session of which a part of the files of its folder came, and no more will.

    Half a folder says nothing about a job. The same folder may be sent once more, as a new session.
    """
    tx.session.execute(
        update(Intake)
        .where(Intake.session_id == session_id)
        .values(sealed_at=tx.now, sealed_by="silence")
    )
    blobs = tx.session.execute(
        select(Chunk.blob).where(Chunk.session_id == session_id, Chunk.blob.is_not(None))
    ).scalars()
    for blob in blobs.all():
        delete_blob(tx, cast("uuid.UUID", blob))
    tx.session.execute(update(Chunk).where(Chunk.session_id == session_id).values(blob=None))
    move_session(
        tx,
        session_id,
        state=SessionState.DISCARDED,
        reason_code=UPLOAD_INCOMPLETE,
        reason="The upload of its folder stopped before all files were here: upload it again.",
        content_sha256=None,
        trace_removed_at=tx.now,
    )


def silence(longest_gap_s: float, limit_s: float, pause_s: float = 0.0) -> timedelta:
    """Return the silence after which a session is sealed; `seal_silent` says it in SQL."""
    longest_s = max(SILENCE_S, SILENT_GAPS * longest_gap_s, pause_s)
    return timedelta(seconds=min(longest_s, limit_s))


def is_complete(tx: UnitOfWork, session: Session) -> bool:
    """Return whether all expected producers are complete, of a session that takes chunks.

    A producer is complete when its chunk of the highest number is final and none below is missing.
    Expected are those that the metadata names, else all that sent anything, once their operations
    cover every cell of the DP × PP grid. What waits in the inbox is waited for.
    """
    last = select(Chunk).where(Chunk.session_id == session.id, Chunk.final).exists()
    found = tx.session.execute(select(last, _waits(session.id))).one()
    if not found[0] or found[1]:
        return False
    complete = (
        select(Chunk.producer)
        .where(Chunk.session_id == session.id)
        .group_by(Chunk.producer)
        .having(
            func.max(Chunk.number) + 1 == func.count(),
            func.max(Chunk.number) == func.max(Chunk.number).filter(Chunk.final),
        )
    )
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


def _waits(session_id: uuid.UUID | InstrumentedAttribute[uuid.UUID]) -> ColumnElement[bool]:
    """Return the condition that something of a session waits in the inbox."""
    return exists().where(InboxItem.session_id == session_id, InboxItem.code.is_(None))


def no_chunks(number: int) -> ConflictError:
    """Return what is raised where a session that came in one body is asked to take chunks."""
    return ConflictError(f"Session {number} came whole, in one body.", code="session.whole")


def _cells_seen(tx: UnitOfWork, session_id: uuid.UUID) -> int:
    cells = (
        select(func.unnest(Chunk.cells)).where(Chunk.session_id == session_id).distinct().subquery()
    )
    return tx.session.execute(select(func.count()).select_from(cells)).scalar_one()
