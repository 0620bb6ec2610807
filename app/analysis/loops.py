"""Choice between compiled loops and NumPy, and threads for compiled loops.

Loading the compiler takes about half a second, as long as NumPy takes to analyze a million
operations, so this module must not import numba.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

# Choice between compiled loops and NumPy, and the form of arrays for which loops are compiled.


_Array = TypeVar("_Array", bound=NDArray[Any])

# Number of operations from which compiled loops pay: loading the compiler's run-time takes about
# half a second, as long as NumPy takes to analyze this number of operations.
COMPILED_FROM: Final = 1_000_000
# Name of the module whose import loads the compiler's run-time, either in `warm_up` or for an
# earlier large session.
_COMPILED: Final = "app.analysis.replay.engine.compiled_replay"


def compiled_pays(operations: int) -> bool:
    """Return whether the compiler's run-time is loaded, or worth loading for these operations."""
    return operations >= COMPILED_FROM or _COMPILED in sys.modules


def in_rows(array: _Array) -> _Array:
    """Return the array as C-contiguous and writable, the form for which the loops are compiled.

    The loops are compiled when the program is installed. For a slice, a transposed or a repeated
    array, a loop would be compiled once more, which takes five seconds.
    """
    if array.flags.c_contiguous and array.flags.writeable:
        return array
    return cast("_Array", np.require(array, requirements=("C", "W")))


def frozen(array: _Array) -> _Array:
    """Return a C-contiguous, read-only view of an array, for a compiled loop that only reads it."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return cast("_Array", view)


# Division of a computation over several cores, for compiled loops, which release the GIL.


Part = TypeVar("Part")
Result = TypeVar("Result")

# Number of operations below which a second thread costs more time than it saves.
_WORTH_A_THREAD: Final = 1_000_000
# Highest number of threads: more would take cores from the analyses of other sessions.
_MOST_THREADS: Final = 4
# Parts of the work for each thread: if other processes delay a thread, the other threads take over
# the rest of its parts.
_SHARES: Final = 4


def threads_for(operations: int) -> int:
    """Return the number of threads that pays for a number of operations."""
    return min(_MOST_THREADS, os.cpu_count() or 1) if operations >= _WORTH_A_THREAD else 1


def in_threads(threads: int, run: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Call `run` with every part, and return the results in the order of the parts."""
    if threads == 1 or len(parts) == 1:
        return [run(part) for part in parts]
    # Imported here, as small sessions need no threads, and the import also loads logging.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(min(threads, len(parts))) as pool:
        return list(pool.map(run, parts))


def cut(count: int, threads: int, unit: int = 1) -> list[slice]:
    """Cut a number of items into slices of whole units, to be spread over the threads.

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
