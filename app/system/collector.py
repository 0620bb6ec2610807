"""The collector of garbage, while a process loads its modules."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Load modules without the collector, which would go through all of them time and again.

    That is a fifth of the time in which a server starts. What is loaded stays for good: the
    collector looks at none of it again, and children that are forked share its memory.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
