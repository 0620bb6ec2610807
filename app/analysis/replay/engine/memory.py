"""What the process does with the memory of arrays that are gone."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

# Names of mallopt's parameters (malloc.h).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Arrays from here on are given back when they are gone: the most that glibc takes.
_GIVEN_BACK: Final = 32 << 20
# So much that is free stays with the process for the next arrays.
KEPT: Final = 256 << 20


def keep_freed_memory() -> bool:
    """Let the next arrays take the memory of the last ones; return whether that could be set.

    A report makes and drops hundreds of arrays of megabytes. Each page that goes back to the system
    and comes again is emptied anew, which was a tenth of the processor time of large reports.
    Elsewhere than with glibc things stay as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, _GIVEN_BACK), (_M_TRIM_THRESHOLD, KEPT))
    return all(mallopt(name, value) for name, value in settings)
