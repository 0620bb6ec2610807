"""Source trees of other versions of the program, and their servers and workers as processes."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx

from tests.conftest import skip_or_fail
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

ROOT: Final = Path(__file__).parents[2]
# The last commit of version 0.2.0.
RELEASED: Final = "7a68c908317ee74354722d29dbccb5e8cf94f1a1"
_PACKAGES: Final = ("app", "client/src", "docs", "frontend", "migrations", "workers")
_GENERATION: Final = "app/analysis/generation.py"
# Processes import the program and compile its loops, several at the same time.
_READY_WITHIN_S: Final = 300.0


def released_tree(folder: Path) -> Path:
    """Write the source of version 0.2.0 into a folder; skip the test without git's history."""
    got = subprocess.run(  # noqa: S603 - our own arguments
        ["git", "-C", str(ROOT), "archive", RELEASED],  # noqa: S607 - wherever it is
        check=False,
        capture_output=True,
    )
    if got.returncode:
        skip_or_fail(f"there is no commit {RELEASED} of 0.2.0 here: fetch the whole history")
    with tarfile.open(fileobj=io.BytesIO(got.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def next_tree(folder: Path) -> Path:
    """Copy the present source into a folder, and let it write the next generation of formats.

    The copies keep their times, with which compiled loops in the copied caches stay valid.
    """
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, folder / package)
    module = folder / _GENERATION
    text = module.read_text()
    for name in ("READS", "WRITES"):
        line = next(line for line in text.splitlines() if line.startswith(f"{name}: "))
        before, _, number = line.rpartition(" ")
        text = text.replace(line, f"{before} {int(number) + 1}")
    module.write_text(text)
    return folder


@dataclass
class Version:
    """A version of the program: its source, and the settings of its processes.

    Parameters
    ----------
    log : Path
        File with the output of all its processes; printed if a test fails.
    """

    name: str
    tree: Path
    settings: Mapping[str, str]
    log: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of a process, which imports this version's source."""
        path = os.pathsep.join([str(self.tree), str(self.tree / "client" / "src")])
        return os.environ | dict(self.settings) | {"PYTHONPATH": path}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the program to its end."""
        return subprocess.run(  # noqa: S603 - our own arguments
            self.command(*words),
            env=self.environment(),
            cwd=self.tree,
            check=False,
            capture_output=True,
            text=True,
        )

    def command(self, *words: str) -> list[str]:
        """Return a command of the program, for a process whose directory is the tree."""
        return [sys.executable, "-c", "from app.cli.main import main; main()", *words]

    def server(self) -> Server:
        """Start a server, and return it before it is ready."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return Server(self, ("serve",), {"PACELINE_PORT": str(port)})

    def worker(self) -> Process:
        """Start workers and a sweeper."""
        return Process(self, ("worker",))


@dataclass
class Process:
    """A running command of a version; stopped at the end of the context."""

    version: Version
    words: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.version.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                self.version.command(*self.words),
                env=self.version.environment() | dict(self.settings),
                cwd=self.version.tree,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if exc is not None:
            sys.stderr.write(f"--- {self.version.name}\n{self.version.log.read_text()}")

    def stop(self) -> None:
        """Stop the process as an orchestrator does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None


class Server(Process):
    """A server on a free port."""

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://127.0.0.1:{self.settings['PACELINE_PORT']}"

    def wait_until_it_answers(self) -> None:
        """Wait until the server answers requests."""

        def answers() -> bool:
            assert self.is_running(), self.version.log.read_text()
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/healthz", trust_env=False).is_success
            return False

        wait_for(answers, f"server of {self.version.name}", limit_s=_READY_WITHIN_S)
