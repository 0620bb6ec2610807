"""Blobs: bytes of any length, stored as rows of at most `PART_BYTES`.

Parts are read with binary cursors on the connection of the caller's transaction: SQLAlchemy asks
for text, which PostgreSQL writes as two hexadecimal digits a byte (half the speed, three times the
memory). Nothing else may touch the table `blob_part`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, cast

from app.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import psycopg

    from app.db.unit_of_work import Reads, UnitOfWork

# One part is in memory several times while it travels (the client's buffer, the driver's, the
# server's), and PostgreSQL refuses values of 1 GB.
PART_BYTES: Final = 4 * 1024 * 1024


def write_blob(tx: UnitOfWork, parts: Iterable[bytes]) -> uuid.UUID:
    """Store bytes in the caller's transaction.

    Parameters
    ----------
    tx : UnitOfWork
    parts : iterable of bytes
        Pieces of any length, consumed one by one; stored again as parts of `PART_BYTES`.

    Returns
    -------
    UUID
        What `read_blob` and `delete_blob` take.
    """
    blob_id = uuid.uuid4()
    with _connection(tx).cursor() as cursor:
        for number, part in enumerate(_parts(parts)):
            cursor.execute(
                "INSERT INTO blob_part (project_id, blob_id, part, data) VALUES (%s, %s, %s, %b)",
                (tx.scope.project_id, blob_id, number, part),
            )
    return blob_id


def read_blob(tx: Reads, blob_id: uuid.UUID) -> Iterator[bytes]:
    """Yield the parts of a blob in their order, each fetched when it is asked for.

    Parameters
    ----------
    tx : Reads
        Must stay open until the last part was read.
    blob_id : UUID

    Raises
    ------
    NotFoundError
        On the first part, if there is no such blob.
    """
    with _connection(tx).cursor(binary=True) as cursor:
        number = 0
        while row := cursor.execute(
            "SELECT data FROM blob_part WHERE blob_id = %s AND part = %s"
            " AND project_id = coalesce(%s::integer, project_id)",
            (blob_id, number, tx.scope.project_id),
        ).fetchone():
            yield cast("bytes", row[0])
            number += 1
    if number == 0:
        raise NotFoundError(f"there is no blob {blob_id}")


def delete_blob(tx: UnitOfWork, blob_id: uuid.UUID) -> int:
    """Delete a blob in the caller's transaction and return how many parts it had."""
    with _connection(tx).cursor() as cursor:
        return cursor.execute(
            "DELETE FROM blob_part WHERE blob_id = %s"
            " AND project_id = coalesce(%s::integer, project_id)",
            (blob_id, tx.scope.project_id),
        ).rowcount


def _connection(tx: Reads) -> psycopg.Connection[tuple[Any, ...]]:
    """Return psycopg's own connection, in the transaction that `tx` has open."""
    return cast(
        "psycopg.Connection[tuple[Any, ...]]", tx.session.connection().connection.driver_connection
    )


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Cut and join pieces into parts of exactly `PART_BYTES`, the last one shorter.

    No bytes at all are one empty part: without a row they could not be told from no blob.
    """
    pending = bytearray()
    stored = False
    for piece in pieces:
        pending += piece
        whole = len(pending) - len(pending) % PART_BYTES
        for start in range(0, whole, PART_BYTES):
            yield bytes(pending[start : start + PART_BYTES])
            stored = True
        del pending[:whole]
    if pending or not stored:
        yield bytes(pending)
