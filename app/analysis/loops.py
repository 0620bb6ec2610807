"""Choice between compiled loops and NumPy, and threads for compiled loops.

Loading the compiler takes about half a second, as long as the analysis of a million operations
in NumPy, so this module must not import numba.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

# ---- Whether compiled loops do the work, or NumPy, which is there at once; and on which arrays ---


_Array = TypeVar("_Array", bound=NDArray[Any])

# Loading the compiler's run-time takes about half a second, as long as analyzing that many
# operations without it.
COMPILED_FROM: Final = 1_000_000
# Whoever loaded this one warmed up, or had as many.
_COMPILED: Final = "app.analysis.replay.engine.compiled_replay"


def compiled_pays(operations: int) -> bool:
    """Return whether the compiler's run-time is loaded already, or pays for being loaded."""
    return operations >= COMPILED_FROM or _COMPILED in sys.modules


def in_rows(array: _Array) -> _Array:
    """Return the array as the loops were compiled for when the program was installed.

    For a slice, a transposed or a repeated array they would be compiled once more, which takes
    five seconds.
    """
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    return cast("_Array", np.require(array, requirements=("C", "W")))


def frozen(array: _Array) -> _Array:
    """Return an array that a loop only reads, which others may not write to, in the same way."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return cast("_Array", view)


# ---- Parts of one computation on several cores; for compiled loops, which let other threads run --


Part = TypeVar("Part")
Result = TypeVar("Result")

# Below that many operations a second thread costs more than it saves.
_WORTH_A_THREAD: Final = 1_000_000
# More threads would take cores from the analyses of other sessions.
_MOST_THREADS: Final = 4
# A thread that others hold up leaves parts of its work to the rest.
_SHARES: Final = 4


def threads_for(operations: int) -> int:
    """Return how many threads a number of operations is worth."""
    return min(_MOST_THREADS, os.cpu_count() or 1) if operations >= _WORTH_A_THREAD else 1


def in_threads(threads: int, run: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Run every part, and return what that gives, in order."""
    if threads == 1 or len(parts) == 1:
        return [run(part) for part in parts]
    # Small sessions need none, and it loads logging with it.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(min(threads, len(parts))) as pool:
        return list(pool.map(run, parts))


def cut(count: int, threads: int, unit: int = 1) -> list[slice]:
    """Cut a number of items into parts of whole units, one for each thread.

    Examples
    --------
    >>> cut(7, threads=1)
    [slice(0, 7, None)]
    >>> cut(7, threads=2, unit=3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 7, None)]
    """
    parts = threads * _SHARES if threads > 1 else 1
    units = -(-count // unit)
    cuts = [units * part // parts * unit for part in range(parts)]
    return [slice(first, end) for first, end in pairwise([*cuts, count]) if first < end]
