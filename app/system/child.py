"""What the programs of child processes share: their options, how they are stopped, their end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from app.errors import PacelineError, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable


def options(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options that every child has, to which a program adds its own."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--lifeline", action="store_true", help="end when the standard input ends")
    return parser


def asked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return what the command line says, and follow the lifeline where it says so."""
    arguments = parser.parse_args()
    if arguments.lifeline:
        from app.system.processes import follow_lifeline  # noqa: PLC0415 - see `run`

        follow_lifeline()
    return arguments


def stop_on_signals() -> threading.Event:
    """Return what is set by SIGTERM and SIGINT; call it in the main thread."""
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    return stop


def run(main: Callable[[], int]) -> NoReturn:
    """Run the program of a child process, and end the process with its status.

    Nothing is loaded before that a program may have to load later: it says what libraries read when
    they are. Idle processes and threads, which these would wait for at exit, are left behind: that
    takes longer than a supervisor waits.
    """
    try:
        status = main()
    except PacelineError as error:
        sys.stderr.writelines(lines_of(error))
        status = 1
    logging.shutdown()
    os._exit(status)
