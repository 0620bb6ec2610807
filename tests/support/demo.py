"""`paceline demo` in a separate process, which tests wait for, read and stop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from tests.support.plain_user import User
from tests.support.processes import descendants, wait_until_gone
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A limit for hangs: far more than the demo's two weeks take on a loaded machine.
WHOLE_LIMIT_S: Final = 900.0


class Command:
    """``paceline COMMAND --port 0``, run by a user with a separate home directory.

    Parameters
    ----------
    user : User
        Who runs it.
    arguments : str
        The command and its options.
    environment : mapping of str to str
        Added to the environment.
    """

    def __init__(
        self,
        user: User,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._words = user.home / f"words-{uuid.uuid4()}"
        with self._words.open("wb") as words:
            self.process = user.popen(
                *("-m", "app.cli.main", *arguments, "--port", "0"),
                environment={"HOME": str(user.home), "XDG_DATA_HOME": "", **environment},
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            running = descendants(self.process.pid)
            self.process.kill()
            self.process.wait(LIMIT_S)
            wait_until_gone(running)

    def words(self) -> str:
        """Return the output so far."""
        return self._words.read_text()

    def url(self) -> str:
        """Wait until the server answers, and return its address."""
        return self._said("Paceline is ready: ", LIMIT_S).rstrip("/")

    def whole(self) -> None:
        """Wait until the demo's whole history is analyzed."""
        self._said("All analyzed after ", WHOLE_LIMIT_S)

    def stop(self) -> None:
        """Stop the command as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LIMIT_S) == 0, self.words()

    def _said(self, begin: str, limit_s: float) -> str:
        def look() -> str:
            assert self.process.poll() is None, self.words()
            assert "could not" not in self.words(), self.words()
            return next(
                (
                    line.removeprefix(begin)
                    for line in self.words().splitlines()
                    if line.startswith(begin)
                ),
                "",
            )

        return wait_for(look, begin, limit_s=limit_s)


@contextlib.contextmanager
def told_demo() -> Iterator[str]:
    """Yield the address of a demo with its whole history, restarted once.

    Its two weeks take a minute of processor time, so all processes of a test run share one demo,
    which they only read. The first process starts it, and stops it when no other process uses it
    any more.
    """
    place = Path(tempfile.gettempdir())
    address = place / "told-demo"
    with contextlib.ExitStack() as mine:
        # The lock is on the run's directory: a lock file would be left over.
        lock = os.open(place, os.O_RDONLY)
        mine.callback(os.close, lock)
        while True:
            # Processes that use the demo share the lock; the process that starts or stops it holds
            # it alone.
            fcntl.flock(lock, fcntl.LOCK_SH)
            if address.exists():
                break
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not address.exists():
                address.write_text(mine.enter_context(_tell()))
                mine.callback(address.unlink)
                mine.callback(fcntl.flock, lock, fcntl.LOCK_EX)
        yield address.read_text()


@contextlib.contextmanager
def _tell() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as path:
        # The account that runs PostgreSQL must be able to traverse this directory.
        Path(path).chmod(0o755)
        user = User(Path(sys.executable), Path(path), None)
        arguments = ("demo", "--no-live", "--data-dir", f"{path}/demo")
        with Command(user, *arguments) as first:
            first.url()
            first.whole()
            first.stop()
        with Command(user, *arguments) as demo:
            yield demo.url()
            assert "paceline demo --fresh" in demo.words()
            demo.stop()
