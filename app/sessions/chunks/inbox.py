"""The inbox stores chunks as they were sent, durably, until a worker decodes them.

A request appends one row: it decodes nothing, waits for no other sender of the session, and
notifies no listener. The row's foreign key locks the session's intake in shared mode until the
commit; sealing takes the exclusive lock, so every acknowledged chunk precedes the seal.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from psycopg.types.json import Jsonb
from sqlalchemy import ColumnElement, ScalarSelect, and_, exists, func, select

from app.analysis.generation import WRITES
from app.analysis.trace.metadata import Unmapped, metadata_document
from app.errors import Fault, PacelineError, TryLaterError
from app.jobs.models import Job
from app.platform.blobs import connection_of
from app.platform.container import Container
from app.platform.database.states import InboxKind, SessionState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import is_plain_name
from app.platform.settings import MIB, Settings
from app.sessions.body import Body
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session
from app.sessions.receive import check_job_name

MAX_PRODUCER_CHARACTERS: Final = 200


class InvalidProducerError(PacelineError):
    """A producer's name that cannot be used in a URL or on a page."""

    code = "producer.invalid_name"


@dataclass(frozen=True, slots=True)
class SessionPath:
    """The path of a session: its job, attempt and number."""

    job: str
    attempt: int
    session: int

    def names_session(self) -> ColumnElement[bool]:
        """Return the SQL condition that selects the session and its job."""
        return and_(
            Job.name == self.job,
            Session.attempt == self.attempt,
            Session.number == self.session,
        )


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """The path of a chunk: `session` counts within the attempt, `number` within the producer.

    The path of a folder's file has the folder's digest, `folder`, instead of a session number: the
    first file creates the session.
    """

    job: str
    attempt: int
    session: int
    producer: str
    number: int
    folder: bytes | None = None

    def names_session(self) -> ColumnElement[bool]:
        """Return the SQL condition that selects the chunk's session and job."""
        if self.folder is not None:
            return and_(Job.name == self.job, Session.content_sha256 == self.folder)
        return self.session_path.names_session()

    @property
    def session_path(self) -> SessionPath:
        """Return the path of the chunk's session; not defined for a file of a folder."""
        return SessionPath(self.job, self.attempt, self.session)


@dataclass(frozen=True, slots=True)
class RefusedChunk:
    """A chunk that was acknowledged and then failed to decode, with the reason and its faults."""

    producer: str
    number: int
    code: str
    reason: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class ChunkReceipt:
    """The session that a chunk belongs to; `created` is false for a repeated chunk.

    `operations` is None while the chunk waits for a worker. `refused` are earlier chunks of the
    same producer that failed to decode.
    """

    session: uuid.UUID
    number: int
    state: SessionState
    operations: int | None
    created: bool
    unmapped: tuple[Unmapped, ...] = ()
    refused: tuple[RefusedChunk, ...] = ()


def check_path(path: ChunkPath) -> None:
    """Check the job's and the producer's name in a chunk's path.

    Raises
    ------
    InvalidJobNameError, InvalidProducerError
        A name is empty, too long, not printable, or means a folder in a URL, like ``..``.
    """
    check_job_name(path.job)
    if not is_plain_name(path.producer, MAX_PRODUCER_CHARACTERS):
        raise InvalidProducerError(
            f"A producer's name has 1 to {MAX_PRODUCER_CHARACTERS} printable characters, "
            "without a slash and without blanks around it."
        )


# A larger chunk is decoded before the answer, not appended to the inbox: decoding dominates its
# cost anyway.
LARGEST_BYTES: Final = 4 * MIB
# Limit of the refused chunks listed for a session or a producer.
NAMED: Final = 20
FULL_RETRY_S: Final = 30.0
LOOK_EVERY_S: Final = 1.0


# One statement appends a batch of chunks. Bytes are sent in binary format (%b): in text format they
# take twice the space.
_APPEND: Final = """
INSERT INTO inbox (project_id, kind, session_id, producer, number, sha256, final, body_bytes,
                   content_type, format_name, meta, body, needs)
SELECT %(project)s, %(kind)s, %(session)s, given.*, %(needs)s
FROM unnest(%(producer)s::text[], %(number)s::int[], %(sha256)b::bytea[], %(final)s::bool[],
            %(body_bytes)s::bigint[], %(content_type)s::text[], %(format_name)s::text[],
            %(meta)s::jsonb[], %(body)b::bytea[]) AS given
ON CONFLICT (session_id, kind, producer, number) DO UPDATE SET
    sha256 = excluded.sha256, received_at = excluded.received_at, final = excluded.final,
    body_bytes = excluded.body_bytes, content_type = excluded.content_type,
    format_name = excluded.format_name, meta = excluded.meta, body = excluded.body,
    needs = excluded.needs,
    code = NULL, reason = NULL, faults = NULL, tries = 0
WHERE inbox.code IS NOT NULL AND inbox.sha256 <> excluded.sha256
RETURNING producer, number
"""


class InboxFullError(TryLaterError):
    """The inbox exceeds its limit of bytes or of age."""

    code = "inbox.full"


class SealedMeanwhileError(Exception):
    """The session was sealed before the chunks were appended."""


# Name of a chunk within its session: producer and number.
ChunkName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ArrivedChunk:
    """A chunk as it was sent; `final` marks the producer's last chunk."""

    path: ChunkPath
    body: Body
    final: bool

    @property
    def name(self) -> ChunkName:
        """Return the chunk's name within the session: producer and number."""
        return self.path.producer, self.path.number


@dataclass(frozen=True, slots=True)
class Backlog:
    """Number, bytes and oldest time of the bodies that wait to be decoded."""

    bodies: int
    bytes: int
    oldest_at: datetime | None


def append(tx: UnitOfWork, session_id: uuid.UUID, chunks: Sequence[ArrivedChunk]) -> set[ChunkName]:
    """Append chunks of a session with distinct names; return the names of the appended chunks.

    A refused chunk is replaced if the bytes differ; any other chunk of the same name stays.

    Raises
    ------
    SealedMeanwhileError
        The session is sealed: roll the transaction back.
    """
    given = {
        "project": cast("int", tx.scope.project_id),
        "kind": InboxKind.CHUNK.value,
        "session": session_id,
        "producer": [chunk.path.producer for chunk in chunks],
        "number": [chunk.path.number for chunk in chunks],
        "sha256": [chunk.body.sha256 for chunk in chunks],
        "final": [chunk.final for chunk in chunks],
        "body_bytes": [chunk.body.size for chunk in chunks],
        "content_type": [chunk.body.content_type for chunk in chunks],
        "format_name": [chunk.body.format_name for chunk in chunks],
        "meta": [
            None if chunk.body.meta is None else Jsonb(metadata_document(chunk.body.meta))
            for chunk in chunks
        ],
        "body": [chunk.body.content() for chunk in chunks],
        "needs": WRITES,
    }
    made = connection_of(tx).execute(_APPEND, given, prepare=True).fetchall()
    # Read after the insert, whose foreign key waits for a concurrent transaction that seals the
    # session.
    sealed_at = tx.session.execute(
        select(Intake.sealed_at).where(Intake.session_id == session_id)
    ).scalar_one()
    if sealed_at is not None:
        raise SealedMeanwhileError
    return {(producer, number) for producer, number in made}


def refused_chunks(
    tx: Reads, session_id: uuid.UUID, producer: str | None = None
) -> tuple[RefusedChunk, ...]:
    """Return the latest refused chunks of a session, of one producer or of all producers.

    They were acknowledged before they failed to decode.
    """
    among = None if producer is None else [producer]
    return tuple(_refused(tx, session_id, among, NAMED))


