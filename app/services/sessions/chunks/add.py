"""Add decoded chunks to their session, under the lock of its intake.

Chunks may come in any order and from many producers at once, and meet the end of the session at
any moment. The lock keeps out who else adds or seals, and no one who only appends to the inbox.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.joint_metadata import join_documents
from app.analysis.trace.metadata import metadata_document
from app.db.blobs import write_blobs
from app.db.models.chunks import Chunk, Intake
from app.db.models.sessions import Job, Session
from app.db.states import SessionState
from app.errors import BodyTooLargeError, ConflictError, InvalidFolderError
from app.services.sessions.chunks.seal import PAUSE_KEY, no_chunks
from app.services.sessions.receive import make_job, next_number
from app.services.usage.count import count
from app.system.telemetry.spans import current

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from app.analysis.trace.formats.kind import Decoded
    from app.analysis.trace.model import Trace
    from app.db.blobs import Staged
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container
    from app.services.sessions.chunks.path import ChunkPath

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
