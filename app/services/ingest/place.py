"""Where bodies lie while they are received."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.settings import Settings


def spool_directory(settings: Settings) -> Path:
    """Return where bodies are spooled and archives are unpacked, making it where needed.

    In the data directory where there is one. A server with a database of its own keeps no data
    and may run on a read-only file system: there it is the temporary directory, which TMPDIR moves.
    """
    if not settings.data_dir.is_dir():
        return Path(tempfile.gettempdir())
    directory = settings.data_dir / "spool"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory
