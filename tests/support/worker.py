"""Real worker processes, started in the same way as by the supervisor."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Self

from sqlalchemy import select

from app.analysis.warm_up import warm_up
from app.installation.models import WorkerHeartbeat
from app.platform.broker import ANALYSIS_QUEUE
from benchmarks.support.worker import Worker
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from app.platform.container import Container


@cache
def compiled() -> None:
    """Store the compiled loops on disk, as in an installation.

    A worker that has to compile them on a busy machine starts its first task minutes later, after
    the time limits of the tests.
    """
    warm_up()


class WorkerProcess(Worker):
    """A worker process that tests wait for and inspect.

    Parameters
    ----------
    container : Container
        Its settings become the worker's; its database contains the worker's heartbeats.
    log : Path
        File with the worker's output; printed if a test fails.
    queue : str
        The queue of the worker.
    """

    def __init__(self, container: Container, log: Path, queue: str = ANALYSIS_QUEUE) -> None:
        if queue == ANALYSIS_QUEUE:
            compiled()
        super().__init__(container, log, queue)
        self._container = container
        self._log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        if exc is not None:
            sys.stderr.write(self._log.read_text())

    def wait_until_ready(self) -> Self:
        """Wait for the heartbeat, which begins when the worker takes messages."""
        wait_for(self._is_ready, "heartbeat of the worker")
        return self

    def forked(self) -> list[int]:
        """Return the processes that run tasks."""
        listed = subprocess.run(  # noqa: S603 - a number
            ["pgrep", "-P", str(self.pid)],  # noqa: S607 - wherever it is
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in listed.stdout.split()]

    def group(self) -> list[int]:
        """Return all living processes of the worker."""
        listed = subprocess.run(  # noqa: S603 - a number
            ["pgrep", "-g", str(self.pid)],  # noqa: S607 - wherever it is
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in listed.stdout.split()]

    def terminate(self) -> int:
        """Terminate the worker, wait, and return its exit status."""
        self._process.terminate()
        return self._process.wait(60)

    def kill_only_the_consumer(self) -> None:
        """Kill the process that takes messages, but not the processes that it forked."""
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the worker ended: {self._log.read_text()}")
        with self._container.uow() as tx:
            seen = tx.session.execute(select(WorkerHeartbeat.pid)).scalars()
            return self.pid in list(seen)
