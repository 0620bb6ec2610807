"""Use case: make one trace of the chunks of a sealed session.

The merged trace takes the place of the chunks' bytes. Their rows stay: the same chunk sent once
more is still recognized.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import CursorResult, select, update

from app.analysis.report.coverage import (
    ChunkProducer,
    Chunks,
    DroppedOperations,
    EndedEarly,
    RepeatedChunk,
)
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.merge import Merged, TraceChunk, merge
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.recordings.files.steps import in_order
from app.analysis.trace.storage.packed import pack, unpack
from app.db.blobs import delete_blob, open_blob, write_blob
from app.db.models.chunks import Chunk, Intake
from app.db.models.sessions import Session
from app.inputs.recordings.read import join_files
from app.services.sessions.chunks.absorb import absorb_all
from app.services.sessions.chunks.seal import PAUSE_KEY, PRODUCERS_KEY

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Sequence

    from app.analysis.trace.model import SessionMeta
    from app.db.blobs import Staged
    from app.db.states import SealedBy
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


@dataclass(frozen=True, slots=True)
class _Packed:
    producer: str
    number: int
    parts: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class _Pieces:
    meta: SessionMeta
    trace_format: str
    chunks: list[_Packed]
    coverage: Chunks
    # producers that sent their last chunk
    ended: frozenset[str]
    # they are the files of a folder
    of_folder: bool

    def unpacked(self) -> list[TraceChunk]:
        return [
            TraceChunk(piece.producer, piece.number, unpack(piece.parts, self.meta))
            for piece in self.chunks
        ]


class _AlreadyMergedError(Exception):
    """Another worker merged the chunks meanwhile: roll back what this one wrote."""


def merge_session(container: Container, session_id: uuid.UUID) -> None:
    """Merge the chunks of a session, unless it has its trace already.

    Raises
    ------
    UnanalyzableError
        If the chunks contradict each other; they stay as they are.
    """
    absorb_all(container, session_id)
    with container.uow() as tx:
        pieces = _read(tx, session_id)
    if pieces is None:
        return
    chunks = pieces.unpacked()
    if pieces.of_folder:
        merged = join_files(chunks, pieces.meta, pieces.trace_format)
    else:
        if FORMATS[pieces.trace_format].whole_steps:
            chunks = in_order(chunks, of_files=False)
        merged = merge(chunks, pieces.meta)
    ended_early = _ended_early(chunks, pieces)
    staged = container.stage(pack(merged.trace))
    try:
        with container.uow() as tx:
            coverage = replace(pieces.coverage, ended_early=ended_early)
            _store(tx, session_id, coverage, merged, staged)
    except _AlreadyMergedError:
        # Both made the same trace of the same chunks.
        return


def _read(tx: UnitOfWork, session_id: uuid.UUID) -> _Pieces | None:
    # Locked: a worker that lost its claim may be about to replace the chunks by their trace.
    row = tx.session.execute(
        select(Session.meta, Session.trace_blob, Session.trace_format, Session.content_sha256)
        .where(Session.id == session_id)
        .with_for_update(read=True)
    ).one_or_none()
    if row is None or row.trace_blob is not None:
        return None
    meta = parse_metadata(row.meta)
    intake = tx.session.get_one(Intake, session_id)
    rows = (
        tx.session.execute(
            select(Chunk)
            .where(Chunk.session_id == session_id, Chunk.blob.is_not(None))
            .order_by(Chunk.producer, Chunk.number)
        )
        .scalars()
        .all()
    )
    return _Pieces(
        meta,
        row.trace_format,
        [
            _Packed(row.producer, row.number, open_blob(tx, cast("uuid.UUID", row.blob)))
            for row in rows
        ],
        _coverage(intake, rows),
        frozenset(piece.producer for piece in rows if piece.final),
        row.content_sha256 is not None,
    )


def _store(
    tx: UnitOfWork, session_id: uuid.UUID, coverage: Chunks, merged: Merged, staged: Staged
) -> None:
    trace = merged.trace
    replaced = cast(
        "CursorResult[Any]",
        tx.session.execute(
            update(Session)
            .where(Session.id == session_id, Session.trace_blob.is_(None))
            .values(
                trace_blob=write_blob(tx, staged),
                operations=len(trace),
                steps=trace.step_count(),
            )
        ),
    )
    if replaced.rowcount != 1:
        raise _AlreadyMergedError
    blobs = tx.session.execute(
        select(Chunk.blob).where(Chunk.session_id == session_id, Chunk.blob.is_not(None))
    ).scalars()
    for blob in blobs.all():
        delete_blob(tx, cast("uuid.UUID", blob))
    tx.session.execute(update(Chunk).where(Chunk.session_id == session_id).values(blob=None))
    dropped = DroppedOperations(
        operations=sum(chunk.operations for chunk in merged.dropped),
        chunks=tuple(
            RepeatedChunk(chunk.producer, chunk.number, chunk.operations)
            for chunk in merged.dropped
        ),
    )
    tx.session.execute(
        update(Intake)
        .where(Intake.session_id == session_id)
        .values(merged=replace(coverage, dropped=dropped))
    )


def _ended_early(chunks: Sequence[TraceChunk], pieces: _Pieces) -> tuple[EndedEarly, ...]:
    """Return the producers without a last chunk, in a session that is known to have last chunks."""
    told = pieces.meta.extra
    if not pieces.ended and PAUSE_KEY not in told:
        return ()
    last: dict[str, int] = {}
    for chunk in chunks:
        step = int(chunk.trace.step.max())
        last[chunk.producer] = max(step, last.get(chunk.producer, step))
    expected = told.get(PRODUCERS_KEY)
    names = {*last, *(map(str, expected) if isinstance(expected, list) else ())}
    return tuple(EndedEarly(name, last.get(name)) for name in sorted(names - pieces.ended))


def _coverage(intake: Intake, rows: Sequence[Chunk]) -> Chunks:
    producers: dict[str, ChunkProducer] = {}
    for row in rows:
        known = producers.get(row.producer, ChunkProducer(row.producer, 0, 0))
        producers[row.producer] = replace(
            known, chunks=known.chunks + 1, operations=known.operations + row.operations
        )
    return Chunks(
        chunks=len(rows),
        producers=tuple(producers.values()),
        # only a sealed session is merged
        sealed_by=cast("SealedBy", intake.sealed_by),
        refused_chunks=intake.refused_chunks,
        refused_bytes=intake.refused_bytes,
        dropped=DroppedOperations(0, ()),
    )
