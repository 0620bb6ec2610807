"""Use case: move blobs between the database and the object store, one after another.

A blob keeps its id, so that nothing that refers to it changes, and is readable at every moment: the
row that names its object is written once the object is there, and its parts go after that. Killed
anywhere, another move goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from app.db.blobs import ObjectParts, StoredObject, read_part, write_parts
from app.db.models.blobs import BlobObject, BlobPart
from app.db.objects.store import new_key
from app.errors import NotFoundError, StartupError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

    from sqlalchemy import CursorResult

    from app.db.objects.store import Objects
    from app.services.container import Container

# Looked up at a time.
BLOBS: Final = 200
# Of at most 4 MiB, taken away in one transaction.
PARTS: Final = 16


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved."""

    blobs: int = 0
    bytes: int = 0

    def with_one(self, size: int) -> Moved:
        """Return this and one blob more."""
        return Moved(self.blobs + 1, self.bytes + size)


def move_to_store(container: Container, tell: Callable[[Moved], None]) -> Moved:
    """Move the blobs of the database that are large enough into the object store.

    Parameters
    ----------
    tell : callable
        Takes what was moved so far, after each blob.

    Raises
    ------
    StartupError
        If there is no object store.
    ObjectStoreError
        What was moved before stays there.
    """
    objects = _objects(container)
    moved = Moved()
    for blob_id in _in_database(container, objects.min_bytes):
        size = _to_store(container, objects, blob_id)
        _drop_parts(container, blob_id)
        if size is not None:
            moved = moved.with_one(size)
            tell(moved)
    return moved


def move_to_database(container: Container, tell: Callable[[Moved], None]) -> Moved:
    """Move all blobs of the object store into the database; their objects are collected later.

    As `move_to_store`, and each blob is one transaction.
    """
    objects = _objects(container)
    moved = Moved()
    everywhere = container.everywhere()
    while True:
        with everywhere.uow() as tx:
            # Whoever deletes it meanwhile waits.
            row = (
                tx.session.execute(
                    select(BlobObject).order_by(BlobObject.stored_at).limit(1).with_for_update()
                )
                .scalars()
                .one_or_none()
            )
            if row is None:
                return moved
            size = row.bytes
            # What a move that was killed left.
            tx.session.execute(delete(BlobPart).where(BlobPart.blob_id == row.blob_id))
            stored = StoredObject(row.key, row.bytes)
            write_parts(tx, row.blob_id, row.project_id, ObjectParts(objects.store, stored))
            tx.session.delete(row)
        moved = moved.with_one(size)
        tell(moved)


def _objects(container: Container) -> Objects:
    if container.objects is None:
        raise StartupError("There is no object store: set PACELINE_BLOB_URL.")
    return container.objects


def _in_database(container: Container, min_bytes: int) -> Iterator[uuid.UUID]:
    """Yield the blobs of the database that are large enough, or that a killed move left there."""
    everywhere = container.everywhere()
    last: uuid.UUID | None = None
    size = func.sum(func.octet_length(BlobPart.data))
    moved_already = select(BlobObject.blob_id).where(BlobObject.blob_id == BlobPart.blob_id)
    while True:
        with everywhere.reading() as tx:
            query = (
                select(BlobPart.blob_id)
                .group_by(BlobPart.blob_id)
                .having((size >= min_bytes) | moved_already.exists())
                .order_by(BlobPart.blob_id)
                .limit(BLOBS)
            )
            if last is not None:
                query = query.where(BlobPart.blob_id > last)
            found = list(tx.session.execute(query).scalars())
        yield from found
        if len(found) < BLOBS:
            return
        last = found[-1]


def _to_store(container: Container, objects: Objects, blob_id: uuid.UUID) -> int | None:
    """Write the object of a blob and the row that names it; None where it has one, or went."""
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        if tx.session.get(BlobObject, blob_id) is not None:
            return None
        project_id = tx.session.execute(
            select(BlobPart.project_id).where(BlobPart.blob_id == blob_id).limit(1)
        ).scalar()
    if project_id is None:
        return None
    key = new_key(project_id)
    try:
        size = objects.store.write(key, _parts(container, blob_id))
    except NotFoundError:
        return None
    with everywhere.uow() as tx:
        # Of the project that it is in by now; whoever moves or deletes it waits.
        parts = tx.session.execute(
            select(BlobPart.project_id).where(BlobPart.blob_id == blob_id).with_for_update()
        ).scalars()
        owners = set(parts)
        if not owners:
            return None
        tx.session.execute(
            insert(BlobObject).values(blob_id=blob_id, project_id=owners.pop(), key=key, bytes=size)
        )
    return size


def _parts(container: Container, blob_id: uuid.UUID) -> Iterator[bytes]:
    """Yield the parts of a blob, each read in a transaction of its own."""
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        count = tx.session.execute(
            select(func.count()).select_from(BlobPart).where(BlobPart.blob_id == blob_id)
        ).scalar_one()
    for number in range(count):
        with everywhere.reading() as tx:
            part = read_part(tx, blob_id, number)
        if part is None:
            raise NotFoundError(f"blob {blob_id} was deleted")
        yield part


def _drop_parts(container: Container, blob_id: uuid.UUID) -> None:
    """Take the parts of a blob away that the object store has by now."""
    everywhere = container.everywhere()
    while True:
        with everywhere.uow() as tx:
            if tx.session.get(BlobObject, blob_id) is None:
                return
            some = (
                select(BlobPart.part)
                .where(BlobPart.blob_id == blob_id)
                .order_by(BlobPart.part)
                .limit(PARTS)
            )
            gone = cast(
                "CursorResult[Any]",
                tx.session.execute(
                    delete(BlobPart).where(BlobPart.blob_id == blob_id, BlobPart.part.in_(some))
                ),
            ).rowcount
            if not gone:
                return
