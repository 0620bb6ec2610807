"""Which weeks lie in a time whole: of these a list reads sums, of the rest of it readings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import or_, true

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.services.hosts.costs import Span

# Weeks begin on Mondays at midnight, UTC, as the database's `host_week_of` counts them.
WEEK: Final = timedelta(days=7)
_FIRST: Final = datetime(2001, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Weeks:
    """The weeks that lie whole in a time."""

    # first, end: where the first one begins and where the last one ends; None
    # where the time has no bound. Where no week is whole both are the same.
    first: datetime | None
    end: datetime | None

    def holds(self, week: ColumnElement[datetime]) -> list[ColumnElement[bool]]:
        """Return the conditions for a week, by its beginning, to be one of these."""
        found = []
        if self.first is not None:
            found.append(week >= self.first)
        if self.end is not None:
            found.append(week < self.end)
        return found

    def leaves(self, moment: ColumnElement[datetime]) -> ColumnElement[bool]:
        """Return the condition for a moment to be in none of these."""
        if self.first is None and self.end is None:
            return ~true()
        if self.first is None:
            return moment >= self.end
        if self.end is None:
            return moment < self.first
        return or_(moment < self.first, moment >= self.end)


def weeks_in(span: Span) -> Weeks:
    """Return the weeks that lie whole in a time.

    Examples
    --------
    >>> from app.services.hosts.costs import Span
    >>> weeks_in(Span(since=datetime(2026, 11, 18, tzinfo=UTC))).first.isoformat()
    '2026-11-23T00:00:00+00:00'
    """
    first = None if span.since is None else _begin(span.since, up=True)
    end = None if span.until is None else _begin(span.until, up=False)
    if first is not None and end is not None:
        end = max(first, end)
    return Weeks(first, end)


def _begin(moment: datetime, *, up: bool) -> datetime:
    weeks, rest = divmod(moment - _FIRST, WEEK)
    return _FIRST + (weeks + (up and bool(rest))) * WEEK
