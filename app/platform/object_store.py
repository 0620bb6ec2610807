"""Interface of an object store: bytes under a key that are written once and never changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a listing of the store; `written_at` is the store's own time."""

    key: str
    bytes: int
    written_at: datetime


class ObjectStore(Protocol):
    """An object store; every method raises `ObjectStoreError` if the store does not answer."""

    def write(self, key: str, pieces: Iterable[bytes]) -> int:
        """Store pieces as an object under a new key, and return the object's size in bytes.

        The method returns once the store has confirmed all bytes, and holds only a few pieces of
        several MiB at a time. An exception of `pieces` is passed on, and nothing is stored.
        """

    def read(self, key: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of an object in pieces of several MiB.

        Raises
        ------
        LostBytesError
            If there is no such object, or it is shorter than `size`.
        """

    def pages(self, after: str | None = None) -> Iterator[Sequence[ListedObject]]:
        """Yield pages of about a thousand objects, sorted by key."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects by key; missing objects are ignored."""


@dataclass(frozen=True, slots=True)
class Objects:
    """An object store, and the minimum size of the blobs that are stored in it."""

    store: ObjectStore
    # Smaller blobs are stored in the database.
    min_bytes: int


def new_key(project_id: int) -> str:
    """Return a new key below the project's prefix."""
    return f"project-{project_id}/{uuid.uuid4()}"
