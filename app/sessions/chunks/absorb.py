"""Absorb the inbox: workers decode waiting chunks and add them to their sessions in batches.

A worker leases a batch of one session, decodes it outside any transaction, and adds it in one
transaction: killed at any moment, it leaves the inbox as it was. A chunk that fails to decode is
refused: its row keeps the reason and loses its bytes; the session continues without it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy import and_, delete, or_, select, update

from app.analysis.generation import READS
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.storage import pack
from app.errors import PacelineError
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.projects import is_there
from app.platform.database.states import InboxKind
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.killable import MEMORY_LIMIT, ReadLimitError, allowance, call
from app.platform.resources import KIB
from app.platform.settings import MIB, Settings
from app.platform.settings.kinds import variable
from app.quotas.usage import QuotaExceededError
from app.sessions.arriving import count_refusal
from app.sessions.body import PREPARATION, Body, decode_chunks, trace_limits
from app.sessions.chunks.inbox import waiting_chunks
from app.sessions.chunks.intake import (
    ChunkWriter,
    DecodedChunk,
    chunk_writer,
    different_chunk,
    is_complete,
    seal,
    sealed_session,
)
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session

# Limits of the chunks and bytes of a batch: they limit its transaction and its memory.
BATCH: Final = 128
BATCH_BYTES: Final = 16 * MIB
# Lease time of a batch; decoding a batch takes seconds.
LEASE: Final = timedelta(seconds=60)
# A chunk is refused once this many workers were killed while they decoded it.
MAX_TRIES: Final = 3
# Interval at which a worker checks whether other workers have finished their batches.
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
    """Every worker that began to decode the chunk was killed."""

    code = "chunk.worker_killed"


class LargeChunkError(PacelineError):
    """Decoding the chunk exceeded the memory limit, even without other chunks."""

    code = "chunk.memory_limit"


class UndecodableChunkError(PacelineError):
    """Decoding the chunk raised an unexpected error."""

    code = "chunk.internal_error"


def absorb(container: Container, session_id: uuid.UUID | None = None) -> int:
    """Absorb one batch of one session; return its number of chunks, 0 if no chunk waits.

    Parameters
    ----------
    session_id : UUID, optional
        The session; without it, that of the oldest chunk without a lease.
    """
    batch = _claim(container, session_id)
    if batch is None:
        return 0
    within = container.within(batch.project_id)
    chunks, refusals, left = _decoded(within, batch)
    try:
        _store(within, batch, chunks, refusals)
    except QuotaExceededError as error:
        # Store the chunks one by one, so that only chunks over the quota are refused.
        _store(within, batch, (), refusals)
        for item, chunk in chunks:
            try:
                _store(within, batch, [(item, chunk)], ())
            except QuotaExceededError:
                _store(within, batch, (), [_Refusal(item, error)])
    if left:
        # End the leases of undecoded chunks, so that any worker may claim them.
        with within.uow() as tx:
            tx.session.execute(
                update(InboxItem)
                .where(
                    InboxItem.id.in_([item.id for item in left]),
                    InboxItem.claim_token == batch.token,
                )
                .values(claim_token=None, lease_until=None)
            )
    return len(batch.items)


def absorb_all(container: Container, session_id: uuid.UUID) -> None:
    """Absorb all waiting chunks of a sealed session.

    Waits for batches of other workers; for those of a killed worker until its lease ends.
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
            InboxItem.needs <= READS,
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
        rows = tx.session.execute(
            select(InboxItem.id, InboxItem.body_bytes, InboxItem.tries)
            .where(InboxItem.session_id == session_id, free)
            .order_by(InboxItem.tries, InboxItem.received_at)
            .limit(BATCH)
            .with_for_update(skip_locked=True)
        ).all()
        ids: list[int] = []
        size = 0
        for row in rows:
            # A chunk that a killed worker was decoding is decoded alone, as it may have caused the
            # kill.
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
) -> tuple[list[tuple[InboxItem, DecodedChunk]], list[_Refusal], Sequence[InboxItem]]:
    """Return the decoded chunks of a batch, the refused ones, and those left for a later batch.

    The batch is decoded in one process and shares its limits of time and memory. Where one is
    exceeded, the rest is left: a chunk that was tried before is decoded alone the next time, and
    refused if it exceeds the limit then.
    """
    settings = container.settings
    refusals = [
        _Refusal(
            item,
            KilledWorkerError(
                f"The worker was killed in each of {MAX_TRIES} attempts to decode it; most often "
                "that means that it ran out of memory."
            ),
        )
        for item in batch.items
        if item.tries > MAX_TRIES
    ]
    items = [item for item in batch.items if item.tries <= MAX_TRIES]
    outcomes: Sequence[Decoded | PacelineError | str | None] = ()
    try:
        if items:
            outcomes = call(
                decode_chunks,
                *([(_body(item), item.meta) for item in items], trace_limits(settings)),
                limits=allowance(
                    sum(item.body_bytes for item in items), settings.inbox_memory_limit_kib
                ),
                prepare=PREPARATION,
            )
    except ReadLimitError as error:
        if len(items) > 1:
            # Each of them is decoded alone the next time, as it was tried before.
            return [], refusals, items
        message, code = f"{items[0].producer}: {error.message}", error.stable_code
        log.warning("chunk over a limit", producer=items[0].producer, code=code)
        outcomes = [None if code == MEMORY_LIMIT else ReadLimitError(message, code=code)]
    chunks: list[tuple[InboxItem, DecodedChunk]] = []
    for item, outcome in zip(items, outcomes, strict=False):
        if isinstance(outcome, Decoded):
            chunks.append((item, _staged(container, item, outcome)))
        elif isinstance(outcome, PacelineError):
            refusals.append(_Refusal(item, outcome))
        elif isinstance(outcome, str):
            log.error("chunk not decoded", producer=item.producer, chunk=item.number, error=outcome)
            message = "Decoding it failed unexpectedly; the log of the worker has the details."
            refusals.append(_Refusal(item, UndecodableChunkError(message)))
        else:
            refusals.append(_Refusal(item, _large(settings, item)))
    return chunks, refusals, items[len(outcomes) :]


