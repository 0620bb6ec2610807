"""The memory of an analysis: how much it may have, and what a worker gives back afterwards."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from sqlalchemy import select

from app.analysis.replay.engine.memory import of_glibc
from app.db.models.sessions import Session
from app.errors import MemoryLimitError
from app.settings import MIB
from app.settings.environment import variable
from app.system.memory import KIB

if TYPE_CHECKING:
    import uuid

    from app.services.container import Container

# A process of this size gives back what is free between two analyses: sessions that need so much
# are rare, and the next one would wait a few milliseconds a million operations for it.
LARGE: Final = 1 << 30
_RESIDENT: Final = Path("/proc/self/statm")

# What an operation takes at most while it is analyzed, measured with synthetic jobs of 0.3 to 2 M.
_GIB: Final = 1024 * MIB
_OPERATION_BYTES: Final = 200


def over_limit(container: Container, session_id: uuid.UUID) -> MemoryLimitError:
    """Return what is said of a session whose analysis did not fit, and how much it needs."""
    limit_bytes = container.settings.analysis_memory_limit_kib * KIB
    with container.reading() as tx:
        found = select(Session.operations).where(Session.id == session_id)
        operations = tx.session.execute(found).scalar() or 0
    needed_bytes = max(operations * _OPERATION_BYTES, limit_bytes + _GIB)
    needed_gib = math.ceil(needed_bytes / _GIB)
    return MemoryLimitError(
        f"The analysis of {operations:,} operations did not fit into {limit_bytes / _GIB:.1f} GiB; "
        f"it needs about {needed_gib} GiB: set {variable('analysis_memory_limit_kib')} to "
        f"{needed_gib * _GIB // KIB} on a worker that has them, and analyze the session again."
    )


def give_back(above: int = LARGE) -> bool:
    """Give free memory back to the system where the process has more than `above` bytes.

    Returns
    -------
    bool
        Whether that was so, as far as the system says.
    """
    if not _RESIDENT.exists() or resident_bytes() <= above:
        return False
    pa.default_memory_pool().release_unused()
    trim = of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
    return True


def resident_bytes() -> int:
    """Return how much memory the process has, where the system says so (Linux)."""
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
