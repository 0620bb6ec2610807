"""The inbox: bodies are durable as they came, and are decoded once, together, by workers.

A request appends one row: it decodes nothing, waits for no other sender of the session, and tells
no listener. The reference to the session's intake is a shared lock of that row until the commit.
Who seals takes the exclusive one: what was acknowledged is there before the session is sealed.
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

from app.analysis.trace.metadata import Unmapped, metadata_document
from app.errors import Fault, PacelineError, TryLaterError
from app.jobs.models import Job
from app.platform.blobs import connection_of
from app.platform.container import Container
from app.platform.database.states import InboxKind, SessionState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import is_plain_name
from app.platform.settings import MIB, Settings
from app.sessions.decoding import Body
from app.sessions.models.tables import Chunk, InboxItem, Intake, Session
from app.sessions.receive import check_job_name

# ---- What names a chunk, and what is answered for one ------------------------------------------


MAX_PRODUCER_CHARACTERS: Final = 200


class InvalidProducerError(PacelineError):
    """A producer's name that would not survive in an address or on a page."""

    code = "producer.invalid_name"


@dataclass(frozen=True, slots=True)
class SessionPath:
    """What names a session of an attempt."""

    job: str
    attempt: int
    session: int

    def names_session(self) -> ColumnElement[bool]:
        """Return the condition under which a session and its job are the named ones."""
        return and_(
            Job.name == self.job,
            Session.attempt == self.attempt,
            Session.number == self.session,
        )


@dataclass(frozen=True, slots=True)
class ChunkPath:
    """What names a chunk: `session` counts within the attempt, `number` within the producer.

    Files of a folder name its content in place of the session, which the first one makes.
    """

    job: str
    attempt: int
    session: int
    producer: str
    number: int
    folder: bytes | None = None

    def names_session(self) -> ColumnElement[bool]:
        """Return the condition under which a session and its job are the named ones."""
        if self.folder is not None:
            return and_(Job.name == self.job, Session.content_sha256 == self.folder)
        return self.of.names_session()

    @property
    def of(self) -> SessionPath:
        """Return what names its session, where no folder does."""
        return SessionPath(self.job, self.attempt, self.session)


@dataclass(frozen=True, slots=True)
class RefusedChunk:
    """A chunk that was acknowledged and could not be taken: why, and where its faults are."""

    producer: str
    number: int
    code: str
    reason: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class ChunkReceipt:
    """The session that a chunk belongs to; `created` unless the chunk was there already.

    `operations` is None while the chunk waits for a worker. `refused` are earlier chunks of the
    same producer that could not be taken.
    """

    session: uuid.UUID
    number: int
    state: SessionState
    operations: int | None
    created: bool
    unmapped: tuple[Unmapped, ...] = ()
    refused: tuple[RefusedChunk, ...] = ()


def check_path(path: ChunkPath) -> None:
    """Check the names in a chunk's path.

    Raises
    ------
    InvalidJobNameError, InvalidProducerError
        If one is empty, too long, not printable, or means a folder in an address.
    """
    check_job_name(path.job)
    if not is_plain_name(path.producer, MAX_PRODUCER_CHARACTERS):
        raise InvalidProducerError(
            f"A producer's name has 1 to {MAX_PRODUCER_CHARACTERS} printable characters, "
            "without a slash and without blanks around it."
        )


# Larger bodies are decoded while their sender waits: it is the decoding that takes long then.
LARGEST_BYTES: Final = 4 * MIB
# Refusals that are named one by one.
NAMED: Final = 20
FULL_RETRY_S: Final = 30.0
LOOK_EVERY_S: Final = 1.0


# One statement for all that came together. Bytes go as they are (%b): text is twice as long.
_APPEND: Final = """
INSERT INTO inbox (project_id, kind, session_id, producer, number, sha256, final, body_bytes,
                   content_type, format_name, meta, body)
SELECT %(project)s, %(kind)s, %(session)s, given.*
FROM unnest(%(producer)s::text[], %(number)s::int[], %(sha256)b::bytea[], %(final)s::bool[],
            %(body_bytes)s::bigint[], %(content_type)s::text[], %(format_name)s::text[],
            %(meta)s::jsonb[], %(body)b::bytea[]) AS given
ON CONFLICT (session_id, kind, producer, number) DO UPDATE SET
    sha256 = excluded.sha256, received_at = excluded.received_at, final = excluded.final,
    body_bytes = excluded.body_bytes, content_type = excluded.content_type,
    format_name = excluded.format_name, meta = excluded.meta, body = excluded.body,
    code = NULL, reason = NULL, faults = NULL, tries = 0
WHERE inbox.code IS NOT NULL AND inbox.sha256 <> excluded.sha256
RETURNING producer, number
"""


class InboxFullError(TryLaterError):
    """The inbox holds as many bytes as it may, or what it holds has waited for too long."""

    code = "inbox.full"


class SealedMeanwhileError(Exception):
    """The session was sealed before the chunks were there."""


