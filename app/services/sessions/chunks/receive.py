"""Receive a chunk of a session: one body of one producer in, a durable chunk out.

What comes for a session that is there is appended to the inbox as it came. The first chunk makes
the session, and is decoded before its sender is answered; so are large ones and files of folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import and_, exists, or_, select, update
from sqlalchemy.orm import aliased

from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.storage.packed import pack
from app.db.models.chunks import Chunk, InboxItem, Intake
from app.db.models.sessions import Job, Session
from app.db.states import InboxKind, SessionState
from app.errors import ConflictError, InvalidTraceError, PacelineError
from app.services.ingest.refusals import count_refusal
from app.services.sessions.body import Body
from app.services.sessions.chunks import inbox
from app.services.sessions.chunks.add import Piece, begin, create, lock
from app.services.sessions.chunks.path import ChunkPath, ChunkReceipt
from app.services.sessions.chunks.seal import is_complete, no_chunks, seal
from app.services.sessions.decoding import trace_limits
from app.services.usage.count import check_room
from app.services.usage.quotas import BYTES, OPERATIONS, PRODUCERS, exceeded, use_of

if TYPE_CHECKING:
    import uuid

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

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