def _body(item: InboxItem) -> Body:
    return Body(
        source=item.body or b"",
        size=item.body_bytes,
        digest=item.sha256,
        content_type=item.content_type,
        meta=None,
        format_name=item.format_name,
    )


def _large(settings: Settings, item: InboxItem) -> LargeChunkError:
    limit_kib = settings.inbox_memory_limit_kib
    return LargeChunkError(
        f"Its {item.body_bytes:,} bytes did not fit into {limit_kib / KIB:,.0f} MiB when they were "
        f"decoded: send fewer steps in one chunk, or set {variable('inbox_memory_limit_kib')} to "
        f"{2 * limit_kib} on workers that have twice as much."
    )


def _staged(container: Container, item: InboxItem, decoded: Decoded) -> DecodedChunk:
    return DecodedChunk(
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
    chunks: Sequence[tuple[InboxItem, DecodedChunk]],
    refusals: Sequence[_Refusal],
) -> None:
    """Add decoded chunks and record refusals, in one transaction."""
    with container.uow() as tx:
        job = tx.session.execute(
            select(Job.name)
            .join(Session, Session.job_id == Job.id)
            .join(Intake, Intake.session_id == Session.id)
            .where(Intake.session_id == batch.session_id)
            .with_for_update(of=Intake, key_share=True)
        ).scalar()
        if job is None:
            # The session was deleted meanwhile.
            return
        producers = {chunk.producer for _, chunk in chunks}
        writer = chunk_writer(container, tx, batch.session_id, producers)
        leased = set(
            tx.session.execute(
                delete(InboxItem)
                .where(
                    InboxItem.id.in_([item.id for item, _ in chunks]),
                    InboxItem.claim_token == batch.token,
                )
                .returning(InboxItem.id)
            ).scalars()
        )
        present = {
            (row.producer, row.number): row.sha256
            for row in tx.session.execute(
                select(Chunk.producer, Chunk.number, Chunk.sha256).where(
                    Chunk.session_id == batch.session_id, Chunk.producer.in_(producers)
                )
            )
        }
        refused = list(refusals)
        for item, chunk in chunks:
            if item.id not in leased:
                continue
            try:
                _add(container, tx, writer, chunk, present.get((chunk.producer, chunk.number)))
            except PacelineError as error:
                refused.append(_Refusal(item, error))
        for refusal in refused:
            _refuse(tx, batch, writer.intake, refusal, job, deleted=refusal.item.id in leased)
        tx.session.flush()
        if writer.intake.sealed_at is None and is_complete(tx, writer.session):
            seal(tx, batch.session_id, "final")
        writer.finish(container, tx, first=False)
    log.info(
        "inbox taken",
        session=str(batch.session_id),
        chunks=len(leased),
        refused=len(refused),
        operations=writer.operations,
    )


def _add(
    container: Container,
    tx: UnitOfWork,
    writer: ChunkWriter,
    chunk: DecodedChunk,
    present_sha256: bytes | None,
) -> None:
    if present_sha256 == chunk.sha256:
        return
    if present_sha256 is not None:
        raise different_chunk(chunk.producer, chunk.number)
    if writer.session.trace_blob is not None or writer.session.trace_removed_at is not None:
        raise sealed_session(writer.session.number)
    writer.add(container, tx, chunk)


def _refuse(  # noqa: PLR0913 - one of each
    tx: UnitOfWork,
    batch: _Batch,
    intake: Intake,
    refusal: _Refusal,
    job: str,
    *,
    deleted: bool,
) -> None:
    """Store a refusal in the inbox, without the chunk's bytes; `deleted`: insert the row again."""
    item, error = refusal.item, refusal.error
    refused = {
        "body": None,
        "claim_token": None,
        "lease_until": None,
        "code": error.stable_code,
        "reason": error.message,
        "faults": error.faults,
    }
    if deleted:
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
                **refused,
            )
        )
    else:
        kept = tx.session.execute(
            update(InboxItem)
            .where(InboxItem.id == item.id, InboxItem.claim_token == batch.token)
            .values(**refused)
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
