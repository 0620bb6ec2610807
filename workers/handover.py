"""How a worker tells its forked processes to stop, and waits until they have.

Two pipes, because billiard takes all signals for itself, and because the end of a pipe also tells
of a death that no signal would.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Handover:
    """Made before the fork; `pull` and `wait` are for the parent, `watch` for the children.

    The stop pipe ends when the parent pulls it, or dies: only the parent holds its writing end.
    The done pipe ends when every child has closed its copy of the writing end, or died.
    """

    def __init__(self) -> None:
        self._stop_read, self._stop_write = os.pipe()
        self._done_read, self._done_write = os.pipe()

    def pull(self) -> None:
        """Tell the children to stop; safe to call in a signal handler, and twice."""
        write_end, self._stop_write = self._stop_write, -1
        if write_end >= 0:
            os.close(write_end)

    def watch(self, stop: Callable[[], None]) -> None:
        """Call `stop` in a thread of this child when the parent pulls; it returns when done."""
        self.pull()  # closes the copy of the parent's end
        os.close(self._done_read)

        def wait() -> None:
            os.read(self._stop_read, 1)
            stop()
            os.close(self._done_write)

        threading.Thread(target=wait, name="paceline-stop", daemon=True).start()

    def wait(self, limit_s: float) -> bool:
        """Wait until every child is done, and return whether that came in time.

        Call it once, in the parent, when nothing will be forked any more.
        """
        self.pull()
        os.close(self._done_write)
        ended, _, _ = select.select([self._done_read], [], [], limit_s)
        return bool(ended)
