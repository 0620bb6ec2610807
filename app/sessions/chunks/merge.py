"""Merge the chunks of a sealed session into one trace; receive the files of a folder as chunks.

The merged trace replaces the chunks' operations. Their rows stay, to recognize repeated chunks.

The files of a folder are chunks of a session that the folder's digest identifies instead of a
number: the same folder is the same session, and an interrupted upload resumes where it stopped.
The session is analyzed once its sender declares the folder complete; otherwise it is discarded
after a silence (`intake.seal_silent`).
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from sqlalchemy import CursorResult, func, select, update

from app.access.senders import check_sender
from app.analysis.generation import WRITES
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
from app.platform.blobs import Staged, open_blob, write_blob
from app.platform.container import Container
from app.platform.database.states import SealedBy, SessionState
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.body import Body
from app.sessions.chunks.absorb import absorb_all
from app.sessions.chunks.inbox import ChunkPath, ChunkReceipt
from app.sessions.chunks.intake import (
    PAUSE_KEY,
    SealReceipt,
    delete_chunk_blobs,
    seal_session,
)
from app.sessions.chunks.receive import receive_chunk
from app.sessions.models.tables import PRODUCERS_KEY, Chunk, Intake, Session
from app.sessions.receive import FIRST_ATTEMPT, check_job_name
from app.sessions.recordings.choose import NotRead
from app.sessions.recordings.listing import MAX_FILE_NAME_CHARS
from app.sessions.recordings.read import join_files, left_out


@dataclass(frozen=True, slots=True)
class _StoredChunk:
    producer: str
    number: int
    parts: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class _StoredChunks:
    meta: SessionMeta
    trace_format: str
    chunks: list[_StoredChunk]
    coverage: Chunks
    ended: frozenset[str]
    """Producers that sent their last chunk."""
    of_folder: bool
    """Whether the chunks are the files of a folder."""


class _AlreadyMergedError(Exception):
    """Another worker merged the chunks meanwhile: roll back the writes of this merge."""


def merge_session(container: Container, session_id: uuid.UUID) -> None:
    """Merge the chunks of a session into its trace, unless they are merged already.

    Raises
    ------
    UnanalyzableError
        The chunks contradict each other; they stay as they are.
    """
    absorb_all(container, session_id)
    with container.uow() as tx:
        stored = _read(tx, session_id)
    if stored is None:
        return
    chunks = [
        TraceChunk(chunk.producer, chunk.number, unpack(chunk.parts, stored.meta))
        for chunk in stored.chunks
    ]
    if stored.of_folder:
        merged = join_files(chunks, stored.meta, stored.trace_format)
    else:
        if FORMATS[stored.trace_format].whole_steps:
            chunks = in_order(chunks, of_files=False)
        merged = merge(chunks, stored.meta)
    ended_early = _ended_early(chunks, stored)
    staged = container.stage(pack(merged.trace))
    try:
        with container.uow() as tx:
            coverage = replace(stored.coverage, ended_early=ended_early)
            _store(tx, session_id, coverage, merged, staged)
    except _AlreadyMergedError:
        # The merge is deterministic, so the other worker has stored the same trace.
        return


def _read(tx: UnitOfWork, session_id: uuid.UUID) -> _StoredChunks | None:
    # FOR SHARE: another worker whose claim has ended may be replacing the chunks by the merged
    # trace.
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
    return _StoredChunks(
        meta,
        row.trace_format,
        [
            _StoredChunk(row.producer, row.number, open_blob(tx, cast("uuid.UUID", row.blob)))
            for row in rows
        ],
        _coverage(intake, rows),
        frozenset(row.producer for row in rows if row.final),
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
                needs=func.greatest(Session.needs, WRITES),
            )
        ),
    )
    if replaced.rowcount != 1:
        raise _AlreadyMergedError
    delete_chunk_blobs(tx, session_id)
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


def _ended_early(chunks: Sequence[TraceChunk], stored: _StoredChunks) -> tuple[EndedEarly, ...]:
    """Return the producers without a last chunk, if the session's producers send last chunks."""
    extra = stored.meta.extra
    if not stored.ended and PAUSE_KEY not in extra:
        return ()
    last: dict[str, int] = {}
    for chunk in chunks:
        step = int(chunk.trace.step.max())
        last[chunk.producer] = max(step, last.get(chunk.producer, step))
    expected = extra.get(PRODUCERS_KEY)
    names = {*last, *(map(str, expected) if isinstance(expected, list) else ())}
    return tuple(EndedEarly(name, last.get(name)) for name in sorted(names - stored.ended))


