"""Receive a chunk of a session: one body of one producer in, a durable chunk out.

What comes for a session that is there is appended to the inbox as it came. The first chunk makes
the session, and is decoded before its sender is answered; so are large ones and files of folders.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import numpy as np
import structlog
from sqlalchemy import and_, exists, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.metadata import join_documents, metadata_document
from app.analysis.trace.model import Trace
from app.analysis.trace.storage import pack
from app.errors import (
    BodyTooLargeError,
    ConflictError,
    InvalidFolderError,
    InvalidTraceError,
    PacelineError,
)
from app.jobs.models import Job
from app.platform.blobs import Staged, write_blobs
from app.platform.container import Container
from app.platform.database.states import InboxKind, SessionState
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.telemetry import current
from app.quotas.usage import BYTES, OPERATIONS, PRODUCERS, check_room, count, exceeded, use_of
from app.sessions.arriving import count_refusal
from app.sessions.chunks import inbox
from app.sessions.chunks.inbox import ChunkPath, ChunkReceipt
from app.sessions.chunks.seal import PAUSE_KEY, is_complete, no_chunks, seal
from app.sessions.decoding import Body, trace_limits
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session
from app.sessions.receive import make_job, next_number

# ---- Add decoded chunks to their session, under the lock of its intake -------------------------
# Chunks may come in any order and from many producers at once, and meet the end of the session at
# any moment. The lock keeps out who else adds or seals, and no one who only appends to the inbox.


# A folder of which no file came for so long is not complete, and will not be.
FOLDER_SILENCE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A decoded chunk."""

    producer: str
    number: int
    sha256: bytes
    size: int
    """Bytes as they were sent."""
    final: bool
    received_at: datetime
    decoded: Decoded
    staged: Staged


@dataclass(slots=True)
class Adding:
    """A session whose intake is locked, and what is added to it in one transaction."""

    session: Session
    intake: Intake
    producers: set[str]
    """Of this transaction's chunks, those that had sent one before."""
    size: int = 0
    operations: int = 0
    blobs: dict[uuid.UUID, Staged] = field(default_factory=dict)

    def add(self, container: Container, tx: UnitOfWork, piece: Piece) -> None:
        """Add a chunk.

        Raises
        ------
        InvalidMetadataError, ConflictError, InvalidFolderError, BodyTooLargeError
            It contradicts the session; nothing is changed then.
        """
        session, intake = self.session, self.intake
        trace = piece.decoded.trace
        _check_formats(session.trace_format, piece.decoded.trace_format)
        if session.content_sha256 is not None:
            check_same_format(session.trace_format, piece.decoded.trace_format, piece.producer)
        if session.operations + len(trace) > container.settings.max_rows:
            raise BodyTooLargeError(
                f"The session would have over {container.settings.max_rows} operations.",
                code="body.too_many_rows",
            )
        if intake.chunks:
            session.meta = join_documents(session.meta, trace.meta)
            session.labels = dict(session.meta.get("labels", {}))
            gap_s = (piece.received_at - intake.last_chunk_at).total_seconds()
            intake.longest_gap_s = max(intake.longest_gap_s, gap_s)
        session.operations += len(trace)
        session.body_bytes += piece.size
        # How many there are together is known when the chunks are merged.
        session.steps = max(session.steps, trace.step_count())
        if piece.producer not in self.producers:
            self.producers.add(piece.producer)
            intake.producers += 1
        intake.chunks += 1
        intake.last_chunk_at = max(intake.last_chunk_at, piece.received_at)
        intake.pause_s = _pause_s(tx, intake, trace, final=piece.final)
        tx.session.add(
            Chunk(
                session_id=session.id,
                producer=piece.producer,
                number=piece.number,
                sha256=piece.sha256,
                received_at=piece.received_at,
                final=piece.final,
                body_bytes=piece.size,
                operations=len(trace),
                cells=_cells(trace),
                blob=self._blob(piece.staged),
            )
        )
        self.size += piece.size
        self.operations += len(trace)

    def _blob(self, staged: Staged) -> uuid.UUID:
        blob_id = uuid.uuid4()
        self.blobs[blob_id] = staged
        return blob_id

    def count(self, container: Container, tx: UnitOfWork, *, first: bool) -> None:
        """Store what the chunks hold and add to what the project has used; last in the transaction.

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


def begin(tx: UnitOfWork, session_id: uuid.UUID, producers: Iterable[str]) -> Adding:
    """Return what takes chunks of a session whose intake is locked."""
    before = tx.session.execute(
        select(Chunk.producer)
        .where(Chunk.session_id == session_id, Chunk.producer.in_(list(producers)))
        .distinct()
    ).scalars()
    return Adding(
        tx.session.get_one(Session, session_id), tx.session.get_one(Intake, session_id), set(before)
    )


def lock(tx: UnitOfWork, path: ChunkPath) -> uuid.UUID | None:
    """Lock the intake of a session and return the session's id; None where there is none."""
    return tx.session.execute(
        select(Intake.session_id)
        .join(Session, Session.id == Intake.session_id)
        .join(Job)
        .where(path.names_session())
        # Not against the references of the inbox: senders go on.
        .with_for_update(of=Intake, key_share=True)
    ).scalar_one_or_none()


