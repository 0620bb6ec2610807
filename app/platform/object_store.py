"""Interface of an object store: bytes under a key that is written once and never changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing names it; `written_at` is the store's own time."""

    key: str
    bytes: int
    written_at: datetime


class ObjectStore(Protocol):
    """A store; every method raises `ObjectStoreError` where it does not answer."""

    def write(self, key: str, pieces: Iterable[bytes]) -> int:
        """Store pieces under a new key and return how many bytes they are.

        It returns only once the store says that it has them all, and holds only a few pieces of
        several MiB at a time. What `pieces` raises gets out, and nothing is stored.
        """

    def read(self, key: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of an object in pieces of several MiB.

        Raises
        ------
        LostBytesError
            If there is no such object, or it is shorter than `size`.
        """

    def pages(self, after: str | None = None) -> Iterator[Sequence[ListedObject]]:
        """Yield what there is in the order of the keys, a thousand or so at a time."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there do no harm."""


@dataclass(frozen=True, slots=True)
class Objects:
    """An object store and what belongs into it."""

    store: ObjectStore
    # Blobs of this number of bytes and more; smaller ones are in the database all the same.
    min_bytes: int


def new_key(project_id: int) -> str:
    """Return a key that nothing had before: below its project's, so that a listing says whose."""
    return f"project-{project_id}/{uuid.uuid4()}"
