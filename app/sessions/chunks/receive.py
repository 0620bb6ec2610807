"""Receive chunks: store them durably before the producers get an answer.

A chunk of an existing session is appended to the inbox undecoded. The first chunk creates the
session and is decoded before the answer; so are large chunks and files of a folder.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy import and_, exists, or_, select, tuple_, update
from sqlalchemy.orm import aliased

from app.access.models import AttemptOwner
from app.access.senders import AttemptOwnedError, owning_token
from app.analysis.trace.decode import recognize
from app.analysis.trace.storage import pack
from app.errors import InvalidTraceError, PacelineError, TryLaterError
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import InboxKind, SessionState
from app.platform.database.unit_of_work import UnitOfWork
from app.quotas.usage import (
    BYTES,
    OPERATIONS,
    PRODUCERS,
    QuotaExceededError,
    check_room,
    exceeded,
    use_of,
)
from app.sessions.arriving import count_refusal
from app.sessions.body import Body, chunk_of, trace_limits
from app.sessions.chunks import inbox
from app.sessions.chunks.inbox import (
    ArrivedChunk,
    ChunkName,
    ChunkPath,
    ChunkReceipt,
    RefusedChunk,
    SessionPath,
)
from app.sessions.chunks.intake import (
    DecodedChunk,
    chunk_writer,
    claim_for_chunk,
    create_session,
    different_chunk,
    is_complete,
    lock_intake,
    no_chunks,
    seal,
    sealed_session,
)
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session

log = structlog.get_logger(__name__)


# Condition that joins the owner of a session's attempt.
_OWNER: Final = and_(AttemptOwner.job_id == Session.job_id, AttemptOwner.attempt == Session.attempt)


class ChunkRefusedError(PacelineError):
    """An equal chunk was acknowledged before, and refused when it was decoded."""

    code = "chunk.refused"


@dataclass(frozen=True, slots=True)
class _OpenSession:
    """An open session, as read for a new chunk."""

    session: uuid.UUID
    number: int
    state: SessionState
    sent_before: bool
    """Whether the session has a chunk of the same producer."""
    refused: bool
    """Whether any chunk of the session was refused."""


class _AlreadyStoredError(Exception):
    """Another request stored the same chunk first: roll back the writes of this request."""

    def __init__(self, receipt: ChunkReceipt) -> None:
        super().__init__()
        self.receipt = receipt


class _NotAppendedError(Exception):
    """The session, an equal chunk or a seal appeared concurrently: roll back and try again."""


def receive_chunk(
    container: Container,
    path: ChunkPath,
    body: Body,
    *,
    final: bool,
    pressure: inbox.Pressure | None = None,
) -> ChunkReceipt:
    """Store a chunk durably; return its receipt after the commit.

    The first chunk creates its session. The same bytes under the same path are the same chunk.

    Parameters
    ----------
    path : ChunkPath
        Checked by `check_path`.
    final : bool
        Whether it is the producer's last chunk. Once every producer is complete, the session is
        sealed.
    pressure : Pressure, optional
        Refuses chunks while workers are behind; by default the backlog is not checked.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, BodyTooLargeError
        The body is refused, or contradicts the session's metadata. Nothing is stored.
    ChunkRefusedError
        These bytes were refused before, with the same code and faults.
    ConflictError
        ``chunk.differs``, ``session.sealed``, ``session.whole``, ``session.formats_mixed``.
    AttemptOwnedError, QuotaExceededError, InboxFullError, ObjectStoreError
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
            session = _find(container, tx, path, body)
            if isinstance(session, ChunkReceipt):
                # An equal chunk is stored, so this body need not be decoded.
                return session
            _check_quotas(container, tx, session)
            if session is not None and to_inbox:
                return _append(tx, session, path, body, final=final)
        return _add_now(container, path, body, final=final, to_inbox=to_inbox)
    except _NotAppendedError:
        # The retry finds the session, the chunk or the seal that another request has stored.
        return receive_chunk(container, path, body, final=final, pressure=pressure)


