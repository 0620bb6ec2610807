"""How long a search may take. The clock is the caller's: nothing here reads one itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _timeless() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """A deadline on a monotonic clock, in seconds; without arguments there is none.

    `report` is told the proven gap of an optimal search as it shrinks, a fraction; what it raises
    ends the search.
    """

    clock: Callable[[], float] = _timeless
    deadline_s: float | None = None
    report: Callable[[float], None] | None = None

    @property
    def spent(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline_s is not None and self.clock() >= self.deadline_s

    def tell(self, gap: float) -> None:
        """Report the gap."""
        if self.report is not None:
            self.report(gap)
