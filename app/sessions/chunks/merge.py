"""Use case: make one trace of the chunks of a sealed session.

The merged trace takes the place of the chunks' bytes. Their rows stay: the same chunk sent once
more is still recognized.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

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
from app.analysis.trace.metadata import parse_metadata, unmapped_of, with_unmapped
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import FileNames, in_order, rank_in
from app.analysis.trace.storage import pack, unpack
from app.errors import InvalidFolderError, NotFoundError
from app.jobs.models import Job
from app.platform.blobs import Staged, delete_blob, open_blob, write_blob
from app.platform.container import Container
from app.platform.database.states import SealedBy, SessionState
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.chunks.absorb import absorb_all
from app.sessions.chunks.inbox import ChunkPath, ChunkReceipt
from app.sessions.chunks.receive import receive_chunk
from app.sessions.chunks.seal import PAUSE_KEY, PRODUCERS_KEY, SealReceipt, seal_session
from app.sessions.decoding import Body
from app.sessions.models.tables import Chunk, Intake, Session
from app.sessions.receive import FIRST_ATTEMPT, check_job_name
from app.sessions.recordings.choose import NotRead
from app.sessions.recordings.listing import MAX_FILE_NAME_CHARS
from app.sessions.recordings.read import join_files, left_out


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


# ---- Use cases: the files of a folder, sent one after the other, become one session ------------
# They are chunks of a session that their content names, not a number: so the same folder is the
# same session, and what came before a line broke need not come again. It is analyzed when whoever
# sends it says that all is here. If that is never said, it is discarded (`seal.seal_silent`).


_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FolderStanding:
    """What has come of a folder."""

    session: uuid.UUID
    number: int
    state: SessionState
    files: tuple[str, ...]  # names of those that are here
    sealed: bool


def folder_path(job: str, folder: str, name: str) -> ChunkPath:
    """Return the path of a file of a folder, which has one part.

    Raises
    ------
    InvalidJobNameError
    InvalidFolderError
        ``folder.malformed``: the folder is no digest, or the name is none that is shown.
    """
    check_job_name(job)
    if not _FOLDER.fullmatch(folder):
        raise InvalidFolderError("A folder is named by 64 hex digits.", code="folder.malformed")
    if not 0 < len(name) <= MAX_FILE_NAME_CHARS or "\0" in name:
        message = f"A file's name has 1 to {MAX_FILE_NAME_CHARS} characters."
        raise InvalidFolderError(message, code="folder.malformed")
    return ChunkPath(job, FIRST_ATTEMPT, 0, name, 0, _content(folder))


def receive_file(
    container: Container, path: ChunkPath, body: Body, world: int | None
) -> ChunkReceipt:
    """Decode and check a file of a folder, and store it durably; the first makes the session.

    Parameters
    ----------
    world : int or None
        How many files there are, where their names say that they are those of all ranks.

    Raises
    ------
    See `receive_chunk`; also ``file.mixed_formats``.
    """
    names = FileNames(rank_in(path.producer), world)
    return receive_chunk(container, path, replace(body, names=names), final=False)


def folder_standing(container: Container, job: str, folder: str) -> FolderStanding | None:
    """Return what has come of a folder; None where nothing has."""
    path = folder_path(job, folder, "any")
    with container.reading() as tx:
        row = tx.session.execute(
            select(Session.id, Session.number, Session.state, Intake.sealed_at)
            .join(Job)
            .join(Intake, Intake.session_id == Session.id)
            .where(path.names_session())
        ).one_or_none()
        if row is None:
            return None
        names = tx.session.execute(
            select(Chunk.producer).where(Chunk.session_id == row.id).order_by(Chunk.producer)
        ).scalars()
        return FolderStanding(
            row.id, row.number, row.state, tuple(names), row.sealed_at is not None
        )


def seal_folder(
    container: Container, job: str, folder: str, not_read: Sequence[NotRead]
) -> SealReceipt:
    """Seal the session of a folder, all of which is here, and queue its analysis.

    Parameters
    ----------
    not_read : sequence of NotRead
        The other files of the folder, which its report names.

    Raises
    ------
    NotFoundError
        Nothing of the folder is here.
    """
    path = folder_path(job, folder, "any")
    with container.uow() as tx:
        session = tx.session.execute(
            select(Session)
            .join(Job)
            .join(Intake, Intake.session_id == Session.id)
            .where(path.names_session(), Intake.sealed_at.is_(None))
            .with_for_update(of=Session)
        ).scalar_one_or_none()
        if session is not None and not_read:
            known = unmapped_of(session.meta)
            session.meta = with_unmapped(session.meta, (*known, *left_out(not_read)))
    standing = folder_standing(container, job, folder)
    if standing is None:
        raise NotFoundError("Nothing of this folder is here.")
    return seal_session(container, job, FIRST_ATTEMPT, standing.number)


def _content(folder: str) -> bytes:
    # Apart from the digests of bodies.
    return hashlib.sha256(b"folder " + folder.encode()).digest()
