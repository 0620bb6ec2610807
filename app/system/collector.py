"""The collector of garbage, while a process loads its modules and while it answers requests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# New objects before the collector looks at them (Python: 700). A page of a thousand rows holds tens
# of thousands until it is sent, and then they go without the collector.
REQUEST_OBJECTS: Final = 10_000
# How long a thread computes while another one waits for the interpreter (Python: 0.005). A page
# waits for it after each of its thirty answers of the database: for all of that while a flush of a
# thousand senders computes.
SWITCH_S: Final = 0.0005


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


def answering() -> None:
    """Answer requests from now on: what has been made so far stays for good.

    A server that has shown each page once holds 90,000 objects in addition to its modules; going
    through them takes 50 ms, which one request of a few would wait for.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(REQUEST_OBJECTS)
    sys.setswitchinterval(SWITCH_S)
