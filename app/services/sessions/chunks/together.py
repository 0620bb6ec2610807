"""Receive chunks of one session together: one transaction for all that came meanwhile.

For what is usual: the session is there and open, and so is room for them, and the chunks are new.
Whatever else there is to say of a chunk, `receive_chunk` says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, tuple_

from app.analysis.trace.decode import recognize
from app.db.models.chunks import Chunk, InboxItem, Intake
from app.db.models.sessions import Job, Session
from app.errors import PacelineError, TryLaterError
from app.services.sessions.chunks import inbox
from app.services.sessions.chunks.path import ChunkReceipt, RefusedChunk
from app.services.sessions.chunks.receive import count_refused, receive_chunk
from app.services.sessions.decoding import trace_limits
from app.services.usage.count import check_room
from app.services.usage.quotas import (
    BYTES,
    OPERATIONS,
    PRODUCERS,
    QuotaExceededError,
    exceeded,
    use_of,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container
    from app.services.sessions.body import Body
    from app.services.sessions.chunks.inbox import Arrived, ChunkName
    from app.services.sessions.chunks.path import SessionPath
    from app.settings import Settings


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
    receipts = _store(container, path, wanted)
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
        receipts = {name: made, **(_store(container, path, rest) or {})}
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


def _store(
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
