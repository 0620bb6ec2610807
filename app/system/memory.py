"""How much memory the work of a process may have."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB: Final = 1024
_STATUS: Final = Path("/proc/self/status")
_DATA: Final = "VmData:"


@contextlib.contextmanager
def limited_memory(limit_kib: int) -> Iterator[None]:
    """Let allocations of this process fail above a limit while the block runs.

    So work that needs more ends with a `MemoryError`, and takes neither its process nor its host
    along. The limit is of the data segment, what the process allocated for itself and may write to,
    touched or not; it comes on top of what there is when the block begins. Files that are mapped do
    not count. A process that is limited to less already keeps that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = (_data_kib() + limit_kib) * KIB
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    _set(wanted, hard)
    try:
        yield
    finally:
        _set(soft, hard)


def _set(soft: int, hard: int) -> None:
    # macOS knows the limit and refuses it.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_kib() -> int:
    """Return the size of the data segment; 0 where the system does not say it (not Linux)."""
    if not _STATUS.exists():
        return 0
    lines = _STATUS.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(_DATA)), 0)
