"""Child processes that end with the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

_LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the operating system.

    Parameters
    ----------
    name : str
        Its login name.
    uid, gid : int
        Its user id and primary group id.
    """

    name: str
    uid: int
    gid: int


def launch_command(
    command: Sequence[str | Path],
    *,
    account: Account | None = None,
    directory: Path | None = None,
    parent_death: signal.Signals | None = None,
) -> list[str]:
    """Return the command that drops to `account`, enters `directory` and then runs `command`.

    Parameters
    ----------
    command : sequence of str or Path
        The program, as an absolute path, and its arguments.
    account : Account, optional
        Who runs it; the present user without.
    directory : Path, optional
        Its working directory, entered as `account`.
    parent_death : Signals, optional
        What the kernel sends it when the *thread* that started it ends (Linux only): start it from
        the main thread.
    """
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), "--parent", str(os.getpid())]
    if account is not None:
        launcher += ["--uid", str(account.uid), "--gid", str(account.gid)]
    if directory is not None:
        launcher += ["--chdir", str(directory)]
    if parent_death is not None:
        launcher += ["--parent-death", str(int(parent_death))]
    return [*launcher, "--", *map(str, command)]


def spawn(  # noqa: PLR0913 - each is one property of a process
    command: Sequence[str | Path],
    *,
    parent_death: signal.Signals,
    account: Account | None = None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    output: IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a process session of its own; see `launch_command` for the parameters.

    Parameters
    ----------
    environment : mapping, optional
        Its whole environment; the present one without.
    stdin : int
        A file descriptor.
    output : binary file, optional
        Takes both its outputs; inherited without.
    pass_fds : sequence of int
        Descriptors that it inherits.
    """
    return subprocess.Popen(  # noqa: S603 - our own argument list
        launch_command(command, account=account, directory=directory, parent_death=parent_death),
        stdin=stdin,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
        pass_fds=pass_fds,
    )
