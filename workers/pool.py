"""Celery's pool of forked processes, with a fast shutdown."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import billiard
import structlog
from celery.concurrency.prefork import TaskPool

if TYPE_CHECKING:
    from workers.handover import Handover


# Time limit in seconds of returning the leases, each in a short transaction. The supervisor kills
# the worker after 5 s; a lease that was not returned then expires, and counts as a killed attempt.
HANDOVER_S: Final = 3.0

# Time in seconds that the kernel needs to free the memory of a killed process.
REAP_S: Final = 1

_log = structlog.get_logger(__name__)


def quick_pool(handover: Handover) -> type[TaskPool]:
    """Return a pool class whose processes end as soon as they have returned their leases.

    Celery's own pool waits minutes for the tasks to finish, and a deployment would kill them
    before.
    """

    class QuickPool(TaskPool):
        def on_stop(self) -> None:
            # From now on, processes that end are not replaced.
            self._pool.close()  # type: ignore[attr-defined]  # not in the stubs
            if not handover.wait(HANDOVER_S):
                _log.warning("leases not given back in time", limit_s=HANDOVER_S)
            children = billiard.active_children()
            for child in children:
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGKILL)
            for child in children:
                child.join(REAP_S)

    return QuickPool
