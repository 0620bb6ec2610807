"""The intake of a session in chunks: create it, add decoded chunks under its lock, seal it.

Sealing ends the intake and queues the analysis: on request, once every producer has sent its last
chunk, or after a silence. While a session is recorded, its job may pause for long, as for a
checkpoint; after the first producer's last chunk, only transfers are waited for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, cast

import numpy as np
import structlog
from sqlalchemy import ColumnElement, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute

from app.access.senders import check_sender, claim_attempt
from app.analysis.generation import WRITES
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.metadata import join_documents, metadata_document
from app.analysis.trace.model import Trace
from app.errors import BodyTooLargeError, ConflictError, InvalidFolderError, NotFoundError
from app.jobs.models import Job
from app.platform.blobs import Staged, delete_blob, write_blobs
from app.platform.container import Container
from app.platform.database.states import SealedBy, SessionState
from app.platform.database.task_runs import ANALYZE_SESSION
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.tasks.runs import take_from_older
from app.platform.telemetry import current
from app.quotas.usage import count
from app.sessions.chunks.inbox import ChunkPath, RefusedChunk, refused_chunks
from app.sessions.models.tables import PRODUCERS_KEY, Chunk, InboxItem, Intake, Session
from app.sessions.receive import claim_for_whole, make_job, next_number

log = structlog.get_logger(__name__)

# A session is sealed after this time without a chunk, or after this multiple of its longest pause
# so far if that is longer: slow jobs are sampled with pauses of minutes.
SILENCE_S: Final = 120.0
SILENT_GAPS: Final = 5.0

# Limit of the sessions that one pass of the sweeper seals: the pass is one transaction, which has
# to stay short.
SEALED_A_PASS: Final = 64

# Reason code of a session that is discarded because files of its folder are missing.
UPLOAD_INCOMPLETE: Final = "upload.incomplete"

# Metadata key: the longest pause between two chunks that a producer expects, in seconds.
PAUSE_KEY: Final = "pause_s"

# A folder counts as incomplete after this time without another file.
FOLDER_SILENCE_S: Final = 3600.0


def move_session(tx: UnitOfWork, session_id: uuid.UUID, **values: Any) -> None:  # noqa: ANN401 - columns differ in type
    """Set columns of a session with a new state; notify the event streams on commit."""
    tx.session.execute(
        update(Session).where(Session.id == session_id).values(state_changed_at=tx.now, **values)
    )
    tx.notify_session(session_id)


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """A decoded chunk, with its operations packed for storage."""

    producer: str
    number: int
    sha256: bytes
    size: int
    """Bytes as sent."""
    final: bool
    received_at: datetime
    decoded: Decoded
    staged: Staged


@dataclass(slots=True)
class ChunkWriter:
    """Adds decoded chunks to one session in one transaction, while its intake is locked.

    Chunks come in any order, from many producers at once, and may meet the end of the session. The
    lock excludes other writers and sealing, not senders who append to the inbox.
    """

    session: Session
    intake: Intake
    producers: set[str]
    """Producers that have a chunk in the session, among those of this transaction."""
    size: int = 0
    operations: int = 0
    blobs: dict[uuid.UUID, Staged] = field(default_factory=dict)

    def add(self, container: Container, tx: UnitOfWork, chunk: DecodedChunk) -> None:
        """Add a decoded chunk to the session.

        Raises
        ------
        InvalidMetadataError, ConflictError, InvalidFolderError, BodyTooLargeError
            The chunk contradicts the session, which stays unchanged.
        """
        session, intake = self.session, self.intake
        trace = chunk.decoded.trace
        added_format = chunk.decoded.trace_format
        # Times relative to the start of their step cannot be combined with clock readings.
        if FORMATS[session.trace_format].step_relative != FORMATS[added_format].step_relative:
            raise ConflictError(
                f"The session's chunks are {session.trace_format}; {added_format} has times of "
                "another kind.",
                code="session.formats_mixed",
            )
        if session.content_sha256 is not None:
            check_same_format(session.trace_format, added_format, chunk.producer)
        if session.operations + len(trace) > container.settings.max_rows:
            raise BodyTooLargeError(
                f"The session would have over {container.settings.max_rows} operations.",
                code="body.too_many_rows",
            )
        if intake.chunks:
            session.meta = join_documents(session.meta, trace.meta)
            session.labels = dict(session.meta.get("labels", {}))
            gap_s = (chunk.received_at - intake.last_chunk_at).total_seconds()
            intake.longest_gap_s = max(intake.longest_gap_s, gap_s)
        session.operations += len(trace)
        session.body_bytes += chunk.size
        # A lower bound: the number of distinct steps is known only after the merge.
        session.steps = max(session.steps, trace.step_count())
        if chunk.producer not in self.producers:
            self.producers.add(chunk.producer)
            intake.producers += 1
        intake.chunks += 1
        intake.last_chunk_at = max(intake.last_chunk_at, chunk.received_at)
        intake.pause_s = _pause_s(tx, intake, trace, final=chunk.final)
        cells: list[int] = np.unique(
            trace.dp.astype(np.int64) * trace.meta.sizes.pp + trace.pp
        ).tolist()
        blob_id = uuid.uuid4()
        self.blobs[blob_id] = chunk.staged
        tx.session.add(
            Chunk(
                session_id=session.id,
                producer=chunk.producer,
                number=chunk.number,
                sha256=chunk.sha256,
                received_at=chunk.received_at,
                final=chunk.final,
                body_bytes=chunk.size,
                operations=len(trace),
                cells=cells,
                blob=blob_id,
            )
        )
        self.size += chunk.size
        self.operations += len(trace)

    def finish(self, container: Container, tx: UnitOfWork, *, first: bool) -> None:
        """Write the chunks' operations and count them against the quotas; last in the transaction.

        Raises
        ------
        QuotaExceededError
        """
        tx.session.flush()
        write_blobs(tx, self.blobs)
        count(
            tx,
            container.settings,
            container.project_id,
            sessions=int(first),
            size=self.size,
            operations=self.operations,
        )


def chunk_writer(
    container: Container, tx: UnitOfWork, session_id: uuid.UUID, producers: Iterable[str]
) -> ChunkWriter:
    """Return the chunk writer of a session whose intake is locked.

    Workers of earlier versions that cannot read the chunks lose the session's analysis.
    """
    take_from_older(container, tx, ANALYZE_SESSION, session_id)
    before = tx.session.execute(
        select(Chunk.producer)
        .where(Chunk.session_id == session_id, Chunk.producer.in_(list(producers)))
        .distinct()
    ).scalars()
    session = tx.session.get_one(Session, session_id)
    session.needs = max(session.needs, WRITES)
    return ChunkWriter(session, tx.session.get_one(Intake, session_id), set(before))


def lock_intake(tx: UnitOfWork, path: ChunkPath) -> uuid.UUID | None:
    """Lock the intake of a session; return the session's id, or None if there is no session."""
    return tx.session.execute(
        select(Intake.session_id)
        .join(Session, Session.id == Intake.session_id)
        .join(Job)
        .where(path.names_session())
        # FOR NO KEY UPDATE does not block senders, whose inbox rows refer to the intake.
        .with_for_update(of=Intake, key_share=True)
    ).scalar_one_or_none()