def count_refused(container: Container, path: ChunkPath, size: int, code: str) -> None:
    """Count a refused chunk of `size` bytes for the project, and for its session if it exists.

    A chunk of a sender that does not own the attempt does not count for the session.
    """
    session = select(Session.id).join(Job).where(path.names_session())
    with container.uow() as tx:
        if code != AttemptOwnedError.code:
            tx.session.execute(
                update(Intake)
                .where(Intake.session_id == session.scalar_subquery())
                .values(
                    refused_chunks=Intake.refused_chunks + 1,
                    refused_bytes=Intake.refused_bytes + size,
                )
            )
        count_refusal(tx, path.job, size, code)


def _check_quotas(container: Container, tx: UnitOfWork, session: _OpenSession | None) -> None:
    """Refuse a chunk beyond a quota before it is decoded.

    Raises
    ------
    QuotaExceededError
    """
    settings, project_id = container.settings, container.project_id
    stored = BYTES, OPERATIONS
    if session is None or any(quota.limit(settings) is not None for quota in stored):
        check_room(tx, settings, project_id, stored)
    producers = PRODUCERS.limit(settings)
    if session is not None and not session.sent_before and producers is not None:
        use = use_of(tx, project_id, made=())
        if use.producers + inbox.new_producers(tx) >= producers:
            raise exceeded(PRODUCERS, use, producers)


def _append(
    tx: UnitOfWork, session: _OpenSession, path: ChunkPath, body: Body, *, final: bool
) -> ChunkReceipt:
    try:
        if not inbox.append(tx, session.session, [ArrivedChunk(path, body, final)]):
            raise _NotAppendedError
    except inbox.SealedMeanwhileError as sealed:
        raise _NotAppendedError from sealed
    refused = inbox.refused_chunks(tx, session.session, path.producer) if session.refused else ()
    return ChunkReceipt(
        session.session, session.number, session.state, None, created=True, refused=refused
    )


def _add_now(
    container: Container, path: ChunkPath, body: Body, *, final: bool, to_inbox: bool
) -> ChunkReceipt:
    """Decode a chunk and add it to its session; a first chunk creates the session.

    Raises
    ------
    _NotAppendedError
        Another request has created the session meanwhile: the chunk has to go to the inbox, where
        an equal chunk may be waiting.
    """
    with contextlib.closing(chunk_of(container.settings, body)) as reading:
        decoded = reading.result()
    staged = container.stage(pack(decoded.trace))
    try:
        with container.uow() as tx:
            session_id = lock_intake(tx, path)
            if session_id is not None and to_inbox:
                raise _NotAppendedError
            session_id = session_id or create_session(container, tx, path, decoded)
            chunk = DecodedChunk(
                path.producer, path.number, body.sha256, body.size, final, tx.now, decoded, staged
            )
            receipt = _store(container, tx, path, body, session_id, chunk, to_inbox=to_inbox)
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


