"""The programs of one PostgreSQL, run as the account and in the directory that they need."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from app.system.processes import Account, launch_command, spawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.db.embedded.binaries import Binaries


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs that end with this process."""

    binaries: Binaries
    account: Account | None  # who runs them; None: the present user
    directory: Path  # where they run

    def run(
        self, name: str, *arguments: str | Path, pass_fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, whatever its exit status."""
        return subprocess.run(  # noqa: S603 - our own argument list
            launch_command(
                [self.binaries.program(name), *arguments],
                account=self.account,
                directory=self.directory,
                parent_death=signal.SIGKILL,
            ),
            capture_output=True,
            text=True,
            env=_environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            pass_fds=pass_fds,
            check=False,
        )

    def start_server(
        self, *arguments: str | Path, output: IO[bytes], pass_fds: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        """Start the server and return at once."""
        return spawn(
            [self.binaries.program("postgres"), *arguments],
            account=self.account,
            directory=self.directory,
            parent_death=signal.SIGINT,  # "fast shutdown": data are written, clients cut
            environment=_environment(),
            output=output,
            pass_fds=pass_fds,
        )


def _environment() -> dict[str, str]:
    # Nothing of the caller's secrets, locale, time zone or PG* variables reaches the server; only
    # what an interpreter in an unusual place may need to start the launcher.
    kept = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}
