"""Waiting for what other processes do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Far more than anything here takes on a loaded machine: a limit for hangs, not an assertion.
LIMIT_S = 90.0
# Looks are queries and lists of processes: more of them would take the processor from what is
# waited for.
PAUSE_S = 0.05


def wait_for(look: Callable[[], T], what: str, *, limit_s: float = LIMIT_S) -> T:
    """Call `look` until it returns something true, and return that."""
    deadline_s = time.monotonic() + limit_s
    while not (seen := look()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"in {limit_s:.0f} s there was no {what}; the last look: {seen!r}")
        time.sleep(PAUSE_S)
    return seen
