"""Receive a chunk of a session: one body of one producer in, a durable chunk out.

Everything about one session happens under the lock of its row of `intake`: chunks may come in any
order and from many producers at once, and meet the end of the session at any moment.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog
from sqlalchemy import and_, select, update
from sqlalchemy.dialects.postgresql import insert

from app.access.names import is_plain_name
from app.analysis.trace.decode import decode
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.joint_metadata import join_documents
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.storage import pack
from app.db.blobs import write_blob
from app.db.models.chunks import Chunk, Intake
from app.db.models.sessions import Job, Session
from app.db.states import SessionState
from app.errors import BodyTooLargeError, ConflictError, InvalidTraceError, PacelineError
from app.services.ingest.refusals import count_refusal
from app.services.sessions.receive import (
    Body,
    check_job_name,
    make_job,
    trace_limits,
)
from app.services.sessions.seal import PAUSE_KEY, is_complete, no_chunks, seal
from app.services.usage.count import check_room, count
from app.services.usage.quotas import BYTES, OPERATIONS

if TYPE_CHECKING:
    from app.analysis.trace.formats.kind import Decoded
    from app.analysis.trace.model import Trace
    from app.analysis.trace.unmapped import Unmapped
    from app.db.blobs import Staged
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

log = structlog.get_logger(__name__)

MAX_PRODUCER_CHARACTERS: Final = 200


class InvalidProducerError(PacelineError):
    """A producer's name that would not survive in an address or on a page."""

    code = "producer.invalid_name"


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """What names a chunk: `session` counts within the attempt, `number` within the producer."""

    job: str
    attempt: int
    session: int
    producer: str
    number: int


@dataclass(frozen=True, slots=True)
class ChunkReceipt:
    """The session that a chunk belongs to; `created` unless the chunk was there already."""

    session: uuid.UUID
    state: SessionState
    operations: int
    created: bool
    unmapped: tuple[Unmapped, ...] = ()


class _AlreadyStoredError(Exception):
    """Another request stored the same chunk meanwhile: roll back what this one wrote."""

    def __init__(self, receipt: ChunkReceipt) -> None:
        super().__init__()
        self.receipt = receipt


def check_path(path: ChunkPath) -> None:
    """Check the names in a chunk's path.

    Raises
    ------
    InvalidJobNameError, InvalidProducerError
        If one is empty, too long, not printable, or means a folder in an address.
    """
    check_job_name(path.job)
    if not is_plain_name(path.producer, MAX_PRODUCER_CHARACTERS):
        raise InvalidProducerError(
            f"A producer's name has 1 to {MAX_PRODUCER_CHARACTERS} printable characters, "
            "without a slash and without blanks around it."
        )


def receive_chunk(
    container: Container,
    path: ChunkPath,
    body: Body,
    *,
    final: bool,
) -> ChunkReceipt:
    """Decode and check a chunk, and store it durably.

    The first chunk makes its session. The same bytes under the same path are the same chunk.

    Parameters
    ----------
    path : ChunkPath
        Of names that `check_path` passed.
    final : bool
        The producer's last one. Once every producer is complete, the session is sealed.

    Returns
    -------
    ChunkReceipt
        Only after the commit: what it says survives a crash.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, BodyTooLargeError
        The body is refused, or contradicts the session's metadata. Nothing is stored.
    ConflictError
        ``chunk.differs``, ``session.sealed``, ``session.whole``, ``session.formats_mixed``.
    QuotaExceededError, ObjectStoreError
        Nothing is stored.
    """
    if body.size == 0:
        raise InvalidTraceError("The body is empty.", code="trace.empty")
    with container.uow() as tx:
        known = _find(tx, path, body)
        if known is not None:
            # A repeated body need not be decoded to be recognized.
            return known
        check_room(tx, container.settings, container.project_id, (BYTES, OPERATIONS))
    decoded = decode(
        body.path,
        body.meta,
        limits=trace_limits(container.settings),
        content_type=body.content_type,
        format_name=body.format_name,
        part=True,
    )
    staged = container.stage(pack(decoded.trace))
    try:
        with container.uow() as tx:
            receipt = _store(container, tx, path, body, decoded, staged=staged, final=final)
    except _AlreadyStoredError as twin:
        return twin.receipt
    log.info(
        "chunk received",
        session=str(receipt.session),
        job=path.job,
        producer=path.producer,
        chunk=path.number,
        bytes=body.size,
        operations=receipt.operations,
    )
    return receipt


