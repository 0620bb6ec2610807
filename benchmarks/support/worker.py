"""A worker process, started like the supervisor's workers, that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from app.platform.container import Container
from app.platform.resources import Scratch


class Worker:
    """A worker of one queue in its own process group.

    Parameters
    ----------
    container : Container
        Container whose settings the worker gets.
    log : Path
        File of the worker's output.
    queue : str
        The queue that the worker serves.
    """

    def __init__(self, container: Container, log: Path, queue: str) -> None:
        self._scratch = Scratch()
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own argument list
                [sys.executable, "-m", "workers.child", "--queue", queue],
                env=os.environ
                | container.settings.environment()
                | {"TMPDIR": str(self._scratch.path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the id of the process that takes messages."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the worker and its forked processes."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._scratch.remove()
