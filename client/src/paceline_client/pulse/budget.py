"""How often a notice may make a job record: what a session costs must stay below what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHARE: Final = 0.02
_EVERY_S: Final = 3600.0


@dataclass(frozen=True)
class RecordBudget:
    """How much of a job may be recorded because the server asks for it.

    `share` is of the job's steps so far, `every_s` the time between the beginnings of two such
    sessions. Periodic sessions, and those of `Monitor.record`, do not count.
    """

    share: float = _SHARE
    every_s: float = _EVERY_S

    def __post_init__(self) -> None:
        """Raise `ValueError` for what is no budget."""
        if not (0 <= self.share <= 1 and self.every_s >= 0):
            message = f"a share from 0 to 1 and seconds from 0 on, not {self!r}"
            raise ValueError(message)


class Requests:
    """Counts what was recorded on request."""

    def __init__(self, budget: RecordBudget) -> None:
        self._budget = budget
        self._steps = 0
        self._last_s: float | None = None

    def grant(self, steps: int, so_far: int, now_s: float) -> bool:
        """Return whether a session of `steps` fits, and count it if so.

        `so_far` are the job's steps; `now_s` is monotonic.
        """
        budget = self._budget
        too_early = self._last_s is not None and now_s - self._last_s < budget.every_s
        if steps < 1 or too_early or self._steps + steps > budget.share * so_far:
            return False
        self._steps += steps
        self._last_s = now_s
        return True
