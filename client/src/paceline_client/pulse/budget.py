"""How often a notice may make a job record: what a session costs must stay below what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHARE: Final = 0.02
_EVERY_S: Final = 3600.0


@dataclass(frozen=True)
class RecordBudget:
    """How much of a job may be recorded because the server noticed something.

    `share` is of the job's steps so far, within which all sessions but the last one are: a young
    job may record its first. `every_s` is the time between the beginnings of two such sessions.
    Periodic sessions, those of `Monitor.record`, and those that a person asks for do not count.
    """

    share: float = _SHARE
    every_s: float = _EVERY_S

    def __post_init__(self) -> None:
        """Raise `ValueError` for what is no budget."""
        if not (0 <= self.share <= 1 and self.every_s >= 0):
            message = f"a share from 0 to 1 and seconds from 0 on, not {self!r}"
            raise ValueError(message)


class Requests:
    """Counts what was recorded because of notices."""

    def __init__(self, budget: RecordBudget) -> None:
        self._budget = budget
        self._steps = 0
        self._last_s: float | None = None

    def has_room(self, so_far: int, now_s: float) -> bool:
        """Return whether another session may be recorded, by the server's rule.

        `so_far` are the job's steps; `now_s` is monotonic.
        """
        budget = self._budget
        too_early = self._last_s is not None and now_s - self._last_s < budget.every_s
        return not too_early and budget.share > 0 and self._steps <= budget.share * so_far

    def count(self, steps: int, now_s: float) -> None:
        """Count a session that is recorded."""
        self._steps += steps
        self._last_s = now_s