def count_refused(container: Container, path: ChunkPath, size: int, code: str) -> None:
    """Count a chunk of `size` bytes that was refused, of its session where that is known."""
    session = (
        select(Session.id)
        .join(Job)
        .where(
            Job.name == path.job,
            Session.attempt == path.attempt,
            Session.number == path.session,
        )
    )
    with container.uow() as tx:
        tx.session.execute(
            update(Intake)
            .where(Intake.session_id == session.scalar_subquery())
            .values(
                refused_chunks=Intake.refused_chunks + 1,
                refused_bytes=Intake.refused_bytes + size,
            )
        )
        count_refusal(tx, path.job, size, code)


def _find(tx: UnitOfWork, path: ChunkPath, body: Body) -> ChunkReceipt | None:
    """Return what is there already of a chunk, or refuse it for what is there."""
    same = and_(
        Chunk.session_id == Intake.session_id,
        Chunk.producer == path.producer,
        Chunk.number == path.number,
    )
    row = tx.session.execute(
        select(
            Session.id,
            Session.state,
            Intake.session_id,
            Intake.sealed_at,
            Chunk.sha256,
            Chunk.operations,
        )
        .join(Job)
        .outerjoin(Intake, Intake.session_id == Session.id)
        .outerjoin(Chunk, same)
        .where(
            Job.name == path.job,
            Session.attempt == path.attempt,
            Session.number == path.session,
        )
    ).one_or_none()
    if row is None:
        return None
    session_id, state, intake, sealed_at, sha256, operations = row
    if intake is None:
        raise no_chunks(path.session)
    if sha256 == body.sha256:
        return ChunkReceipt(session_id, state, operations, created=False)
    if sealed_at is not None:
        raise ConflictError(
            f"Session {path.session} is sealed: it accepts no more chunks.", code="session.sealed"
        )
    if sha256 is not None:
        raise ConflictError(
            f"Chunk {path.number} of {path.producer} exists with other bytes.",
            code="chunk.differs",
        )
    return None


def _store(  # noqa: PLR0913 - one request
    container: Container,
    tx: UnitOfWork,
    path: ChunkPath,
    body: Body,
    decoded: Decoded,
    *,
    staged: Staged,
    final: bool,
) -> ChunkReceipt:
    trace = decoded.trace
    # The blob first: from the intake's lock on, other chunks of the session wait.
    blob_id = write_blob(tx, staged)
    session_id = _lock(tx, path) or _create(container, tx, path, decoded)
    twin = _find(tx, path, body)
    if twin is not None:
        raise _AlreadyStoredError(twin)
    intake = tx.session.get_one(Intake, session_id)
    session = tx.session.get_one(Session, session_id)
    _check_formats(session.trace_format, decoded.trace_format)
    if session.operations + len(trace) > container.settings.max_rows:
        raise BodyTooLargeError(
            f"The session would have over {container.settings.max_rows} operations.",
            code="body.too_many_rows",
        )
    if intake.chunks:
        session.meta = join_documents(session.meta, trace.meta)
        session.labels = dict(session.meta.get("labels", {}))
    session.operations += len(trace)
    session.body_bytes += body.size
    # How many there are together is known when the chunks are merged.
    session.steps = max(session.steps, int(np.unique(trace.step).size))
    if intake.chunks:
        gap_s = (tx.now - intake.last_chunk_at).total_seconds()
        intake.longest_gap_s = max(intake.longest_gap_s, gap_s)
    first = intake.chunks == 0
    if not _sent_before(tx, session_id, path.producer):
        intake.producers += 1
    intake.chunks += 1
    intake.last_chunk_at = max(intake.last_chunk_at, tx.now)
    intake.pause_s = _pause_s(tx, intake, trace, final=final)
    tx.session.add(
        Chunk(
            session_id=session_id,
            producer=path.producer,
            number=path.number,
            sha256=body.sha256,
            received_at=tx.now,
            final=final,
            body_bytes=body.size,
            operations=len(trace),
            cells=_cells(trace),
            blob=blob_id,
        )
    )
    tx.session.flush()
    state = session.state
    if is_complete(tx, session, path.producer):
        seal(tx, session_id, "final")
        state = SessionState.QUEUED
    count(
        tx,
        container.settings,
        container.project_id,
        sessions=int(first),
        size=body.size,
        operations=len(trace),
    )
    return ChunkReceipt(session_id, state, len(trace), created=True, unmapped=decoded.unmapped)


