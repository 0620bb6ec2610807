"""Results of functions of an immutable object, kept by that object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

Seen = TypeVar("Seen")


class LooksOnce:
    """Keeps what functions see in it; whoever derives from it has `_seen`."""

    __slots__ = ()

    _seen: dict[Callable[[Any], Any], Any]

    def once(self, look: Callable[[Self], Seen]) -> Seen:
        """Return what a function sees; asked again it does not look again."""
        if look not in self._seen:
            self._seen[look] = look(self)
        seen: Seen = self._seen[look]
        return seen
