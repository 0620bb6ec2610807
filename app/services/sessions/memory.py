"""What a worker gives back between two analyses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa

from app.analysis.replay.engine.memory import of_glibc

# A process of this size gives back what is free between two analyses: sessions that need so much
# are rare, and the next one would wait a few milliseconds a million operations for it.
LARGE: Final = 1 << 30
_RESIDENT: Final = Path("/proc/self/statm")


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
