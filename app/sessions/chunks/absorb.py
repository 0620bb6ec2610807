"""Use case: decode and check what the inbox holds, and add it to its sessions, many at once.

A worker claims bodies by a lease, decodes them outside of any transaction, and adds all of them in
one: killed at any moment, it leaves them as they were. What it cannot take is refused: the row
stays, without its bytes, and says why; the rest of the session goes on without it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy import and_, delete, or_, select, tuple_, update

from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.storage import pack
from app.errors import ObjectStoreError, PacelineError, TryLaterError
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.projects import is_there
from app.platform.database.states import InboxKind
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.resources import KIB, limited_memory
from app.platform.settings import Settings
from app.platform.settings.kinds import variable
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
from app.sessions.chunks import inbox
from app.sessions.chunks.inbox import (
    Arrived,
    ChunkName,
    ChunkReceipt,
    RefusedChunk,
    SessionPath,
    waiting_chunks,
)
from app.sessions.chunks.receive import Adding, Piece, begin, count_refused, receive_chunk
from app.sessions.chunks.seal import is_complete, seal
from app.sessions.decoding import Body, trace_limits
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session

# A batch's transaction and its memory are bounded by these.
BATCH: Final = 128
BATCH_BYTES: Final = 16 * 1024 * 1024
# Of a batch; decoding one takes seconds.
LEASE: Final = timedelta(seconds=60)
# Workers that a body may kill.
MAX_TRIES: Final = 3
# How long other workers are waited for before it is looked again.
OTHERS_S: Final = 0.2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Refusal:
    item: InboxItem
    error: PacelineError


@dataclass(frozen=True, slots=True)
class _Batch:
    token: uuid.UUID
    project_id: int
    session_id: uuid.UUID
    items: Sequence[InboxItem]


class KilledWorkerError(PacelineError):
    """Every worker that began to decode a chunk was killed."""

    code = "chunk.worker_killed"


class LargeChunkError(PacelineError):
    """Decoding a chunk, alone, took more memory than a worker may have for it."""

    code = "chunk.memory_limit"


class UndecodableChunkError(PacelineError):
    """Decoding a chunk failed in a way that was not foreseen."""

    code = "chunk.internal_error"


class LateChunkError(PacelineError):
    """A chunk came into the inbox after its session had been merged."""

    code = "session.sealed"


class DifferentChunkError(PacelineError):
    """Another chunk is there under the same path."""

    code = "chunk.differs"


def absorb(container: Container, session_id: uuid.UUID | None = None) -> int:
    """Take one batch of one session; return how many bodies it was, 0 where nothing waits.

    Parameters
    ----------
    session_id : UUID, optional
        Of which session; without it, the one of the oldest body that no worker has.
    """
    batch = _claim(container, session_id)
    if batch is None:
        return 0
    within = container.within(batch.project_id)
    pieces, refusals, left = _decoded(within, batch)
    try:
        _store(within, batch, pieces, refusals)
    except QuotaExceededError as error:
        # Those that are left are taken one by one, up to the one that is over the quota.
        _store(within, batch, (), refusals)
        for item, piece in pieces:
            try:
                _store(within, batch, [(item, piece)], ())
            except QuotaExceededError:
                _store(within, batch, (), [_Refusal(item, error)])
    if left:
        _give_back(within, batch, left)
    return len(batch.items)


def absorb_all(container: Container, session_id: uuid.UUID) -> None:
    """Take all that waits of a session that is sealed: nothing more comes.

    Other workers are waited for; one that was killed, until its lease is over.
    """
    while True:
        if absorb(container, session_id):
            continue
        with container.reading() as tx:
            if not tx.session.execute(select(waiting_chunks(session_id))).scalar_one():
                return
        time.sleep(OTHERS_S)


def _claim(container: Container, session_id: uuid.UUID | None) -> _Batch | None:
    token = uuid.uuid4()
    with container.everywhere().uow() as tx:
        free = and_(
            InboxItem.kind == InboxKind.CHUNK,
            InboxItem.code.is_(None),
            or_(InboxItem.lease_until.is_(None), InboxItem.lease_until < tx.now),
        )
        if session_id is None:
            session_id = tx.session.execute(
                select(InboxItem.session_id)
                .where(free, is_there(InboxItem.project_id))
                .order_by(InboxItem.received_at)
                .limit(1)
            ).scalar()
            if session_id is None:
                return None
        found = tx.session.execute(
            select(InboxItem.id, InboxItem.body_bytes, InboxItem.tries)
            .where(InboxItem.session_id == session_id, free)
            .order_by(InboxItem.tries, InboxItem.received_at)
            .limit(BATCH)
            .with_for_update(skip_locked=True)
        ).all()
        ids: list[int] = []
        size = 0
        for row in found:
            # What a worker was killed with is tried alone: it may be the one that killed it.
            if ids and (row.tries or size + row.body_bytes > BATCH_BYTES):
                break
            ids.append(row.id)
            size += row.body_bytes
            if row.tries:
                break
        items = (
            tx.session.execute(
                update(InboxItem)
                .where(InboxItem.id.in_(ids))
                .values(claim_token=token, lease_until=tx.now + LEASE, tries=InboxItem.tries + 1)
                .returning(InboxItem)
            )
            .scalars()
            .all()
        )
    if not items:
        return None
    items = sorted(items, key=lambda item: (item.received_at, item.id))
    return _Batch(token, items[0].project_id, session_id, items)


def _decoded(
    container: Container, batch: _Batch
) -> tuple[list[tuple[InboxItem, Piece]], list[_Refusal], Sequence[InboxItem]]:
    """Return what the bodies of a batch hold, those that are refused, and those left for later.

    All of them together have the memory that the settings say. Where it was not enough, the rest is
    left: what was tried once is decoded alone the next time, and then refused.
    """
    pieces: list[tuple[InboxItem, Piece]] = []
    refusals: list[_Refusal] = []
    with limited_memory(container.settings.inbox_memory_limit_kib):
        for place, item in enumerate(batch.items):
            try:
                pieces.append((item, _piece(container, item)))
            except ObjectStoreError:
                # Not the body's fault: it stays, and is tried again.
                raise
            except MemoryError:
                if pieces:
                    return pieces, refusals, batch.items[place:]
                refusals.append(_Refusal(item, _too_large(container, item)))
            except PacelineError as error:
                refusals.append(_Refusal(item, error))
            except Exception:
                log.exception("chunk not decoded", producer=item.producer, chunk=item.number)
                message = "Decoding it failed unexpectedly; the log of the worker has the details."
                refusals.append(_Refusal(item, UndecodableChunkError(message)))
    return pieces, refusals, ()


def _too_large(container: Container, item: InboxItem) -> LargeChunkError:
    limit_kib = container.settings.inbox_memory_limit_kib
    return LargeChunkError(
        f"Its {item.body_bytes:,} bytes did not fit into {limit_kib / KIB:,.0f} MiB when they were "
        f"decoded: send fewer steps in one chunk, or set {variable('inbox_memory_limit_kib')} to "
        f"{2 * limit_kib} on workers that have twice as much."
    )


def _give_back(container: Container, batch: _Batch, items: Sequence[InboxItem]) -> None:
    """End the leases of bodies that were not decoded; any worker may claim them."""
    with container.uow() as tx:
        tx.session.execute(
            update(InboxItem)
            .where(
                InboxItem.id.in_([item.id for item in items]), InboxItem.claim_token == batch.token
            )
            .values(claim_token=None, lease_until=None)
        )


def _piece(container: Container, item: InboxItem) -> Piece:
    if item.tries > MAX_TRIES:
        raise KilledWorkerError(
            f"The worker was killed in each of {MAX_TRIES} attempts to decode it; most often that "
            "means that it ran out of memory."
        )
    decoded = decode(
        item.body or b"",
        None if item.meta is None else parse_metadata(item.meta),
        limits=trace_limits(container.settings),
        content_type=item.content_type,
        format_name=item.format_name,
        part=True,
    )
    return Piece(
        item.producer,
        item.number,
        item.sha256,
        item.body_bytes,
        item.final,
        item.received_at,
        decoded,
        container.stage(pack(decoded.trace)),
    )


def _store(
    container: Container,
    batch: _Batch,
    pieces: Sequence[tuple[InboxItem, Piece]],
    refusals: Sequence[_Refusal],
) -> None:
    """Add what was decoded, and say of the rest why it was not, in one transaction."""
    with container.uow() as tx:
        job = _lock(tx, batch.session_id)
        if job is None:
            return
        adding = begin(tx, batch.session_id, {piece.producer for _, piece in pieces})
        mine = set(
            tx.session.execute(
                delete(InboxItem)
                .where(
                    InboxItem.id.in_([item.id for item, _ in pieces]),
                    InboxItem.claim_token == batch.token,
                )
                .returning(InboxItem.id)
            ).scalars()
        )
        there = _there(tx, batch.session_id, [piece for _, piece in pieces])
        refused = list(refusals)
        for item, piece in pieces:
            if item.id not in mine:
                continue
            try:
                _add(container, tx, adding, piece, there)
            except PacelineError as error:
                refused.append(_Refusal(item, error))
        for refusal in refused:
            _refuse(tx, batch, adding.intake, refusal, job, again=refusal.item.id in mine)
        tx.session.flush()
        if adding.intake.sealed_at is None and is_complete(tx, adding.session):
            seal(tx, batch.session_id, "final")
        adding.count(container, tx, first=False)
    log.info(
        "inbox taken",
        session=str(batch.session_id),
        chunks=len(mine),
        refused=len(refused),
        operations=adding.operations,
    )


def _add(
    container: Container,
    tx: UnitOfWork,
    adding: Adding,
    piece: Piece,
    there: dict[tuple[str, int], bytes],
) -> None:
    known = there.get((piece.producer, piece.number))
    if known == piece.sha256:
        return
    if known is not None:
        raise DifferentChunkError(
            f"Chunk {piece.number} of {piece.producer} exists with other bytes."
        )
    if adding.session.trace_blob is not None or adding.session.trace_removed_at is not None:
        raise LateChunkError(
            f"Session {adding.session.number} is sealed: it accepts no more chunks."
        )
    adding.add(container, tx, piece)


def _lock(tx: UnitOfWork, session_id: uuid.UUID) -> str | None:
    """Lock the intake of a session and return its job's name; None where it was deleted."""
    return tx.session.execute(
        select(Job.name)
        .join(Session, Session.job_id == Job.id)
        .join(Intake, Intake.session_id == Session.id)
        .where(Intake.session_id == session_id)
        .with_for_update(of=Intake, key_share=True)
    ).scalar()