def _coverage(intake: Intake, rows: Sequence[Chunk]) -> Chunks:
    producers: dict[str, ChunkProducer] = {}
    for row in rows:
        sent = producers.get(row.producer, ChunkProducer(row.producer, 0, 0))
        producers[row.producer] = replace(
            sent, chunks=sent.chunks + 1, operations=sent.operations + row.operations
        )
    return Chunks(
        chunks=len(rows),
        producers=tuple(producers.values()),
        # Not null: only sealed sessions are merged.
        sealed_by=cast("SealedBy", intake.sealed_by),
        refused_chunks=intake.refused_chunks,
        refused_bytes=intake.refused_bytes,
        dropped=DroppedOperations(0, ()),
    )


_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FolderUpload:
    """The stored files of a folder, and their session."""

    session: uuid.UUID
    number: int
    state: SessionState
    files: tuple[str, ...]  # names
    sealed: bool


def folder_path(job: str, folder: str, name: str) -> ChunkPath:
    """Return the chunk path of a file of a folder; each file is one chunk.

    Raises
    ------
    InvalidJobNameError
    InvalidFolderError
        ``folder.malformed``: the folder is not a digest, or the name is too long or has a NUL.
    """
    check_job_name(job)
    if not _FOLDER.fullmatch(folder):
        raise InvalidFolderError("A folder is named by 64 hex digits.", code="folder.malformed")
    if not 0 < len(name) <= MAX_FILE_NAME_CHARS or "\0" in name:
        message = f"A file's name has 1 to {MAX_FILE_NAME_CHARS} characters."
        raise InvalidFolderError(message, code="folder.malformed")
    # The prefix keeps the digest different from that of any body.
    content = hashlib.sha256(b"folder " + folder.encode()).digest()
    return ChunkPath(job, FIRST_ATTEMPT, 0, name, 0, content)


def receive_file(
    container: Container, path: ChunkPath, body: Body, world: int | None
) -> ChunkReceipt:
    """Decode a file of a folder and store it durably; the first file creates the session.

    Parameters
    ----------
    world : int or None
        Number of ranks, if the names of the files name all ranks.

    Raises
    ------
    See `receive_chunk`; also ``file.mixed_formats``.
    """
    names = FileNames(rank_in(path.producer), world)
    return receive_chunk(container, path, replace(body, names=names), final=False)


def folder_upload(container: Container, job: str, folder: str) -> FolderUpload | None:
    """Return the stored files of a folder; None if no file is stored."""
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
        return FolderUpload(row.id, row.number, row.state, tuple(names), row.sealed_at is not None)


def seal_folder(
    container: Container, job: str, folder: str, not_read: Sequence[NotRead]
) -> SealReceipt:
    """Seal the session of a complete folder and queue its analysis.

    Parameters
    ----------
    not_read : sequence of NotRead
        The other files of the folder, for its report.

    Raises
    ------
    NotFoundError
        No file of the folder is stored.
    AttemptOwnedError
    """
    path = folder_path(job, folder, "any")
    with container.uow() as tx:
        check_sender(container, tx, job)
        session = tx.session.execute(
            select(Session)
            .join(Job)
            .join(Intake, Intake.session_id == Session.id)
            .where(path.names_session(), Intake.sealed_at.is_(None))
            .with_for_update(of=Session)
        ).scalar_one_or_none()
        if session is not None and not_read:
            unmapped = (*unmapped_of(session.meta), *left_out(not_read))
            session.meta = with_unmapped(session.meta, unmapped)
    upload = folder_upload(container, job, folder)
    if upload is None:
        raise NotFoundError("Nothing of this folder is here.")
    return seal_session(container, job, FIRST_ATTEMPT, upload.number)
