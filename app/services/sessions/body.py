"""A body that has arrived whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.trace.model import SessionMeta
    from app.analysis.trace.recordings.files.names import FileNames
    from app.analysis.trace.recordings.own.ranges import OwnRanges


@dataclass(frozen=True, slots=True)
class Body:
    """A body that has arrived whole."""

    source: Path | bytes
    """Where its bytes can be read, or the bytes themselves of a small chunk."""
    size: int
    """Bytes."""
    sha256: bytes
    """Digest of the bytes."""
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

    @property
    def path(self) -> Path:
        """Return where its bytes can be read.

        Raises
        ------
        TypeError
            It is in memory: only chunks are.
        """
        if isinstance(self.source, bytes):
            raise TypeError("the body is in memory")
        return self.source

    def content(self) -> bytes:
        """Return its bytes."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()
