"""What the process does with the memory of arrays that are gone."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

# Names of mallopt's parameters (malloc.h).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
# So much that is free at the end of the heap stays with the process for the next arrays.
KEPT: Final = 256 << 20


def keep_freed_memory() -> bool:
    """Let the next arrays take the memory of the last ones; return whether that could be set.

    A report makes and drops hundreds of arrays of megabytes. Each page that goes back to the system
    and comes again is emptied anew, which was a tenth of the time of large reports.
    Elsewhere than with glibc things stay as they are.
    """
    mallopt = of_glibc("mallopt")
    if mallopt is None:
        return False
    # None is mapped by itself: what is, goes back as soon as it is dropped.
    return all(
        mallopt(name, value) for name, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, KEPT))
    )


def of_glibc(name: str) -> ctypes._NamedFuncPointer | None:
    """Return a function of glibc; None elsewhere."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