def _find(
    container: Container, tx: UnitOfWork, path: ChunkPath, body: Body
) -> ChunkReceipt | _OpenSession | None:
    """Return an equal stored chunk's receipt, else the open session; None without a session.

    Raises
    ------
    AttemptOwnedError
        Another token owns the attempt.
    ChunkRefusedError, ConflictError
        The session or its chunks contradict this one.
    """
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
            exists().where(table.session_id == Intake.session_id, table.producer == path.producer)
            for table in (aliased(Chunk), aliased(InboxItem))
        )
    )
    row = tx.session.execute(
        select(
            Session.id,
            Session.number,
            Session.state,
            Session.job_id,
            AttemptOwner.token_id.label("owner"),
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
        .outerjoin(AttemptOwner, _OWNER)
        .outerjoin(Intake, Intake.session_id == Session.id)
        .outerjoin(Chunk, same)
        .outerjoin(InboxItem, waits)
        .where(path.names_session())
    ).one_or_none()
    if row is None:
        return None
    if owning_token(container) not in (None, row.owner):
        claim_for_chunk(container, tx, path, row.job_id)
    if row.intake is None:
        raise no_chunks(row.number)
    if row.waiting_sha256 == body.sha256 and row.code is not None:
        raise ChunkRefusedError(row.reason or "", code=row.code, faults=row.faults or ())
    if body.sha256 in {row.sha256, row.waiting_sha256}:
        return ChunkReceipt(row.id, row.number, row.state, row.operations, created=False)
    if row.sealed_at is not None:
        raise sealed_session(row.number)
    if row.sha256 is not None or (row.waiting_sha256 is not None and row.code is None):
        raise different_chunk(path.producer, path.number)
    return _OpenSession(row.id, row.number, row.state, row.sent_before, row.refused_chunks > 0)


def _store(  # noqa: PLR0913, PLR0917 - one request
    container: Container,
    tx: UnitOfWork,
    path: ChunkPath,
    body: Body,
    session_id: uuid.UUID,
    chunk: DecodedChunk,
    *,
    to_inbox: bool,
) -> ChunkReceipt:
    twin = _find(container, tx, path, body)
    if isinstance(twin, ChunkReceipt):
        raise _AlreadyStoredError(twin)
    writer = chunk_writer(container, tx, session_id, [chunk.producer])
    first = writer.intake.chunks == 0
    if to_inbox and not first:
        raise _NotAppendedError
    writer.add(container, tx, chunk)
    tx.session.flush()
    session = writer.session
    state = session.state
    if is_complete(tx, session):
        seal(tx, session_id, "final")
        state = SessionState.QUEUED
    writer.finish(container, tx, first=first)
    return ChunkReceipt(
        session_id,
        session.number,
        state,
        len(chunk.decoded.trace),
        created=True,
        unmapped=chunk.decoded.unmapped,
    )


def receive_together(
    container: Container, path: SessionPath, chunks: Sequence[ArrivedChunk]
) -> list[ChunkReceipt | None]:
    """Store chunks of one session durably in one transaction; return their receipts in order.

    Handles the common case: an open session, room under the quotas, new and small chunks. Other
    chunks get None instead of a receipt: pass these to `receive_chunk` one by one.

    Parameters
    ----------
    path : SessionPath
        Path of the session.
    chunks : sequence of ArrivedChunk
        The chunks; `check_path` has checked their paths.
    """
    wanted: dict[ChunkName, ArrivedChunk] = {}
    for chunk in chunks:
        body = chunk.body
        if (
            body.own is None
            and body.size <= inbox.LARGEST_BYTES
            and _is_recognized(container, body)
        ):
            wanted.setdefault(chunk.name, chunk)
    receipts = _store_batch(container, path, wanted)
    if receipts is None and wanted:
        # There is no session yet: the first chunk creates it.
        name, first = next(iter(wanted.items()))
        try:
            receipt = receive_chunk(container, first.path, first.body, final=first.final)
        except PacelineError:
            # The caller passes each chunk to `receive_chunk`, which raises the error for each of
            # them.
            return [None for _ in chunks]
        rest = {other: chunk for other, chunk in wanted.items() if other != name}
        receipts = {name: receipt, **(_store_batch(container, path, rest) or {})}
    # If two chunks have the same name, the second gets None: `receive_chunk` compares it with the
    # first.
    return [
        None
        if receipts is None or wanted.get(chunk.name) is not chunk
        else receipts.get(chunk.name)
        for chunk in chunks
    ]


def receive_each(
    container: Container,
    path: SessionPath,
    chunks: Sequence[ArrivedChunk],
    pressure: inbox.Pressure,
) -> list[ChunkReceipt | PacelineError]:
    """Store chunks durably; return the receipt of each chunk, or the error if it is not stored.

    Raises
    ------
    InboxFullError, AttemptOwnedError
        No chunk is stored.
    """
    pressure.check(container.everywhere())
    outcomes: list[ChunkReceipt | PacelineError] = []
    stored = receive_together(container, path, chunks)
    for chunk, receipt in zip(chunks, stored, strict=True):
        if receipt is not None:
            outcomes.append(receipt)
            continue
        try:
            outcomes.append(receive_chunk(container, chunk.path, chunk.body, final=chunk.final))
        except AttemptOwnedError:
            # All chunks of a request are of one attempt.
            raise
        except PacelineError as error:
            outcomes.append(error)
            if not isinstance(error, TryLaterError):
                count_refused(container, chunk.path, chunk.body.size, error.stable_code)
    return outcomes


def _store_batch(
    container: Container, path: SessionPath, wanted: Mapping[ChunkName, ArrivedChunk]
) -> dict[ChunkName, ChunkReceipt] | None:
    """Append chunks; return the receipts of appended chunks, None if there is no open session."""
    if not wanted:
        return {}
    try:
        with container.uow() as tx:
            return _append_batch(tx, container, path, wanted)
    except (QuotaExceededError, inbox.SealedMeanwhileError):
        return {}


def _is_recognized(container: Container, body: Body) -> bool:
    try:
        recognize(
            body.source,
            limits=trace_limits(container.settings),
            content_type=body.content_type,
            format_name=body.format_name,
        )
    except PacelineError:
        return False
    return True


def _append_batch(
    tx: UnitOfWork,
    container: Container,
    path: SessionPath,
    wanted: Mapping[ChunkName, ArrivedChunk],
) -> dict[ChunkName, ChunkReceipt] | None:
    session = tx.session.execute(
        select(
            Session.id,
            Session.number,
            Session.state,
            Intake.refused_chunks,
            AttemptOwner.token_id.label("owner"),
        )
        .select_from(Session)
        .join(Job)
        .join(Intake, Intake.session_id == Session.id)
        .outerjoin(AttemptOwner, _OWNER)
        .where(path.names_session(), Intake.sealed_at.is_(None))
    ).one_or_none()
    if session is None:
        return None
    if owning_token(container) not in (None, session.owner):
        # `receive_chunk` claims the attempt, or refuses each chunk.
        return {}
    there = {
        (row.producer, row.number)
        for row in tx.session.execute(
            select(Chunk.producer, Chunk.number).where(
                Chunk.session_id == session.id,
                tuple_(Chunk.producer, Chunk.number).in_(list(wanted)),
            )
        )
    }
    new = [chunk for name, chunk in wanted.items() if name not in there]
    if not new:
        return {}
    _check_batch_quotas(tx, container, session.id, new)
    added = inbox.append(tx, session.id, new)
    refused: Mapping[str, tuple[RefusedChunk, ...]] = {}
    if session.refused_chunks:
        refused = inbox.refused_of_each(tx, session.id, sorted({name[0] for name in added}))
    return {
        name: ChunkReceipt(
            session.id,
            session.number,
            session.state,
            None,
            created=True,
            refused=refused.get(name[0], ()),
        )
        for name in added
    }


def _check_batch_quotas(
    tx: UnitOfWork, container: Container, session_id: uuid.UUID, chunks: Sequence[ArrivedChunk]
) -> None:
    """Refuse all chunks of a batch if any of them may exceed a quota.

    Raises
    ------
    QuotaExceededError
    """
    stored = BYTES, OPERATIONS
    settings, project_id = container.settings, container.project_id
    if any(quota.limit(settings) is not None for quota in stored):
        check_room(tx, settings, project_id, stored)
    limit = PRODUCERS.limit(settings)
    if limit is None:
        return
    producers = {chunk.path.producer for chunk in chunks}
    present: set[str] = set()
    for table in (Chunk, InboxItem):
        present.update(
            tx.session.execute(
                select(table.producer)
                .where(table.session_id == session_id, table.producer.in_(producers))
                .distinct()
            ).scalars()
        )
    new = len(producers - present)
    if new:
        use = use_of(tx, project_id, made=())
        if use.producers + inbox.new_producers(tx) + new > limit:
            raise exceeded(PRODUCERS, use, limit)
