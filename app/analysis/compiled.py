"""Just-in-time compilation of loops, with types that the type checker sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays at its first call; cache the machine code on disk.

    The function releases the GIL, so that a worker's other threads can renew its lease meanwhile.
    If no directory for the cache is writable, every process compiles for itself.
    """
    try:
        kept = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return cast("Function", numba.njit(nogil=True)(function))
    forget_older(Path(cast("str", kept.stats.cache_path)), Path(inspect.getfile(function)))
    return cast("Function", kept)


@cache
def forget_older(kept: Path, source: Path) -> None:
    """Delete Numba's index files that are older than the source file whose compiled code they list.

    Numba opens an index file before it checks the file's age, and fails if the index names a class
    that the source no longer has: after an update in place every analysis would fail.
    """
    # Another process may delete the files at the same time, or they belong to an account whose
    # installation this process must not update.
    with suppress(OSError):
        changed_ns = source.stat().st_mtime_ns
        for index in kept.glob(f"{source.stem}.*.nbi"):
            if index.stat().st_mtime_ns < changed_ns:
                index.unlink()