def _there(
    tx: UnitOfWork, session_id: uuid.UUID, pieces: Sequence[Piece]
) -> dict[tuple[str, int], bytes]:
    rows = tx.session.execute(
        select(Chunk.producer, Chunk.number, Chunk.sha256).where(
            Chunk.session_id == session_id,
            Chunk.producer.in_({piece.producer for piece in pieces}),
        )
    )
    return {(row.producer, row.number): row.sha256 for row in rows}


def _refuse(  # noqa: PLR0913 - one of each
    tx: UnitOfWork,
    batch: _Batch,
    intake: Intake,
    refusal: _Refusal,
    job: str,
    *,
    again: bool,
) -> None:
    """Keep why a body was refused, without its bytes; `again` where its row was deleted above."""
    item, error = refusal.item, refusal.error
    said = {
        "body": None,
        "claim_token": None,
        "lease_until": None,
        "code": error.stable_code,
        "reason": error.message,
        "faults": error.faults,
    }
    if again:
        tx.session.add(
            InboxItem(
                kind=item.kind,
                session_id=item.session_id,
                producer=item.producer,
                number=item.number,
                sha256=item.sha256,
                received_at=item.received_at,
                final=item.final,
                body_bytes=item.body_bytes,
                **said,
            )
        )
    else:
        kept = tx.session.execute(
            update(InboxItem)
            .where(InboxItem.id == item.id, InboxItem.claim_token == batch.token)
            .values(**said)
            .returning(InboxItem.id)
        ).scalar()
        if kept is None:
            return
    intake.refused_chunks += 1
    intake.refused_bytes += item.body_bytes
    intake.last_chunk_at = max(intake.last_chunk_at, item.received_at)
    count_refusal(tx, job, item.body_bytes, error.stable_code)
    log.info(
        "chunk refused",
        session=str(batch.session_id),
        producer=item.producer,
        chunk=item.number,
        code=error.stable_code,
    )


