"""How long a search may take. The clock is the caller's: nothing here reads one itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _timeless() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """A deadline on a monotonic clock, in seconds; without arguments there is none.

    `report` is told the proven gap of an optimal search as it shrinks, a fraction. The clock is
    read between the steps of every method, a deadline or not: what it or `report` raises ends
    the search, which is how it is canceled.

    A divide and conquer over more than `most_divisions` is not begun; some hundred million of them
    take a second.
    """

    clock: Callable[[], float] = _timeless
    deadline_s: float | None = None
    report: Callable[[float], None] | None = None
    most_divisions: float = 2e11

    @property
    def spent(self) -> bool:
        """Return whether the deadline has passed."""
        now_s = self.clock()
        return self.deadline_s is not None and now_s >= self.deadline_s

    def check(self) -> None:
        """Read the clock where the deadline does not matter."""
        self.clock()

    def tell(self, gap: float) -> None:
        """Report the gap."""
        if self.report is not None:
            self.report(gap)
