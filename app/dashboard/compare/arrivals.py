"""What the page of a comparison says of arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.analysis.arrivals.document import THRESHOLDS
from app.dashboard.compare.words import change_s
from app.dashboard.ui.format import percent, seconds

if TYPE_CHECKING:
    from app.services.compare.read import Comparison

# Ranks that are listed; all are in the file.
RANKS: Final = 6


@dataclass(frozen=True, slots=True)
class ArrivalLine:
    """A rank, and how long others waited for it."""

    rank: int
    last: str
    before: str
    after: str
    change: str


def arrival_lines(found: Comparison) -> Sequence[ArrivalLine]:
    """Return the ranks whose waiting changed most."""
    return [
        ArrivalLine(
            one.rank,
            f"{_share(one.last_share_before)} → {_share(one.last_share_after)}",
            _time(one.waited_for_before_s),
            _time(one.waited_for_after_s),
            change_s(one.change_s),
        )
        for one in found.arrivals[:RANKS]
    ]


def arrivals_title(found: Comparison) -> str:
    """Return whom others waited for, and whether they still do."""
    before, after = found.a.arrivals, found.b.arrivals
    if before is None or after is None or not found.arrivals:
        return ""
    first = found.arrivals[0]
    least_s = THRESHOLDS.worth_saying * min(before.step_s, after.step_s)
    if abs(first.change_s) < least_s:
        if after.straggles:
            return f"Others wait for rank {after.worst.rank} as long as before"
        return "No rank keeps others waiting, before or after"
    was, now = _time(first.waited_for_before_s), _time(first.waited_for_after_s)
    return f"Others wait {now} a step for rank {first.rank}, before it was {was}"


def _share(value: float | None) -> str:
    return "none" if value is None else percent(value, 0)


def _time(value: float | None) -> str:
    return "none" if value is None else seconds(value)
