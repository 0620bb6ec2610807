"""Memoization: an immutable object keeps the results of functions called with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


class Memoized:
    """Mixin of an object that caches, in `_memo`, the results of functions called with it."""

    __slots__ = ()

    _memo: dict[Callable[[Any], Any], Any]

    def memoize(self, function: Callable[[Self], Result]) -> Result:
        """Return ``function(self)``; compute it at the first call only."""
        if function not in self._memo:
            self._memo[function] = function(self)
        result: Result = self._memo[function]
        return result
