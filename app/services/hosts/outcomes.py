"""Whether a repair helped: a host's sessions before it against those after it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Sessions that count on either side: the latest before, the first after.
AROUND: Final = 5
# One session may be slow, or quick, by chance.
ENOUGH: Final = 2


class Outcome(StrEnum):
    """What came of a repair."""

    HELPED = "helped"
    NO_HELP = "no help"
    # was not slow, and is not
    NO_CHANGE = "no change"
    WORSE = "worse"
    # too few sessions since
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Level:
    """How slow a host, or a GPU of it, was in a session; `slow` is whether a cause names it."""

    slowdown: float
    slow: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a repair, and the sessions that say so."""

    outcome: Outcome
    # before, after: median slowdown; None where there is no session
    before: float | None
    after: float | None
    sessions_before: int
    sessions_after: int
    # slow_before, slow_after: in how many of these it was slow
    slow_before: int
    slow_after: int


def judge(before: Sequence[Level], after: Sequence[Level]) -> Judged:
    """Return whether a repair helped.

    It helped where the host was slow before and in none of at least two sessions after.

    Parameters
    ----------
    before, after : sequence of Level
        Nearest to the repair first; more than `AROUND` do not count.

    Examples
    --------
    >>> slow, quick = Level(1.4, slow=True), Level(1.0, slow=False)
    >>> judge([slow, slow], [quick, quick]).outcome.value
    'helped'
    >>> judge([slow, slow], [quick]).outcome.value
    'open'
    """
    before, after = before[:AROUND], after[:AROUND]
    slow_before, slow_after = (sum(level.slow for level in part) for part in (before, after))
    if len(after) < ENOUGH:
        outcome = Outcome.OPEN
    elif slow_after:
        outcome = Outcome.NO_HELP if slow_before else Outcome.WORSE
    else:
        outcome = Outcome.HELPED if slow_before else Outcome.NO_CHANGE
    return Judged(
        outcome,
        _median(before),
        _median(after),
        len(before),
        len(after),
        slow_before,
        slow_after,
    )


def _median(levels: Sequence[Level]) -> float | None:
    return statistics.median(level.slowdown for level in levels) if levels else None