def claim_for_chunk(container: Container, tx: UnitOfWork, path: ChunkPath, job_id: int) -> None:
    """Check the sender of a chunk; the first token to send in an attempt owns the attempt.

    Raises
    ------
    AttemptOwnedError
    """
    if path.folder is None:
        claim_attempt(container, tx, path.job, job_id, path.attempt)
    else:
        claim_for_whole(container, tx, path.job, job_id)


def create_session(
    container: Container, tx: UnitOfWork, path: ChunkPath, decoded: Decoded
) -> uuid.UUID:
    """Create the session of a first chunk, unless another chunk created it; return its id."""
    # Each transaction that creates a session locks the job's row first, as `receive_session` does.
    job_id = make_job(container, tx, path.job)
    claim_for_chunk(container, tx, path, job_id)
    made = lock_intake(tx, path)
    if made is not None:
        return made
    sizes = decoded.trace.meta.sizes
    number = path.session if path.folder is None else next_number(tx, job_id)
    values = {
        "id": uuid.uuid4(),
        "job_id": job_id,
        "attempt": path.attempt,
        "number": number,
        "content_sha256": path.folder,
        "state": SessionState.OPEN,
        "received_at": tx.now,
        "state_changed_at": tx.now,
        "meta": metadata_document(decoded.trace.meta),
        "labels": dict(decoded.trace.meta.labels),
        "dp": sizes.dp,
        "pp": sizes.pp,
        "tp": sizes.tp,
        "cp": sizes.cp,
        "vpp": sizes.vpp,
        "world": sizes.world,
        "trace_format": decoded.trace_format,
        "body_bytes": 0,
        "operations": 0,
        "steps": 0,
    }
    session_id = tx.session.execute(
        insert(Session)
        .values(**values)
        .on_conflict_do_nothing(index_elements=["job_id", "attempt", "number"])
        .returning(Session.id)
    ).scalar()
    if session_id is None:
        raise no_chunks(number)
    tx.session.add(
        Intake(
            session_id=session_id,
            chunks=0,
            producers=0,
            last_chunk_at=tx.now,
            longest_gap_s=0.0,
            # Files of a folder may come with long pauses: a large file over a slow connection, or a
            # browser that sleeps.
            pause_s=0.0 if path.folder is None else FOLDER_SILENCE_S,
            refused_chunks=0,
            refused_bytes=0,
            traceparent=current(),
        )
    )
    tx.session.flush()
    tx.notify_session(session_id)
    return session_id


