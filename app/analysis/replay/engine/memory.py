"""What the process does with the memory of arrays that are gone."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa

# Names of mallopt's parameters (malloc.h).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
# So much that is free at the end of the heap stays with the process for the next arrays.
KEPT: Final = 256 << 20
# A process of this size gives back what is free between two analyses: sessions that need so much
# are rare, and the next one would wait a few milliseconds a million operations for it.
LARGE: Final = 1 << 30
_RESIDENT: Final = Path("/proc/self/statm")


def keep_freed_memory() -> bool:
    """Let the next arrays take the memory of the last ones; return whether that could be set.

    A report makes and drops hundreds of arrays of megabytes. Each page that goes back to the system
    and comes again is emptied anew, which was a tenth of the time of large reports.
    Elsewhere than with glibc things stay as they are.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return False
    # None is mapped by itself: what is, goes back as soon as it is dropped.
    return all(
        mallopt(name, value) for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, KEPT))
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
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
    return True


def resident_bytes() -> int:
    """Return how much memory the process has, where the system says so (Linux)."""
    return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _of_glibc(name: str) -> ctypes._NamedFuncPointer | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
