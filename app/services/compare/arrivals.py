"""Who kept others waiting at collectives, in two sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.analysis.arrivals.document import Arrivals, RankArrivals


@dataclass(frozen=True, slots=True)
class ArrivalChange:
    """How long others waited for a rank at collectives; None where it met no others."""

    rank: int
    """Global rank."""
    last_share_before: float | None
    """The share of its collectives at which it came last, in the session before and after."""
    last_share_after: float | None
    """The share of its collectives at which it came last, in the session before and after."""
    waited_for_before_s: float | None
    """What each of those that meet it waited for it, seconds a step, before and after."""
    waited_for_after_s: float | None
    """What each of those that meet it waited for it, seconds a step, before and after."""

    @property
    def change_s(self) -> float:
        """Return by how much longer others wait now."""
        return (self.waited_for_after_s or 0.0) - (self.waited_for_before_s or 0.0)


def arrival_changes(before: Arrivals | None, after: Arrivals | None) -> tuple[ArrivalChange, ...]:
    """Return every rank that meets others in one of two sessions, the largest change first.

    Nothing where one of the sessions has no collectives over ranks.
    """
    if before is None or after is None:
        return ()
    sides = [{one.rank: one for one in side.ranks} for side in (before, after)]
    found = [_change(rank, *(side.get(rank) for side in sides)) for rank in {*sides[0], *sides[1]}]
    return tuple(sorted(found, key=lambda one: (-abs(one.change_s), one.rank)))


def _change(rank: int, before: RankArrivals | None, after: RankArrivals | None) -> ArrivalChange:
    shares = (None if side is None else side.last_share for side in (before, after))
    waited = (None if side is None else side.waited_for_s for side in (before, after))
    return ArrivalChange(rank, *shares, *waited)
