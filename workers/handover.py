"""How a worker requests its forked processes to stop, and waits until they have stopped.

The processes use two pipes, because billiard handles all signals itself, and because a pipe also
ends when a process dies, which no signal would report.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Handover:
    """Pipes between a worker and its children; the parent uses `pull` and `wait`, a child `watch`.

    The stop pipe ends when the parent calls `pull` or dies, because only the parent holds its
    writing end. The done pipe ends when every child has closed its copy of the writing end, or
    died.
    """

    def __init__(self) -> None:
        self._stop_read, self._stop_write = os.pipe()
        self._done_read, self._done_write = os.pipe()

    def pull(self) -> None:
        """Request the children to stop; safe to call in a signal handler, and repeatedly."""
        write_end, self._stop_write = self._stop_write, -1
        if write_end >= 0:
            os.close(write_end)

    def watch(self, stop: Callable[[], None]) -> None:
        """Call `stop` in a thread of this child when the parent stops it; report its return."""
        self.pull()  # closes the copy of the parent's end
        os.close(self._done_read)

        def wait() -> None:
            os.read(self._stop_read, 1)
            stop()
            os.close(self._done_write)

        threading.Thread(target=wait, name="paceline-stop", daemon=True).start()

    def wait(self, limit_s: float) -> bool:
        """Wait until every child has stopped; return whether all stopped within the time limit.

        Call it once, in the parent, after the last fork.
        """
        self.pull()
        os.close(self._done_write)
        ended, _, _ = select.select([self._done_read], [], [], limit_s)
        return bool(ended)
