"""Memoization: results of functions of an immutable object, kept by that object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

Result = TypeVar("Result")


class Memoized:
    """Mixin that keeps the results of functions of the object; subclasses define `_memo`."""

    __slots__ = ()

    _memo: dict[Callable[[Any], Any], Any]

    def memoize(self, function: Callable[[Self], Result]) -> Result:
        """Return ``function(self)``, computed at the first call only."""
        if function not in self._memo:
            self._memo[function] = function(self)
        result: Result = self._memo[function]
        return result
