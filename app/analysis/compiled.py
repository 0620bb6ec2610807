"""Just-in-time compilation with types that the checker sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays when it is first called, and keep it on disk.

    Other threads run meanwhile: a worker goes on renewing its lease.

    Where no directory for the cache can be written, every process compiles for itself.
    """
    try:
        return cast("Function", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return cast("Function", numba.njit(nogil=True)(function))
