"""The pass that takes away objects of the object store that nothing refers to.

Who deletes takes the row that refers to an object, in the transaction that decides it; who is
killed while it stores leaves an object without a row. Both are found here, in the store's own
listing: an object goes once it is a day old and a day has passed since a look found no row for it.
The second day is for backups: one that was made before the deletion finds its bytes still there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.db.models.blobs import BlobObject, ObjectLook, UnreferencedObject
from app.errors import ObjectStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.objects.store import ListedObject
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# A listing is a request for each thousand objects.
LOOK_EVERY: Final = timedelta(hours=1)
# The sweeper has other duties: it goes on where it stopped in its next pass.
PASS_LIMIT_S: Final = 10.0
# A store that is away is not asked in every pass.
WAIT_AFTER_FAILURE: Final = timedelta(minutes=5)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class References:
    """What the rows say of the object store: how many blobs it has, and how many of them it lost.

    `lost` is None where the store was not asked.
    """

    blobs: int
    bytes: int
    lost: int | None = None


def collect_objects(container: Container, kept: timedelta | None = None) -> int:
    """Go on with the look through the object store, where it is due; return how many objects went.

    Parameters
    ----------
    kept : timedelta, optional
        For how long an object has to be there, and unreferenced; else what the settings say.
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
                    # Another sweeper is at it.
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
    """Return what the rows refer to in the object store, and where there is one what it lost."""
    everywhere = container.everywhere()
    with everywhere.reading() as tx:
        blobs, size = tx.session.execute(
            select(func.count(), func.coalesce(func.sum(BlobObject.bytes), 0)).select_from(
                BlobObject
            )
        ).one()
    if container.objects is None:
        return References(blobs, int(size))
    found = 0
    for page in container.objects.store.pages():
        with everywhere.reading() as tx:
            there = {listed.key: listed.bytes for listed in page}
            rows = tx.session.execute(
                select(BlobObject.key, BlobObject.bytes).where(BlobObject.key.in_(there))
            )
            found += sum(there[key] == size for key, size in rows)
    return References(blobs, int(size), max(blobs - found, 0))


def _step(tx: UnitOfWork, before: str | None, after: str) -> bool:
    """Note how far the look is; False where it is not where this pass left it."""
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
    """Note what nothing refers to on a page of the listing, and return what has been so long."""
    keys = [listed.key for listed in page]
    rows = tx.session.execute(select(BlobObject.key).where(BlobObject.key.in_(keys))).scalars()
    referenced = set(rows)
    old = tx.now - kept
    lost = [
        listed.key for listed in page if listed.key not in referenced and listed.written_at <= old
    ]
    # Listings are in the order of the bytes, which is not every database's.
    noted = UnreferencedObject.key.collate("C")
    between = [noted <= keys[-1]] + ([] if after is None else [noted > after])
    # Deleted by a pass that was killed then, or referred to again by a restored backup.
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
