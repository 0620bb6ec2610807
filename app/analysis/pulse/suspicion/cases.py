"""What is open of a process group, next to what its notices say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Float64, Int64
from app.analysis.pulse.notices import NoticeKind

_MOST_TURNS: Final = 16


@dataclass(slots=True)
class Case:
    """A notice about subjects of a process group, and what is needed to go on with it.

    Parameters
    ----------
    number : int
        Of its notice.
    lead : int
        The subject that it was noticed by.
    subjects, slow : list of int
        All of them, and those that still are slow.
    from_step : int
        Where the present turn began.
    total, count : float
        Sum and number of the residuals so far, for the factor.
    counted_to : int
        The last step among these.
    turns : list of int
        Where each turn began, the last few.
    last_slow, length : int
        The last step that was slow, and how long the last turn was.
    over : bool
        Whether its notice is cleared; it may come back.
    """

    number: int
    kind: NoticeKind
    lead: int
    subjects: list[int]
    slow: list[int]
    from_step: int
    total: float = 0.0
    count: float = 0.0
    counted_to: int = -1
    turns: list[int] = field(default_factory=list)
    last_slow: int = -1
    length: int = 0
    over: bool = False
    rotating: bool = False
    # By how much steps grew when it began, as a logarithm: what it explains of a slow job.
    explains: float = 0.0
    # How much of a drift had become usual before it was noticed, as a logarithm.
    followed: float = 0.0

    def measure(self, numbers: Int64, values: Float64, to: int) -> None:
        """Count the residuals up to a step."""
        rows = (numbers > self.counted_to) & (numbers <= to) & (numbers >= self.from_step)
        if rows.any() and self.slow:
            seen = values[rows][:, self.slow]
            seen = seen[~np.isnan(seen)]
            self.total += float(np.clip(seen, -1, 3).sum())
            self.count += len(seen)
        self.counted_to = max(self.counted_to, to)

    @property
    def factor(self) -> float:
        """Return how many times as long it took."""
        return float(np.exp(self.total / self.count + self.followed)) if self.count else 1.0

    def turn(self, step: int) -> None:
        """Begin another turn."""
        self.from_step = step
        self.turns = [*self.turns, step][-_MOST_TURNS:]

    @property
    def period(self) -> float | None:
        """Return the steps from one turn to the next."""
        return float(np.median(np.diff(self.turns))) if len(self.turns) > 1 else None