# Producer and number.
ChunkName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A chunk as it came; `final` is its producer's last one."""

    path: ChunkPath
    body: Body
    final: bool

    @property
    def name(self) -> ChunkName:
        """Return what names it within its session."""
        return self.path.producer, self.path.number


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits to be decoded."""

    bodies: int
    bytes: int
    oldest_at: datetime | None


def append(tx: UnitOfWork, session_id: uuid.UUID, chunks: Sequence[Arrived]) -> set[ChunkName]:
    """Append chunks of a session, no two of one name, and return those that are there now.

    A refused chunk makes room for other bytes. What else is there under its name stays.

    Raises
    ------
    SealedMeanwhileError
        The session takes no chunks any more: roll the transaction back.
    """
    given = {
        "project": cast("int", tx.scope.project_id),
        "kind": InboxKind.CHUNK.value,
        "session": session_id,
        "producer": [one.path.producer for one in chunks],
        "number": [one.path.number for one in chunks],
        "sha256": [one.body.sha256 for one in chunks],
        "final": [one.final for one in chunks],
        "body_bytes": [one.body.size for one in chunks],
        "content_type": [one.body.content_type for one in chunks],
        "format_name": [one.body.format_name for one in chunks],
        "meta": [
            None if one.body.meta is None else Jsonb(metadata_document(one.body.meta))
            for one in chunks
        ],
        "body": [one.body.content() for one in chunks],
    }
    made = connection_of(tx).execute(_APPEND, given, prepare=True).fetchall()
    # Read after the reference was checked, which waits for who seals.
    sealed_at = tx.session.execute(
        select(Intake.sealed_at).where(Intake.session_id == session_id)
    ).scalar_one()
    if sealed_at is not None:
        raise SealedMeanwhileError
    return {(producer, number) for producer, number in made}


def refused_chunks(
    tx: Reads, session_id: uuid.UUID, producer: str | None = None
) -> tuple[RefusedChunk, ...]:
    """Return the latest chunks of a session that were refused after they had been acknowledged.

    Parameters
    ----------
    producer : str, optional
        Whose; all without.
    """
    among = None if producer is None else [producer]
    return tuple(_refused(tx, session_id, among, NAMED))


def refused_of_each(
    tx: Reads, session_id: uuid.UUID, producers: Sequence[str]
) -> Mapping[str, tuple[RefusedChunk, ...]]:
    """Return the same of several producers, by producer; those without any are left out."""
    found: dict[str, list[RefusedChunk]] = {}
    for one in _refused(tx, session_id, producers, NAMED * len(producers)):
        found.setdefault(one.producer, []).append(one)
    return {producer: tuple(refused[:NAMED]) for producer, refused in found.items()}


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
    """Return how many producers wait of which no chunk was taken yet."""
    known = exists().where(
        Chunk.session_id == InboxItem.session_id, Chunk.producer == InboxItem.producer
    )
    new = (
        select(InboxItem.session_id, InboxItem.producer)
        .where(InboxItem.kind == InboxKind.CHUNK, InboxItem.code.is_(None), ~known)
        .distinct()
        .subquery()
    )
    return tx.session.execute(select(func.count()).select_from(new)).scalar_one()


def waiting_chunks(session_id: uuid.UUID) -> ScalarSelect[int]:
    """Return how many chunks of a session wait to be decoded, as a part of a statement."""
    return (
        select(func.count(InboxItem.id))
        .where(InboxItem.session_id == session_id, InboxItem.code.is_(None))
        .scalar_subquery()
    )


def waiting(tx: Reads, kind: InboxKind = InboxKind.CHUNK) -> Waiting:
    """Return what waits to be decoded of all of a kind that the transaction sees."""
    bodies, size, oldest_at = tx.session.execute(
        select(
            func.count(InboxItem.id),
            func.coalesce(func.sum(InboxItem.body_bytes), 0),
            func.min(InboxItem.received_at),
        ).where(InboxItem.kind == kind, InboxItem.code.is_(None))
    ).one()
    return Waiting(bodies, int(size), oldest_at)


class Pressure:
    """Puts senders of a kind off while workers are too far behind; shared by a process's requests.

    It looks once a second, whoever asks: an inbox is never over its limit by more than that.
    """

    def __init__(self, settings: Settings, kind: InboxKind = InboxKind.CHUNK) -> None:
        self._settings = settings
        self._kind = kind
        self._look_at_s = 0.0
        self._full: str | None = None

    def check(self, everywhere: Container) -> None:
        """Refuse for a while where workers are too far behind; outside of any transaction.

        Raises
        ------
        InboxFullError
        """
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            with everywhere.reading() as tx:
                self._full = self._said(waiting(tx, self._kind), tx.now)
        if self._full is not None:
            raise InboxFullError(self._full, retry_after_s=FULL_RETRY_S)

    def _said(self, found: Waiting, now: datetime) -> str | None:
        if found.bytes >= self._settings.inbox_bytes:
            return f"{found.bytes:,} bytes wait for a worker, as many as may; send this one later."
        if found.oldest_at is None:
            return None
        age_s = (now - found.oldest_at).total_seconds()
        if age_s <= self._settings.inbox_age_s:
            return None
        return f"What came {age_s:.0f} s ago still waits for a worker; send this one later."
