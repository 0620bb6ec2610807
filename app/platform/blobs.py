"""Blobs: bytes of any length, as rows of at most `PART_BYTES` or as objects of an object store.

If an object store is configured, large blobs are stored in it: `stage` sends the bytes before the
transaction, so that no transaction waits for the store, and `write_blob` adds the row that refers
to the object to the transaction. An object without such a row is unreferenced;
`app.retention.objects`, and nothing else, deletes it. A process that is killed while it writes or
deletes therefore leaves a row with its bytes, or bytes without a row. Blobs that the database held
before the store was configured stay in the database.

Parts are read with binary cursors on the connection of the caller's transaction: SQLAlchemy
requests text, which PostgreSQL writes as two hexadecimal digits a byte (half the speed, three times
the memory). No other module may use the table `blob_part`.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import psycopg
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    CursorResult,
    UniqueConstraint,
    Uuid,
    delete,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from app.errors import NotFoundError, StartupError
from app.platform.database.columns import Base, OfProject, in_project
from app.platform.database.tenant_scope import driver_connection
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.object_store import Objects, ObjectStore, new_key


class BlobPart(OfProject, Base):
    """A piece of at most 4 MiB of a blob; reached only through `app.platform.blobs`."""

    __tablename__ = "blob_part"
    __table_args__ = (in_project(),)

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class BlobObject(OfProject, Base):
    """A blob whose bytes are in an object store; this row is the only reference to them."""

    __tablename__ = "blob_object"
    __table_args__ = (in_project(), UniqueConstraint("key", "project_id"))

    blob_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # names the project that received the bytes; the blob's row may have moved to another project
    # since
    key: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    stored_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class UnreferencedObject(Base):
    """An object in the store that no row refers to; deleted after `blob_unreferenced_h` hours."""

    __tablename__ = "unreferenced_object"

    key: Mapped[str] = mapped_column(primary_key=True)
    seen_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class ObjectLook(Base):
    """Progress of the present scan of the object store: one row, locked by the scanner."""

    __tablename__ = "object_look"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # when to start the next scan, or to continue the present scan
    due_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # the present scan continues after this key; null if no scan is under way
    after: Mapped[str | None]


# Size limit of a part. A part is copied several times on its way (the client's buffer, the
# driver's, the server's), and PostgreSQL refuses values of 1 GB.
PART_BYTES: Final = 4 * 1024 * 1024

_WRITE_PART: Final = (
    "INSERT INTO blob_part (project_id, blob_id, part, data) VALUES (%s, %s, %s, %b)"
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Key and size of a blob's object in the object store."""

    key: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes that the next transaction stores."""

    # Bytes to store in the database; empty if the object store holds them already.
    pieces: Iterable[bytes] = ()
    stored: StoredObject | None = None


@dataclass(frozen=True, slots=True)
class ObjectParts:
    """Parts of a blob in the object store; readable also after the transaction."""

    store: ObjectStore
    stored: StoredObject

    def __iter__(self) -> Iterator[bytes]:
        return self.store.read(self.stored.key, self.stored.bytes)


def stage(objects: Objects | None, project_id: int, pieces: Iterable[bytes]) -> Staged:
    """Write bytes to the object store if there is one and they exceed its minimum size.

    Call this function outside of any transaction. If the later transaction fails, the object is
    unreferenced and deleted later.

    Parameters
    ----------
    pieces : iterable of bytes
        Consumed one by one, either here or by `write_blob`.

    Raises
    ------
    ObjectStoreError
        If the store has not confirmed all bytes.
    """
    if objects is None:
        return Staged(pieces)
    rest = iter(pieces)
    first: list[bytes] = []
    size = 0
    for piece in rest:
        first.append(piece)
        size += len(piece)
        if size >= objects.min_bytes:
            break
    else:
        return Staged(first)
    key = new_key(project_id)
    return Staged(
        stored=StoredObject(key, objects.store.write(key, itertools.chain(_taken(first), rest)))
    )


def write_blob(tx: UnitOfWork, parts: Iterable[bytes] | Staged) -> uuid.UUID:
    """Store bytes in the caller's transaction.

    Parameters
    ----------
    parts : iterable of bytes, or Staged
        Pieces of any length, consumed one by one and stored as parts of `PART_BYTES`.

    Returns
    -------
    UUID
        Id of the blob for `read_blob` and `delete_blob`.
    """
    staged = parts if isinstance(parts, Staged) else Staged(parts)
    blob_id = uuid.uuid4()
    if staged.stored is None:
        write_parts(tx, blob_id, cast("int", tx.scope.project_id), staged.pieces)
    else:
        _write_object(tx, blob_id, staged.stored)
    return blob_id


def _write_object(tx: UnitOfWork, blob_id: uuid.UUID, stored: StoredObject) -> None:
    tx.session.execute(
        insert(BlobObject).values(
            blob_id=blob_id, project_id=tx.scope.project_id, key=stored.key, bytes=stored.bytes
        )
    )


def write_blobs(tx: UnitOfWork, blobs: Mapping[uuid.UUID, Staged]) -> None:
    """Store several blobs in the caller's transaction, in batches of statements.

    Parameters
    ----------
    blobs : mapping
        Staged bytes by the id of the blob. Several blobs are held in memory at once; a single blob
        is not.
    """
    project_id = cast("int", tx.scope.project_id)
    of_database = {
        blob_id: staged.pieces for blob_id, staged in blobs.items() if staged.stored is None
    }
    if len(of_database) == 1:
        for blob_id, pieces in of_database.items():
            write_parts(tx, blob_id, project_id, pieces)
    else:
        with connection_of(tx).cursor() as cursor:
            cursor.executemany(
                _WRITE_PART,
                [
                    (project_id, blob_id, number, part)
                    for blob_id, pieces in of_database.items()
                    for number, part in enumerate(_parts(pieces))
                ],
            )
    for blob_id, staged in blobs.items():
        if staged.stored is not None:
            _write_object(tx, blob_id, staged.stored)


def write_parts(
    tx: UnitOfWork, blob_id: uuid.UUID, project_id: int, pieces: Iterable[bytes]
) -> None:
    """Store the bytes of a blob in the database."""
    with connection_of(tx).cursor() as cursor:
        for number, part in enumerate(_parts(pieces)):
            cursor.execute(_WRITE_PART, (project_id, blob_id, number, part))


def open_blob(tx: Reads, blob_id: uuid.UUID) -> Iterable[bytes]:
    """Return a blob's parts, which may be read after the transaction.

    Bytes in the database are read now; bytes in the object store are read when they are consumed.

    Raises
    ------
    NotFoundError
        If there is no such blob.
    """
    stored = _object_of(tx, blob_id)
    return tuple(_read_parts(tx, blob_id)) if stored is None else stored


def read_blob(tx: Reads, blob_id: uuid.UUID) -> Iterator[bytes]:
    """Yield the parts of a blob in order, each fetched when it is needed.

    Parameters
    ----------
    tx : Reads
        Must stay open until the last part was read.

    Raises
    ------
    NotFoundError
        On the first part, if there is no such blob.
    ObjectStoreError
        If the bytes are in the object store and the store does not answer.
    """
    stored = _object_of(tx, blob_id)
    yield from _read_parts(tx, blob_id) if stored is None else stored


def delete_blob(tx: UnitOfWork, blob_id: uuid.UUID) -> int:
    """Delete a blob in the caller's transaction and return the number of its parts.

    An object counts as one part and stays in its store until `app.retention.objects` deletes it.
    """
    gone = cast(
        "CursorResult[Any]",
        tx.session.execute(delete(BlobObject).where(BlobObject.blob_id == blob_id)),
    ).rowcount
    with connection_of(tx).cursor() as cursor:
        return (
            gone
            + cursor.execute(
                "DELETE FROM blob_part WHERE blob_id = %s"
                " AND project_id = coalesce(%s::integer, project_id)",
                (blob_id, tx.scope.project_id),
            ).rowcount
        )


def read_part(tx: Reads, blob_id: uuid.UUID, number: int) -> bytes | None:
    """Return a part of a blob in the database by number; None if there is no such part."""
    with connection_of(tx).cursor(binary=True) as cursor:
        row = cursor.execute(
            "SELECT data FROM blob_part WHERE blob_id = %s AND part = %s"
            " AND project_id = coalesce(%s::integer, project_id)",
            (blob_id, number, tx.scope.project_id),
        ).fetchone()
    return None if row is None else cast("bytes", row[0])


def _object_of(tx: Reads, blob_id: uuid.UUID) -> ObjectParts | None:
    """Return the object that holds a blob's bytes; None if the database holds them.

    Without an object store the query is saved, which is the usual case.
    """
    if tx.objects is None:
        return None
    row = tx.session.execute(
        select(BlobObject.key, BlobObject.bytes).where(BlobObject.blob_id == blob_id)
    ).one_or_none()
    return None if row is None else ObjectParts(tx.objects.store, StoredObject(row.key, row.bytes))


def _read_parts(tx: Reads, blob_id: uuid.UUID) -> Iterator[bytes]:
    for number in itertools.count():
        part = read_part(tx, blob_id, number)
        if part is not None:
            yield part
            continue
        if number > 0:
            return
        query = select(BlobObject.key).where(BlobObject.blob_id == blob_id)
        if tx.objects is None and tx.session.execute(query).scalar() is not None:
            raise StartupError(
                "These bytes are in an object store: set PACELINE_BLOB_URL for every process."
            )
        raise NotFoundError(f"there is no blob {blob_id}")


def connection_of(tx: Reads) -> psycopg.Connection[tuple[Any, ...]]:
    """Return the psycopg connection of the open transaction, for large values.

    Statements on this connection are not confined to the transaction's project: they must name the
    project themselves.
    """
    return driver_connection(tx.session)


def _taken(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield pieces, and keep no reference to a yielded piece."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _parts(pieces: Iterable[bytes]) -> Iterator[bytearray | memoryview]:
    """Yield the bytes of pieces as parts of exactly `PART_BYTES`; the last part may be shorter.

    A part that lies within one piece is not copied. Empty content is stored as one empty part:
    without a row an empty blob could not be distinguished from a missing one.
    """
    pending = bytearray()
    stored = False
    for piece in pieces:
        rest = memoryview(piece)
        while len(pending) + len(rest) >= PART_BYTES:
            lacking = PART_BYTES - len(pending)
            yield pending + rest[:lacking] if pending else rest[:lacking]
            stored = True
            pending, rest = bytearray(), rest[lacking:]
        pending += rest
    if pending or not stored:
        yield pending