def create(container: Container, tx: UnitOfWork, path: ChunkPath, decoded: Decoded) -> uuid.UUID:
    """Make the session of a first chunk, or find that another chunk just made it."""
    # As in `receive_session`: the transaction that makes a session of a job locks the job's row.
    job_id = make_job(container, tx, path.job)
    made = lock(tx, path)
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
            # One large file over a slow line takes long, and so does a browser that is asleep.
            pause_s=0.0 if path.folder is None else FOLDER_SILENCE_S,
            refused_chunks=0,
            refused_bytes=0,
            traceparent=current(),
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


def check_same_format(known: str, added: str, name: str) -> None:
    """Refuse a file of a folder that is of another format than those before it."""
    if known != added:
        title = FORMATS[added].title
        raise InvalidFolderError(
            f"{name} is {title}, and the files before it are {FORMATS[known].title}: "
            "move one kind to a folder of its own",
            code="file.mixed_formats",
        )


def _cells(trace: Trace) -> list[int]:
    cells: list[int] = np.unique(
        trace.dp.astype(np.int64) * trace.meta.sizes.pp + trace.pp
    ).tolist()
    return cells


def _pause_s(tx: UnitOfWork, intake: Intake, trace: Trace, *, final: bool) -> float:
    """Return the pause to expect after a chunk: none that is longer once a producer has ended."""
    told = trace.meta.extra.get(PAUSE_KEY)
    if final:
        return 0.0
    if not isinstance(told, int | float) or told <= intake.pause_s:
        return intake.pause_s
    ended = select(Chunk).where(Chunk.session_id == intake.session_id, Chunk.final).exists()
    return 0.0 if tx.session.execute(select(ended)).scalar_one() else float(told)


log = structlog.get_logger(__name__)


class ChunkRefusedError(PacelineError):
    """The same bytes were sent before, acknowledged, and refused when they were decoded."""

    code = "chunk.refused"


@dataclass(frozen=True, slots=True)
class _Open:
    """A session that takes a chunk."""

    session: uuid.UUID
    number: int
    state: SessionState
    sent_before: bool
    """A chunk of the same producer is there."""
    refused: bool
    """Chunks were refused."""


class _AlreadyStoredError(Exception):
    """Another request stored the same chunk meanwhile: roll back what this one wrote."""

    def __init__(self, receipt: ChunkReceipt) -> None:
        super().__init__()
        self.receipt = receipt


class _NotAppendedError(Exception):
    """Meanwhile its path came, or its session was made or sealed: roll back and look again."""


def receive_chunk(
    container: Container,
    path: ChunkPath,
    body: Body,
    *,
    final: bool,
    pressure: inbox.Pressure | None = None,
) -> ChunkReceipt:
    """Store a chunk durably.

    The first chunk makes its session. The same bytes under the same path are the same chunk.

    Parameters
    ----------
    path : ChunkPath
        Of names that `check_path` passed.
    final : bool
        The producer's last one. Once every producer is complete, the session is sealed.
    pressure : Pressure, optional
        Puts senders off while workers are behind; without it nothing does.

    Returns
    -------
    ChunkReceipt
        Only after the commit: what it says survives a crash.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, BodyTooLargeError
        The body is refused, or contradicts the session's metadata. Nothing is stored.
    ChunkRefusedError
        These bytes were refused before, with the same code and faults.
    ConflictError
        ``chunk.differs``, ``session.sealed``, ``session.whole``, ``session.formats_mixed``.
    QuotaExceededError, InboxFullError, ObjectStoreError
        Nothing is stored.
    """
    if body.size == 0:
        raise InvalidTraceError("The body is empty.", code="trace.empty")
    to_inbox = path.folder is None and body.own is None and body.size <= inbox.LARGEST_BYTES
    if to_inbox:
        if pressure is not None:
            pressure.check(container.everywhere())
        recognize(
            body.source,
            limits=trace_limits(container.settings),
            content_type=body.content_type,
            format_name=body.format_name,
        )
    try:
        with container.uow() as tx:
            found = _find(tx, path, body)
            if isinstance(found, ChunkReceipt):
                # A repeated body need not be decoded to be recognized.
                return found
            _check_room(container, tx, found)
            if found is not None and to_inbox:
                return _append(tx, found, path, body, final=final)
        return _add_now(container, path, body, final=final, to_inbox=to_inbox)
    except _NotAppendedError:
        # Found now, with what is there or with its seal.
        return receive_chunk(container, path, body, final=final, pressure=pressure)


def count_refused(container: Container, path: ChunkPath, size: int, code: str) -> None:
    """Count a chunk of `size` bytes that was refused, of its session where that is known."""
    session = select(Session.id).join(Job).where(path.names_session())
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