def check_same_format(present: str, added: str, name: str) -> None:
    """Refuse a file of a folder if its format differs from that of the earlier files."""
    if present != added:
        title = FORMATS[added].title
        raise InvalidFolderError(
            f"{name} is {title}, and the files before it are {FORMATS[present].title}: "
            "move one kind to a folder of its own",
            code="file.mixed_formats",
        )


def _pause_s(tx: UnitOfWork, intake: Intake, trace: Trace, *, final: bool) -> float:
    """Return the expected pause after a chunk, in seconds; 0 once a producer has ended."""
    expected_s = trace.meta.extra.get(PAUSE_KEY)
    if final:
        return 0.0
    if not isinstance(expected_s, int | float) or expected_s <= intake.pause_s:
        return intake.pause_s
    ended = select(Chunk).where(Chunk.session_id == intake.session_id, Chunk.final).exists()
    return 0.0 if tx.session.execute(select(ended)).scalar_one() else float(expected_s)


@dataclass(frozen=True, slots=True)
class SealReceipt:
    """A sealed session; `sealed` is false if the session was sealed before.

    `refused` are the chunks that failed to decode, among those decoded so far.
    """

    session: uuid.UUID
    number: int
    state: SessionState
    sealed: bool
    refused: tuple[RefusedChunk, ...] = ()


def seal_session(container: Container, job: str, attempt: int, number: int) -> SealReceipt:
    """Seal a session and queue its analysis; a sealed session stays as it is.

    Raises
    ------
    NotFoundError
        There is no such session.
    AttemptOwnedError
    ConflictError
        ``session.whole``: the session was received in one body.
    """
    with container.uow() as tx:
        row = tx.session.execute(
            select(Session.id, Intake.session_id, Session.job_id, Session.content_sha256)
            .join(Job)
            .outerjoin(Intake, Intake.session_id == Session.id)
            .where(Job.name == job, Session.attempt == attempt, Session.number == number)
        ).one_or_none()
        if row is None:
            raise NotFoundError(f"The job has no session {number} in attempt {attempt}.")
        session_id, intake, job_id, content = row
        if content is None:
            claim_attempt(container, tx, job, job_id, attempt)
        else:
            check_sender(container, tx, job)
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
    """Seal a session and queue its analysis; return False if the session was sealed before.

    The row lock waits for chunks that are being added or appended to the inbox, and orders two
    callers that seal: the analysis sees every acknowledged chunk.
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
    # The analysis continues the distributed trace of the session's first chunk.
    tx.enqueue(ANALYZE_SESSION, session_id, row.project_id, caused_by=row.traceparent)
    return True


def seal_silent(tx: UnitOfWork, limit_s: float) -> int:
    """Seal sessions that received no chunk for too long; return the number of sealed sessions.

    Sessions of a folder's files are discarded instead.

    Parameters
    ----------
    limit_s : float
        Upper limit of the silence, whatever the pauses were.
    """
    silence_s = func.least(
        func.greatest(SILENCE_S, SILENT_GAPS * Intake.longest_gap_s, Intake.pause_s), limit_s
    )
    # SKIP LOCKED: a session whose row is locked is receiving a chunk.
    silent = tx.session.execute(
        select(Intake.session_id, Session.content_sha256.is_not(None).label("of_folder"))
        .join(Session, Session.id == Intake.session_id)
        .where(
            Intake.sealed_at.is_(None),
            func.extract("epoch", tx.now - Intake.last_chunk_at) > silence_s,
            ~_has_waiting_chunks(Intake.session_id),
        )
        .order_by(Intake.last_chunk_at)
        .limit(SEALED_A_PASS)
        .with_for_update(of=Intake, skip_locked=True)
    ).all()
    for row in silent:
        if row.of_folder:
            _discard_folder(tx, row.session_id)
        else:
            seal(tx, row.session_id, "silence")
    return len(silent)


def _discard_folder(tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Discard the session of an incomplete folder: its report would misrepresent the job.

    The digest is cleared, so that the same folder can be uploaded again as a new session.
    """
    tx.session.execute(
        update(Intake)
        .where(Intake.session_id == session_id)
        .values(sealed_at=tx.now, sealed_by="silence")
    )
    delete_chunk_blobs(tx, session_id)
    move_session(
        tx,
        session_id,
        state=SessionState.DISCARDED,
        reason_code=UPLOAD_INCOMPLETE,
        reason="The upload of its folder stopped before all files were here: upload it again.",
        content_sha256=None,
        trace_removed_at=tx.now,
    )