# ---- Receive chunks of one session together: one transaction for all that came meanwhile -------
# For what is usual: the session is there and open, and so is room for them, and the chunks are new.
# Whatever else there is to say of a chunk, `receive_chunk` says it.


def receive_together(
    container: Container, path: SessionPath, chunks: Sequence[Arrived]
) -> list[ChunkReceipt | None]:
    """Store chunks durably; return the receipt of each, in their order.

    Parameters
    ----------
    path : SessionPath
        Their session.
    chunks : sequence of Arrived
        Of names that `check_path` passed.

    Returns
    -------
    list
        None for those that are not stored: give these to `receive_chunk`, one by one.
    """
    wanted: dict[ChunkName, Arrived] = {}
    for one in chunks:
        if (
            one.body.own is None
            and one.body.size <= inbox.LARGEST_BYTES
            and _is_known(container.settings, one.body)
        ):
            wanted.setdefault(one.name, one)
    receipts = _store_batch(container, path, wanted)
    if receipts is None and wanted:
        # The first one makes the session, and the others find it.
        name = next(iter(wanted))
        try:
            made = receive_chunk(
                container, wanted[name].path, wanted[name].body, final=wanted[name].final
            )
        except PacelineError:
            # It will be told why.
            return [None for _ in chunks]
        rest = {other: one for other, one in wanted.items() if other != name}
        receipts = {name: made, **(_store_batch(container, path, rest) or {})}
    # Of two with one name, the second is told about the first.
    return [
        None if receipts is None or wanted.get(one.name) is not one else receipts.get(one.name)
        for one in chunks
    ]


