"""The time range of a page: the last hour, day, week or month, or an explicit one.

It is a part of the address: ``?range=7d``, or ``?from=2026-11-20T09:00Z&to=2026-11-21T09:00Z``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import Depends, Query
from markupsafe import Markup

from app.platform.validation import YEARS
from app.web.format import NBSP
from app.web.links import QueryText, asked_for
from app.web.moments import minute, span

SPANS: Final = {
    "1h": (timedelta(hours=1), f"1{NBSP}h"),
    "24h": (timedelta(hours=24), f"24{NBSP}h"),
    "7d": (timedelta(days=7), f"7{NBSP}d"),
    "30d": (timedelta(days=30), f"30{NBSP}d"),
}
# Default range of a page whose address has no range.
DAY: Final = "24h"
ALL: Final = "all"
# A text of more characters is no time.
MAX_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Range:
    """A time range; without bounds it covers all time."""

    name: str  # as the address says it; empty for one's own
    words: str  # ``the last 24 h``, ``the chosen time``
    span: timedelta | None = None  # counted back from now
    # begin, end: bounds of an explicit range; without an end it ends now
    begin: datetime | None = None
    end: datetime | None = None

    def since(self, now: datetime) -> datetime | None:
        """Return the beginning of the range, with a relative range counted back from now."""
        return now - self.span if self.span is not None else self.begin

    def parameters(self, default: str) -> dict[str, str]:
        """Return the query parameters of the range; the range `default` needs no parameters."""
        return {
            "range": "" if self.name == default else self.name,
            "from": "" if self.begin is None else utc_minutes(self.begin),
            "to": "" if self.end is None else utc_minutes(self.end),
        }

    def is_past(self, now: datetime) -> bool:
        """Return whether the range ends in the past."""
        return self.end is not None and self.end < now


@dataclass(frozen=True, slots=True)
class RangeChoice:
    """A range that a page offers."""

    name: str
    label: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RangeChoices:
    """The ranges that a page offers; `begin` and `end` are the values of an explicit range."""

    choices: Sequence[RangeChoice]
    own: bool
    begin: str
    end: str
    words: str  # what one's own is


def range_of(name: str, begin: str, end: str, *, default: str = DAY) -> Range:
    """Return the range in an address; invalid values are ignored.

    Parameters
    ----------
    begin, end : str
        Bounds of an explicit range, ISO 8601; times without an offset are UTC.
    default : str
        Name of the range if the address has no range.
    """
    first, last = moment_in(begin), moment_in(end)
    if first is not None or last is not None:
        if first is not None and last is not None and last < first:
            first, last = last, first
        return Range("", "the chosen time", begin=first, end=last)
    name = name if name in SPANS or name == ALL else default
    if name == ALL:
        return Range(ALL, "the whole time")
    span, label = SPANS[name]
    return Range(name, f"the last {label}", span=span)


def range_choices(chosen: Range, *, with_all: bool = False) -> RangeChoices:
    """Return the ranges that a page offers, and its current range."""
    offered = [(name, label) for name, (_, label) in SPANS.items()]
    if with_all:
        offered.append((ALL, "All"))
    return RangeChoices(
        choices=[RangeChoice(name, label, name == chosen.name) for name, label in offered],
        own=not chosen.name,
        begin="" if chosen.begin is None else utc_minutes(chosen.begin),
        end="" if chosen.end is None else utc_minutes(chosen.end),
        words=_bounds_text(chosen.begin, chosen.end),
    )


def moment_in(text: str) -> datetime | None:
    """Parse a time in an address; None if invalid or outside `YEARS`. No offset means UTC."""
    if not text or len(text) > MAX_CHARS:
        return None
    try:
        # A plus sign that was not escaped in the address was decoded as a space.
        moment = datetime.fromisoformat(text.strip().replace(" ", "+"))
    except ValueError:
        return None
    if moment.year not in YEARS:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def utc_minutes(moment: datetime) -> str:
    """Return a time in the format of addresses: ``2026-11-29T11:00Z``."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='minutes')}Z"


def _bounds_text(begin: datetime | None, end: datetime | None) -> Markup:
    """Return the bounds of an explicit range as text: ``20 Nov 2026 09:00 to …``."""
    if begin is not None and end is not None:
        return span(begin, end)
    if begin is not None:
        return Markup("Since {}").format(minute(begin))
    return Markup("Until {}").format(minute(end)) if end is not None else Markup()


# Default range of pages that cover many sessions.
MONTH: Final = "30d"


class TimeQuery:
    """The time range in a page's address."""

    def __init__(
        self,
        range: QueryText = "",  # noqa: A002 - name of the parameter
        begin: Annotated[str, Query(alias="from")] = "",
        end: Annotated[str, Query(alias="to")] = "",
    ) -> None:
        self.parameters = {"range": range, "from": begin, "to": end}

    def about(self, default: str = DAY) -> Range:
        """Return the range in the address; `default` if it has no parameters of a range."""
        return range_of(*self.parameters.values(), default=default)


TimeQueryParam = Annotated[TimeQuery, Depends(asked_for(TimeQuery))]