def refused_of_each(
    tx: Reads, session_id: uuid.UUID, producers: Sequence[str]
) -> Mapping[str, tuple[RefusedChunk, ...]]:
    """Return the latest refused chunks by producer, for producers with refused chunks."""
    by_producer: dict[str, list[RefusedChunk]] = {}
    for chunk in _refused(tx, session_id, producers, NAMED * len(producers)):
        by_producer.setdefault(chunk.producer, []).append(chunk)
    return {producer: tuple(refused[:NAMED]) for producer, refused in by_producer.items()}


def _refused(
    tx: Reads, session_id: uuid.UUID, producers: Sequence[str] | None, limit: int
) -> list[RefusedChunk]:
    query = (
        select(
            InboxItem.producer, InboxItem.number, InboxItem.code, InboxItem.reason, InboxItem.faults
        )
        .where(InboxItem.session_id == session_id, InboxItem.code.is_not(None))
        .order_by(InboxItem.received_at.desc())
        .limit(limit)
    )
    if producers is not None:
        query = query.where(InboxItem.producer.in_(producers))
    return [
        RefusedChunk(row.producer, row.number, str(row.code), row.reason or "", row.faults or ())
        for row in tx.session.execute(query)
    ]


def new_producers(tx: Reads) -> int:
    """Return the number of producers that have chunks in the inbox and none decoded."""
    decoded = exists().where(
        Chunk.session_id == InboxItem.session_id, Chunk.producer == InboxItem.producer
    )
    new = (
        select(InboxItem.session_id, InboxItem.producer)
        .where(InboxItem.kind == InboxKind.CHUNK, InboxItem.code.is_(None), ~decoded)
        .distinct()
        .subquery()
    )
    return tx.session.execute(select(func.count()).select_from(new)).scalar_one()


def waiting_chunks(session_id: uuid.UUID) -> ScalarSelect[int]:
    """Return the number of chunks of a session that wait to be decoded, as an SQL expression."""
    return (
        select(func.count(InboxItem.id))
        .where(InboxItem.session_id == session_id, InboxItem.code.is_(None))
        .scalar_subquery()
    )


def backlog(tx: Reads, kind: InboxKind = InboxKind.CHUNK) -> Backlog:
    """Return the backlog of bodies of a kind, within the transaction's scope."""
    bodies, size, oldest_at = tx.session.execute(
        select(
            func.count(InboxItem.id),
            func.coalesce(func.sum(InboxItem.body_bytes), 0),
            func.min(InboxItem.received_at),
        ).where(InboxItem.kind == kind, InboxItem.code.is_(None))
    ).one()
    return Backlog(bodies, int(size), oldest_at)


class Pressure:
    """Backpressure: refuses bodies of a kind while workers are too far behind.

    Shared by the requests of a process. The backlog is measured at most once a second, so the
    inbox exceeds its limit by the bodies of one second at most.
    """

    def __init__(self, settings: Settings, kind: InboxKind = InboxKind.CHUNK) -> None:
        self._settings = settings
        self._kind = kind
        self._look_at_s = 0.0
        self._full: str | None = None

    def check(self, everywhere: Container) -> None:
        """Refuse a body while workers are too far behind; call it outside any transaction.

        Raises
        ------
        InboxFullError
        """
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            with everywhere.reading() as tx:
                self._full = self._overload(backlog(tx, self._kind), tx.now)
        if self._full is not None:
            raise InboxFullError(self._full, retry_after_s=FULL_RETRY_S)

    def _overload(self, waiting: Backlog, now: datetime) -> str | None:
        if waiting.bytes >= self._settings.inbox_bytes:
            return (
                f"{waiting.bytes:,} bytes wait for a worker, as many as may; send this one later."
            )
        if waiting.oldest_at is None:
            return None
        age_s = (now - waiting.oldest_at).total_seconds()
        if age_s <= self._settings.inbox_age_s:
            return None
        return f"What came {age_s:.0f} s ago still waits for a worker; send this one later."
