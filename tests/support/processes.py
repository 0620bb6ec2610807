"""Processes of this machine, read with `ps`, which every Unix has."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable


def ps(*columns: str, of: Iterable[int] | None = None) -> list[list[str]]:
    """Return these columns of all processes, or of those of some that still exist.

    ``-ww``, because ps may cut lines at 80 characters.
    """
    which = ["-A"] if of is None else ["-p", ",".join(map(str, of))]
    wanted = [word for column in columns for word in ("-o", f"{column}=")]
    listing = subprocess.run(  # noqa: S603 - the test's own
        ["ps", "-ww", *which, *wanted],  # noqa: S607 - wherever the system keeps it
        capture_output=True,
        text=True,
        check=of is None,
    )
    return [line.split() for line in listing.stdout.splitlines()]


def descendants(pid: int) -> set[int]:
    """Return `pid` and all processes below it, in any session or process group."""
    parents = {int(child): int(parent) for child, parent in ps("pid", "ppid")}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Return the given processes that still run; a zombie does not."""
    return {int(pid) for pid, state in ps("pid", "stat") if not state.startswith("Z")} & pids


def wait_until_gone(pids: set[int]) -> None:
    """Wait until none of the processes runs any more."""
    wait_for(lambda: not alive(pids), f"end of the processes {sorted(pids)}")