def _check_room(container: Container, tx: UnitOfWork, found: _Open | None) -> None:
    """Refuse what is over a quota, before it costs anything.

    Raises
    ------
    QuotaExceededError
    """
    settings, project_id = container.settings, container.project_id
    stored = BYTES, OPERATIONS
    if found is None or any(quota.limit(settings) is not None for quota in stored):
        check_room(tx, settings, project_id, stored)
    producers = PRODUCERS.limit(settings)
    if found is not None and not found.sent_before and producers is not None:
        use = use_of(tx, project_id, made=())
        if use.producers + inbox.new_producers(tx) >= producers:
            raise exceeded(PRODUCERS, use, producers)


def _append(
    tx: UnitOfWork, found: _Open, path: ChunkPath, body: Body, *, final: bool
) -> ChunkReceipt:
    try:
        if not inbox.append(tx, found.session, [inbox.Arrived(path, body, final)]):
            raise _NotAppendedError
    except inbox.SealedMeanwhileError as sealed:
        raise _NotAppendedError from sealed
    refused = inbox.refused_chunks(tx, found.session, path.producer) if found.refused else ()
    return ChunkReceipt(
        found.session, found.number, found.state, None, created=True, refused=refused
    )


def _add_now(
    container: Container, path: ChunkPath, body: Body, *, final: bool, to_inbox: bool
) -> ChunkReceipt:
    """Decode and check a chunk, and add it to its session, made where it is the first.

    One that goes to the inbox and is not the first after all does so: its twin may be there.
    """
    decoded = decode(
        body.source,
        body.meta,
        limits=trace_limits(container.settings),
        content_type=body.content_type,
        format_name=body.format_name,
        part=True,
        own=body.own,
        names=body.names,
    )
    staged = container.stage(pack(decoded.trace))
    try:
        with container.uow() as tx:
            made = lock(tx, path)
            if made is not None and to_inbox:
                raise _NotAppendedError
            session_id = made or create(container, tx, path, decoded)
            piece = Piece(
                path.producer, path.number, body.sha256, body.size, final, tx.now, decoded, staged
            )
            receipt = _store(container, tx, path, body, session_id, piece, to_inbox=to_inbox)
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


def _find(tx: UnitOfWork, path: ChunkPath, body: Body) -> ChunkReceipt | _Open | None:
    """Return what is there already of a chunk or its session, or refuse it for what is there."""
    same = and_(
        Chunk.session_id == Intake.session_id,
        Chunk.producer == path.producer,
        Chunk.number == path.number,
    )
    waits = and_(
        InboxItem.session_id == Intake.session_id,
        InboxItem.kind == InboxKind.CHUNK,
        InboxItem.producer == path.producer,
        InboxItem.number == path.number,
    )
    sent_before = or_(
        *(
            exists().where(one.session_id == Intake.session_id, one.producer == path.producer)
            for one in (aliased(Chunk), aliased(InboxItem))
        )
    )
    row = tx.session.execute(
        select(
            Session.id,
            Session.number,
            Session.state,
            Intake.session_id.label("intake"),
            Intake.sealed_at,
            Intake.refused_chunks,
            Chunk.sha256,
            Chunk.operations,
            InboxItem.sha256.label("waiting_sha256"),
            InboxItem.code,
            InboxItem.reason,
            InboxItem.faults,
            sent_before.label("sent_before"),
        )
        .select_from(Session)
        .join(Job)
        .outerjoin(Intake, Intake.session_id == Session.id)
        .outerjoin(Chunk, same)
        .outerjoin(InboxItem, waits)
        .where(path.names_session())
    ).one_or_none()
    if row is None:
        return None
    if row.intake is None:
        raise no_chunks(row.number)
    if row.waiting_sha256 == body.sha256 and row.code is not None:
        raise ChunkRefusedError(row.reason or "", code=row.code, faults=row.faults or ())
    if body.sha256 in {row.sha256, row.waiting_sha256}:
        return ChunkReceipt(row.id, row.number, row.state, row.operations, created=False)
    if row.sealed_at is not None:
        raise ConflictError(
            f"Session {row.number} is sealed: it accepts no more chunks.", code="session.sealed"
        )
    if row.sha256 is not None or (row.waiting_sha256 is not None and row.code is None):
        raise ConflictError(
            f"Chunk {path.number} of {path.producer} exists with other bytes.",
            code="chunk.differs",
        )
    return _Open(row.id, row.number, row.state, row.sent_before, row.refused_chunks > 0)


def _store(  # noqa: PLR0913, PLR0917 - one request
    container: Container,
    tx: UnitOfWork,
    path: ChunkPath,
    body: Body,
    session_id: uuid.UUID,
    piece: Piece,
    *,
    to_inbox: bool,
) -> ChunkReceipt:
    twin = _find(tx, path, body)
    if isinstance(twin, ChunkReceipt):
        raise _AlreadyStoredError(twin)
    adding = begin(tx, session_id, [piece.producer])
    first = adding.intake.chunks == 0
    if to_inbox and not first:
        raise _NotAppendedError
    adding.add(container, tx, piece)
    tx.session.flush()
    session = adding.session
    state = session.state
    if is_complete(tx, session):
        seal(tx, session_id, "final")
        state = SessionState.QUEUED
    adding.count(container, tx, first=first)
    return ChunkReceipt(
        session_id,
        session.number,
        state,
        len(piece.decoded.trace),
        created=True,
        unmapped=piece.decoded.unmapped,
    )
