"""Time budget of a search, measured on the caller's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _timeless() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """Deadline of a search on a monotonic clock, in seconds; by default there is no deadline.

    `report` receives the proven gap of an optimal search as it shrinks, a fraction. The clock is
    read between the steps of every method, with or without a deadline: an exception of the clock
    or of `report` cancels the search.

    A divide and conquer over more than `most_divisions` divisions is refused; a few hundred million
    divisions take a second.
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
        """Read the clock regardless of the deadline, because reading it may cancel the search."""
        self.clock()

    def report_gap(self, gap: float) -> None:
        """Report the proven optimality gap, as a fraction."""
        if self.report is not None:
            self.report(gap)