def receive_each(
    container: Container,
    path: SessionPath,
    chunks: Sequence[Arrived],
    pressure: inbox.Pressure,
) -> list[ChunkReceipt | PacelineError]:
    """Store chunks durably; return of each its receipt, or why it is not stored.

    Each is stored whole or not at all, whatever becomes of the others.

    Raises
    ------
    InboxFullError
        None is stored.
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
        except PacelineError as error:
            outcomes.append(error)
            if not isinstance(error, TryLaterError):
                count_refused(container, chunk.path, chunk.body.size, error.stable_code)
    return outcomes


def _store_batch(
    container: Container, path: SessionPath, wanted: Mapping[ChunkName, Arrived]
) -> dict[ChunkName, ChunkReceipt] | None:
    """Return the receipts of what is stored; None where there is no session that takes chunks."""
    if not wanted:
        return {}
    try:
        with container.uow() as tx:
            return _append(tx, container, path, wanted)
    except (QuotaExceededError, inbox.SealedMeanwhileError):
        return {}


def _is_known(settings: Settings, body: Body) -> bool:
    try:
        recognize(
            body.source,
            limits=trace_limits(settings),
            content_type=body.content_type,
            format_name=body.format_name,
        )
    except PacelineError:
        return False
    return True


def _append(
    tx: UnitOfWork, container: Container, path: SessionPath, wanted: Mapping[ChunkName, Arrived]
) -> dict[ChunkName, ChunkReceipt] | None:
    session = tx.session.execute(
        select(Session.id, Session.number, Session.state, Intake.refused_chunks)
        .join(Job)
        .join(Intake, Intake.session_id == Session.id)
        .where(path.names_session(), Intake.sealed_at.is_(None))
    ).one_or_none()
    if session is None:
        return None
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
    _check_room(tx, container, session.id, new)
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


def _check_room(
    tx: UnitOfWork, container: Container, session_id: uuid.UUID, chunks: Sequence[Arrived]
) -> None:
    """Refuse all where one of them may be over a quota.

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
    producers = {one.path.producer for one in chunks}
    known: set[str] = set()
    for table in (Chunk, InboxItem):
        known.update(
            tx.session.execute(
                select(table.producer)
                .where(table.session_id == session_id, table.producer.in_(producers))
                .distinct()
            ).scalars()
        )
    new = len(producers - known)
    if new:
        use = use_of(tx, project_id, made=())
        if use.producers + inbox.new_producers(tx) + new > limit:
            raise exceeded(PRODUCERS, use, limit)