def _pause_s(tx: UnitOfWork, intake: Intake, trace: Trace, *, final: bool) -> float:
    """Return the pause to expect after a chunk: none that is longer once a producer has ended."""
    told = trace.meta.extra.get(PAUSE_KEY)
    if final:
        return 0.0
    if not isinstance(told, int | float) or told <= intake.pause_s:
        return intake.pause_s
    ended = select(Chunk).where(Chunk.session_id == intake.session_id, Chunk.final).exists()
    return 0.0 if tx.session.execute(select(ended)).scalar_one() else float(told)


def _sent_before(tx: UnitOfWork, session_id: uuid.UUID, producer: str) -> bool:
    """Return whether a chunk of a producer is there."""
    there = select(Chunk).where(Chunk.session_id == session_id, Chunk.producer == producer).exists()
    return bool(tx.session.execute(select(there)).scalar_one())


def _lock(tx: UnitOfWork, path: ChunkPath) -> uuid.UUID | None:
    """Lock the intake of a session and return the session's id; None where there is none."""
    return tx.session.execute(
        select(Intake.session_id)
        .join(Session, Session.id == Intake.session_id)
        .join(Job)
        .where(
            Job.name == path.job,
            Session.attempt == path.attempt,
            Session.number == path.session,
        )
        .with_for_update(of=Intake)
    ).scalar_one_or_none()


def _create(container: Container, tx: UnitOfWork, path: ChunkPath, decoded: Decoded) -> uuid.UUID:
    """Make the session of a first chunk, or find that another chunk just made it."""
    # As in `receive_session`: the transaction that makes a session of a job locks the job's row.
    job_id = make_job(container, tx, path.job)
    made = _lock(tx, path)
    if made is not None:
        return made
    sizes = decoded.trace.meta.sizes
    values = {
        "id": uuid.uuid4(),
        "job_id": job_id,
        "attempt": path.attempt,
        "number": path.session,
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
        raise no_chunks(path.session)
    tx.session.add(
        Intake(
            session_id=session_id,
            chunks=0,
            producers=0,
            last_chunk_at=tx.now,
            longest_gap_s=0.0,
            pause_s=0.0,
            refused_chunks=0,
            refused_bytes=0,
        )
    )
    tx.session.flush()
    tx.notify_session(session_id)
    return session_id


def _check_formats(known: str, added: str) -> None:
    """Refuse times that count from the start of their step mixed with clock readings."""
    if FORMATS[known].step_relative != FORMATS[added].step_relative:
        raise ConflictError(
            f"The session's chunks are {known}; {added} has times of another kind.",
            code="session.formats_mixed",
        )


def _cells(trace: Trace) -> list[int]:
    cells: list[int] = np.unique(
        trace.dp.astype(np.int64) * trace.meta.sizes.pp + trace.pp
    ).tolist()
    return cells
