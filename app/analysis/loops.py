"""Whether compiled loops do the work, or NumPy, which is there at once; and on which arrays."""

from __future__ import annotations

import sys
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

_Array = TypeVar("_Array", bound=NDArray[Any])

# Loading the compiler's run-time takes about half a second, as long as analyzing that many
# operations without it.
COMPILED_FROM: Final = 1_000_000
# Whoever loaded this one warmed up, or had as many.
_COMPILED: Final = "app.analysis.replay.engine.kernel"


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
