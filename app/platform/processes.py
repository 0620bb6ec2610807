"""Child processes that end with their parent, and the limit on open files."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn

import structlog

from app.errors import PacelineError, lines_of
from app.platform.resources import Scratch

_LAUNCHER: Final = Path(__file__).with_name("launch.py")

# First delay before a restart, which doubles: a child that dies at once must not fill the log or
# the process table, yet a single crash should cost no visible time.
_FIRST_BACKOFF_S: Final = 0.5
_LAST_BACKOFF_S: Final = 30.0
_HEALTHY_AFTER_S: Final = 60.0
_POLL_S: Final = 0.02

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the operating system."""

    name: str  # its login name
    # uid, gid: its user id and primary group id
    uid: int
    gid: int


def launch_command(
    command: Sequence[str | Path],
    *,
    account: Account | None = None,
    directory: Path | None = None,
    parent_death: signal.Signals | None = None,
) -> list[str]:
    """Return a command that switches to `account` and `directory`, then runs `command`.

    Parameters
    ----------
    command : sequence of str or Path
        The program, as an absolute path, and its arguments.
    account : Account, optional
        User that runs the command; default: the current user.
    directory : Path, optional
        Working directory of the command, entered as `account`.
    parent_death : Signals, optional
        Signal that the kernel sends when the parent *thread* ends (Linux only): start the command
        from the main thread.
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
    """Start `command` in its own process session; parameters as of `launch_command`.

    Parameters
    ----------
    environment : mapping, optional
        Whole environment of the child; default: the current environment.
    output : binary file, optional
        Receives standard output and standard error; default: both are inherited.
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


def follow_lifeline() -> None:
    """End this process when its parent ends, if the parent started it with a `lifeline`.

    The standard input is then a pipe whose other end only the parent holds, so the end of the input
    means that the parent has ended. This also covers processes that a thread of this process forks,
    which the kernel's parent-death signal would not cover. Call this function once, before anything
    else.
    """
    # A copy of the descriptor: libraries close and replace the standard input, in particular after
    # a fork.
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def start_watching() -> None:
        threading.Thread(target=watch, name="lifeline", daemon=True).start()

    start_watching()
    os.register_at_fork(after_in_child=start_watching)


@dataclass(frozen=True, slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    lifeline: int
    scratch: Scratch


class SupervisedChild:
    """A child process and its descendants: restarted after a crash, stopped as a group.

    Start it from the main thread; see `spawn`.

    Parameters
    ----------
    name : str
        Name of the child in logs.
    command : sequence of str
        Program, as an absolute path, and its arguments; it calls `follow_lifeline`.
    environment : mapping of str to str
        Environment of the child; TMPDIR is set to a directory that is removed when the child ends.
    pass_fds : sequence of int
        File descriptors that the child inherits.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._pass_fds = tuple(pass_fds)
        self._command = command
        self._environment = environment
        self._running: _Running | None = None
        self._started_s = 0.0
        self._restart_at_s = 0.0
        self._backoff_s = _FIRST_BACKOFF_S

    def tend(self) -> None:
        """Start the child if its start is due, and clean up if it has died."""
        now_s = time.monotonic()
        if self._running is None:
            if now_s >= self._restart_at_s:
                self._start(now_s)
            return
        if not _has_ended(self._running.process):
            return
        status = self._reap(self._running)
        if now_s - self._started_s >= _HEALTHY_AFTER_S:
            self._backoff_s = _FIRST_BACKOFF_S
        self._restart_at_s = now_s + self._backoff_s
        _log.warning("child ended", child=self.name, status=status, restart_in_s=self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, _LAST_BACKOFF_S)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the child, which stops its own descendants."""
        if self._running is not None:
            self._running.process.terminate()

    def wait_or_kill(self, deadline_s: float) -> None:
        """Wait until `deadline_s` on the monotonic clock, then kill the child and its children."""
        if self._running is None:
            return
        process = self._running.process
        while not _has_ended(process) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        if not _has_ended(process):
            _log.warning("child killed", child=self.name, why="it did not stop in time")
        self._reap(self._running)

    def _start(self, now_s: float) -> None:
        scratch = Scratch()
        read_end, write_end = os.pipe()
        try:
            process = spawn(
                self._command,
                parent_death=signal.SIGKILL,
                environment={**self._environment, "TMPDIR": str(scratch.path)},
                stdin=read_end,
                pass_fds=self._pass_fds,
            )
        except BaseException:
            os.close(write_end)
            scratch.remove()
            raise
        finally:
            os.close(read_end)
        self._running = _Running(process, write_end, scratch)
        self._started_s = now_s
        _log.info("child started", child=self.name, pid=process.pid)

    def _reap(self, running: _Running) -> int:
        # The group is killed before its leader is reaped: until then the system cannot give the
        # group's number to another process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.process.pid, signal.SIGKILL)
        status = running.process.wait()
        os.close(running.lifeline)
        running.scratch.remove()
        self._running = None
        return status


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a child has ended, if possible without reaping it."""
    if hasattr(os, "waitid"):
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, look) is not None
    return process.poll() is not None  # macOS before Python 3.13


def options(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every child process."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--lifeline", action="store_true", help="end when the standard input ends")
    return parser


def asked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, and follow the lifeline if the option is set."""
    arguments = parser.parse_args()
    if arguments.lifeline:
        follow_lifeline()
    return arguments


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; call this function in the main thread."""
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    return stop


def run(main: Callable[[], int]) -> NoReturn:
    """Run the program of a child process, and end the process with the program's exit status.

    This function imports no libraries before the program does: the program sets variables that
    libraries read on import. It ends the process without waiting for idle child processes and
    threads, since a regular exit takes longer than a supervisor waits.
    """
    try:
        status = main()
    except PacelineError as error:
        sys.stderr.writelines(lines_of(error))
        status = 1
    logging.shutdown()
    os._exit(status)


def allow_open_files() -> None:
    """Raise the limit on open files to the hard limit.

    Every producer holds a connection, and every file of an archive is open while it is read: a job
    of a thousand ranks needs more than the 1,024 files that most systems allow by default.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS reports "infinity" as the hard limit, but refuses it.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
