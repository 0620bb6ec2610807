"""A body that has arrived whole."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from app.analysis.trace.ndjson.streams import opened

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.trace.model import SessionMeta
    from app.analysis.trace.recordings.files.names import FileNames
    from app.analysis.trace.recordings.own.ranges import OwnRanges


@dataclass(frozen=True)
class Body:
    """A body that has arrived whole."""

    source: Path | bytes
    """Where its bytes can be read, or the bytes themselves."""
    size: int
    """Bytes."""
    digest: bytes | None
    """SHA-256 of the bytes; None where it was not put together while they came."""
    content_type: str | None
    """What the sender calls them; None lets the decoder look."""
    meta: SessionMeta | None
    """None where the body itself carries the metadata."""
    format_name: str | None = None
    """Name of its format; None lets the decoder look."""
    own: OwnRanges | None = None
    """What the job calls ranges of its own."""
    names: FileNames | None = None
    """What the names of the files say that it is one of."""

    @cached_property
    def sha256(self) -> bytes:
        """Return the digest of the bytes."""
        return hashlib.sha256(self.content()).digest() if self.digest is None else self.digest

    @property
    def in_memory(self) -> bool:
        """Return whether it has no file: such a body is small."""
        return isinstance(self.source, bytes)

    @property
    def path(self) -> Path:
        """Return where its bytes can be read.

        Raises
        ------
        TypeError
            It is in memory.
        """
        if isinstance(self.source, bytes):
            raise TypeError("the body is in memory")
        return self.source

    def begin(self, size: int) -> bytes:
        """Return its first bytes."""
        with opened(self.source) as file:
            return file.read(size)

    def content(self) -> bytes:
        """Return its bytes."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()