def delete_chunk_blobs(tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Delete the operations of a session's chunks; rows stay, to recognize repeated chunks."""
    blobs = tx.session.execute(
        select(Chunk.blob).where(Chunk.session_id == session_id, Chunk.blob.is_not(None))
    ).scalars()
    for blob in blobs.all():
        delete_blob(tx, cast("uuid.UUID", blob))
    tx.session.execute(update(Chunk).where(Chunk.session_id == session_id).values(blob=None))


def silence(longest_gap_s: float, limit_s: float, pause_s: float = 0.0) -> timedelta:
    """Return the silence that seals a session; `seal_silent` computes the same in SQL."""
    longest_s = max(SILENCE_S, SILENT_GAPS * longest_gap_s, pause_s)
    return timedelta(seconds=min(longest_s, limit_s))


def is_complete(tx: UnitOfWork, session: Session) -> bool:
    """Return whether each expected producer of an open session is complete.

    A producer is complete when its chunk of the highest number is final and none below is missing.
    Expected are the producers in the metadata; without such a list, all that sent a chunk, once
    their operations cover every cell of the DP × PP grid. A session with chunks in the inbox is
    never complete.
    """
    last = select(Chunk).where(Chunk.session_id == session.id, Chunk.final).exists()
    any_final, any_waiting = tx.session.execute(select(last, _has_waiting_chunks(session.id))).one()
    if not any_final or any_waiting:
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
    of_session = Chunk.session_id == session.id
    producers = set(
        tx.session.execute(select(Chunk.producer).where(of_session).distinct()).scalars()
    )
    if producers != done:
        return False
    cells = select(func.unnest(Chunk.cells)).where(of_session).distinct().subquery()
    seen = tx.session.execute(select(func.count()).select_from(cells)).scalar_one()
    return seen == session.dp * session.pp


def _has_waiting_chunks(
    session_id: uuid.UUID | InstrumentedAttribute[uuid.UUID],
) -> ColumnElement[bool]:
    """Return the SQL condition that the session has chunks waiting in the inbox."""
    return exists().where(InboxItem.session_id == session_id, InboxItem.code.is_(None))


def no_chunks(number: int) -> ConflictError:
    """Return the error for a chunk or a seal of a session that was received in one body."""
    return ConflictError(f"Session {number} came whole, in one body.", code="session.whole")


def sealed_session(number: int) -> ConflictError:
    """Return the error for a chunk of a session that is sealed."""
    message = f"Session {number} is sealed: it accepts no more chunks."
    return ConflictError(message, code="session.sealed")


def different_chunk(producer: str, number: int) -> ConflictError:
    """Return the error for a chunk whose session has other bytes of this producer and number."""
    message = f"Chunk {number} of {producer} exists with other bytes."
    return ConflictError(message, code="chunk.differs")
