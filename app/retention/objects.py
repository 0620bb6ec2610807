"""Use cases: move blobs between database and object store, and delete unreferenced objects.

A blob keeps its id when it moves and is readable at every moment: the row that names its object is
written after the object, and its parts are deleted after that row is written. The next move
continues one that was killed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import structlog
from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.errors import NotFoundError, ObjectStoreError, StartupError
from app.platform.blobs import (
    BlobObject,
    BlobPart,
    ObjectLook,
    ObjectParts,
    StoredObject,
    UnreferencedObject,
    read_part,
    write_parts,
)
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.object_store import ListedObject, Objects, new_key

# A deletion removes the row that refers to an object, in the transaction that decides the deletion;
# a process that is killed while it stores leaves an object without a row. This module finds both
# kinds of objects in the store's listing: an object is deleted once it is a day old and a day has
# passed since a scan found no row for it. The second day is for backups: a database backup from
# before the deletion still finds its objects.


# Interval of scans: a listing takes one request per thousand objects.
LOOK_EVERY: Final = timedelta(hours=1)
# Time limit of a pass, as the sweeper has other duties; the next pass continues the scan.
PASS_LIMIT_S: Final = 10.0
# After an error of the store, passes skip the scan for this time.
WAIT_AFTER_FAILURE: Final = timedelta(minutes=5)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class References:
    """Number and bytes of the blobs in the object store, and number of missing objects.

    `lost` is None if the store was not queried.
    """

    blobs: int
    bytes: int
    lost: int | None = None


def collect_objects(container: Container, kept: timedelta | None = None) -> int:
    """Continue the scan of the object store if it is due; return the number of deleted objects.

    Parameters
    ----------
    kept : timedelta, optional
        Minimum age of an object, and minimum time without a reference; default: the setting.
    """
    if container.objects is None:
        return 0
    kept = kept or timedelta(hours=container.settings.blob_unreferenced_h)
    until_s = time.monotonic() + PASS_LIMIT_S
    everywhere = container.everywhere()
    with everywhere.uow() as tx:
        tx.session.execute(insert(ObjectLook).values(id=1).on_conflict_do_nothing())
        look = tx.session.execute(select(ObjectLook.due_at, ObjectLook.after)).one()
        if look.due_at > tx.now:
            return 0
    gone = 0
    after: str | None = look.after
    store = container.objects.store
    try:
        for page in store.pages(after):
            with everywhere.uow() as tx:
                if not _step(tx, after, page[-1].key):
                    # Another sweeper has continued the scan.
                    return gone
                due = _unreferenced(tx, after, page, kept)
            store.delete(due)
            with everywhere.uow() as tx:
                tx.session.execute(
                    delete(UnreferencedObject).where(UnreferencedObject.key.in_(due))
                )
            gone += len(due)
            after = page[-1].key
            if time.monotonic() > until_s:
                return gone
        with everywhere.uow() as tx:
            _wait(tx, LOOK_EVERY, ended=True)
    except ObjectStoreError as error:
        _log.warning("object store", error=error.message)
        with everywhere.uow() as tx:
            _wait(tx, WAIT_AFTER_FAILURE, ended=False)
    if gone:
        _log.info("objects collected", objects=gone)
    return gone


def references(container: Container) -> References:
    """Count the blobs in the object store and, if a store is configured, the missing objects."""
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        blobs, size = tx.session.execute(
            select(func.count(), func.coalesce(func.sum(BlobObject.bytes), 0)).select_from(
                BlobObject
            )
        ).one()
    if container.objects is None:
        return References(blobs, int(size))
    present = 0
    for page in container.objects.store.pages():
        with everywhere.reading() as tx:
            sizes = {listed.key: listed.bytes for listed in page}
            rows = tx.session.execute(
                select(BlobObject.key, BlobObject.bytes).where(BlobObject.key.in_(sizes))
            )
            present += sum(sizes[key] == size for key, size in rows)
    return References(blobs, int(size), max(blobs - present, 0))


def _step(tx: UnitOfWork, before: str | None, after: str) -> bool:
    """Record the progress of the scan; return False if another process continued it."""
    moved = tx.session.execute(
        update(ObjectLook)
        .where(ObjectLook.after.is_not_distinct_from(before))
        .values(after=after)
        .returning(ObjectLook.id)
    )
    return moved.scalar() is not None


def _unreferenced(
    tx: UnitOfWork, after: str | None, page: Sequence[ListedObject], kept: timedelta
) -> list[str]:
    """Record a page's unreferenced objects; return those unreferenced for `kept` or longer."""
    keys = [listed.key for listed in page]
    rows = tx.session.execute(select(BlobObject.key).where(BlobObject.key.in_(keys))).scalars()
    referenced = set(rows)
    old = tx.now - kept
    lost = [
        listed.key for listed in page if listed.key not in referenced and listed.written_at <= old
    ]
    # The store lists keys in the order of their bytes; the database's own collation may differ.
    noted = UnreferencedObject.key.collate("C")
    between = [noted <= keys[-1]] + ([] if after is None else [noted > after])
    # Forget objects that a killed pass has deleted, or that a restored backup refers to again.
    tx.session.execute(
        delete(UnreferencedObject).where(*between, UnreferencedObject.key.not_in(lost))
    )
    if lost:
        tx.session.execute(
            insert(UnreferencedObject).on_conflict_do_nothing(), [{"key": key} for key in lost]
        )
    due = select(UnreferencedObject.key).where(
        UnreferencedObject.key.in_(lost), UnreferencedObject.seen_at <= old
    )
    return list(tx.session.execute(due).scalars())


