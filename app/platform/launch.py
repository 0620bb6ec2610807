"""Set up this process to die with its parent, then replace it by another program.

This file is run by its path and needs no other module of the project:

    python -I -S launch.py --parent PID [--uid N --gid N] [--chdir DIR] [--parent-death SIGNAL]
        -- PROGRAM ARGUMENT…

A wrapper process replaces ``preexec_fn``, which would run Python between fork and exec in a process
with other threads. The order of the steps matters: Linux resets the parent-death signal when the
user changes, so it is set last. The signal reaches this process only, not its children.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys

# Exit statuses of this launcher, which PostgreSQL and Celery do not use.
EXIT_DIRECTORY_CLOSED = 97
EXIT_USER_REFUSED = 98
EXIT_NO_PROGRAM = 99

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set up this process by the arguments, then replace it by the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--parent-death", type=int)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--chdir")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    if arguments.uid is not None:
        try:
            os.setgroups([arguments.gid])
            os.setgid(arguments.gid)
            os.setuid(arguments.uid)
        except OSError as error:
            sys.stderr.write(f"cannot become user id {arguments.uid}: {error}\n")
            sys.exit(EXIT_USER_REFUSED)
    if arguments.chdir is not None:
        try:
            os.chdir(arguments.chdir)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(EXIT_DIRECTORY_CLOSED)
    if arguments.parent_death is not None and sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, arguments.parent_death, 0, 0, 0) != 0:
            sys.stderr.write("cannot ask for a signal at the parent's death\n")
            sys.exit(EXIT_USER_REFUSED)
    # The parent may have died before the death signal was requested, and then no signal would come.
    if os.getppid() != arguments.parent:
        sys.exit(0)
    try:
        os.execv(arguments.command[0], arguments.command)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        sys.stderr.write(f"{arguments.command[0]}: {error}\n")
        sys.exit(EXIT_NO_PROGRAM)


if __name__ == "__main__":
    main()
