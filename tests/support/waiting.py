"""Waiting for other processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# A limit for hangs, not an assertion: far more than any wait takes on a loaded machine.
LIMIT_S = 90.0
# Each check is a query or a list of processes; more frequent ones would slow the awaited work.
PAUSE_S = 0.05


def wait_for(look: Callable[[], T], what: str, *, limit_s: float = LIMIT_S) -> T:
    """Call `look` until its result is true, and return the result."""
    deadline_s = time.monotonic() + limit_s
    while not (seen := look()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"in {limit_s:.0f} s there was no {what}; the last look: {seen!r}")
        time.sleep(PAUSE_S)
    return seen