def _wait(tx: UnitOfWork, time_to_wait: timedelta, *, ended: bool) -> None:
    values = {"after": None} if ended else {}
    tx.session.execute(update(ObjectLook).values(due_at=tx.now + time_to_wait, **values))


# Blobs listed by one query.
BLOBS: Final = 200
# Parts deleted in one transaction; a part has at most 4 MiB.
PARTS: Final = 16


@dataclass(frozen=True, slots=True)
class Moved:
    """Number and bytes of the moved blobs."""

    blobs: int = 0
    bytes: int = 0

    def with_one(self, size: int) -> Moved:
        """Return the sums with one more blob of `size` bytes."""
        return Moved(self.blobs + 1, self.bytes + size)


def move_to_store(container: Container, tell: Callable[[Moved], None]) -> Moved:
    """Move the blobs of the database above the size limit into the object store.

    Parameters
    ----------
    tell : callable
        Takes the sums of the moved blobs, after each blob.

    Raises
    ------
    StartupError
        If there is no object store.
    ObjectStoreError
        The store does not answer; blobs that were moved before stay there.
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
    """Move all blobs of the object store into the database; their objects are deleted later.

    Parameters and errors are those of `move_to_store`; each blob is moved in one transaction.
    """
    objects = _objects(container)
    moved = Moved()
    everywhere = container.everywhere()
    while True:
        with everywhere.uow() as tx:
            # The row lock makes a concurrent deletion of the blob wait.
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
            # Parts that a killed move to the store has not deleted.
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
    """Yield the ids of large blobs in the database, and of blobs whose move was killed."""
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
            blobs = list(tx.session.execute(query).scalars())
        yield from blobs
        if len(blobs) < BLOBS:
            return
        last = blobs[-1]


def _to_store(container: Container, objects: Objects, blob_id: uuid.UUID) -> int | None:
    """Write a blob to the store and return its bytes; None if it is in the store or was deleted."""
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
        # A deletion moves a blob to another project, so the current project is read under a row
        # lock.
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
    """Yield the parts of a blob; each part is read in its own transaction."""
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
    """Delete the database parts of a blob that is in the object store."""
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
