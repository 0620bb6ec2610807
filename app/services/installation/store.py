"""Whether the object store does what it is needed for, and where the blobs of the installation are.

The store is asked to do it with an object of its own; unlike `readiness` this is for a person who
asks, not for every look at the server.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.db.models.blobs import BlobObject, BlobPart
from app.errors import PacelineError
from app.services.installation.readiness import Part

if TYPE_CHECKING:
    from app.db.objects.store import Objects, ObjectStore
    from app.db.unit_of_work import Reads

NAME: Final = "object store"
PROBE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Placed:
    """How many blobs the database holds, and how many it says that the object store has."""

    in_database: int
    in_store: int


def placed(tx: Reads) -> Placed:
    """Count the blobs of all projects."""
    # Every blob has a first part.
    here = select(func.count()).select_from(BlobPart).where(BlobPart.part == 0)
    there = select(func.count()).select_from(BlobObject)
    return Placed(tx.session.execute(here).scalar_one(), tx.session.execute(there).scalar_one())


def store_part(objects: Objects | None, blobs: Placed | None) -> Part:
    """Write, read, list and delete an object; never raises for what the store refuses.

    Parameters
    ----------
    blobs : Placed or None
        None where the database was not asked.
    """
    where = ""
    if blobs is not None:
        where = f"; blobs: {blobs.in_store:,} there, {blobs.in_database:,} in the database"
    if objects is None:
        if blobs is None or not blobs.in_store:
            return Part(NAME, ready=True, detail=f"not configured{where}")
        return Part(NAME, ready=False, detail=f"set PACELINE_BLOB_URL{where}")
    refused = _refused(objects.store)
    if refused is not None:
        return Part(NAME, ready=False, detail=f"{refused}{where}")
    return Part(NAME, ready=True, detail=f"writes, reads, lists and deletes{where}")


def _refused(store: ObjectStore) -> str | None:
    """Return in words the first thing that the store does not do."""
    # In the order of the listing right before its own key, and no other.
    before = f"probe-{uuid.uuid4()}"
    key, data = f"{before}.", os.urandom(PROBE_BYTES)

    def delete() -> bool:
        store.delete([key])
        return True

    steps: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("write", lambda: store.write(key, [data]) == len(data)),
        ("read", lambda: b"".join(store.read(key, len(data))) == data),
        ("list", lambda: any(one.key == key for one in next(store.pages(before), ()))),
        ("delete", delete),
    )
    for name, do in steps:
        try:
            done = do()
        except PacelineError as error:
            return f"cannot {name}: {error.message}"
        if not done:
            return f"cannot {name}: the object is not as it was written"
    return None
