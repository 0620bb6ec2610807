"""Write times in UTC; `js/zone.js` rewrites them in the reader's time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from markupsafe import Markup, escape

from app.web.format import age, exact_time

_IN_MESSAGES: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d) UTC")
_TAG: Final = re.compile("<[^>]*>")
_BARE: Final = Markup(" data-bare")


class Form(StrEnum):
    """The format of a time; `js/zone.js` writes the same formats in the reader's time zone."""

    SHORT = "short"
    """``09:26 UTC``, and ``18 Nov 09:26 UTC`` unless it is today."""
    MINUTE = "minute"
    """``18 Nov 2026 09:26 UTC``."""
    EXACT = "exact"
    """``18 Nov 2026 09:26:12 UTC``."""
    DAY = "day"
    """``18 Nov``."""
    DATE = "date"
    """``18 Nov 2026``."""
    WEEKLY = "weekly"
    """``Mondays at 09:26 UTC``."""


def written(at: datetime, form: Form, now: datetime | None = None, *, bare: bool = False) -> str:
    """Return a time as text in UTC.

    Parameters
    ----------
    now : datetime, optional
        The present time, whose day and year a short form leaves out; without it, both are written.
    bare : bool
        Whether to leave out the time zone, because it is shown elsewhere, such as below an axis.
    """
    at = at.astimezone(UTC)
    if form is Form.EXACT:
        return exact_time(at)
    day = f"{at.day} {at:%b}"
    if form is Form.DAY:
        return day
    if form is Form.DATE:
        return f"{day} {at:%Y}"
    if form is Form.WEEKLY:
        return f"{at:%A}s at {at:%H:%M} UTC"
    today = None if now is None or form is Form.MINUTE else now.astimezone(UTC)
    parts = [f"{at:%H:%M}"] if bare else [f"{at:%H:%M}", "UTC"]
    if today is None or at.year != today.year:
        parts = [day, f"{at:%Y}", *parts]
    elif at.date() != today.date():
        parts = [day, *parts]
    return " ".join(parts)


def _time(at: datetime, form: Form, now: datetime | None = None, *, bare: bool = False) -> Markup:
    return Markup(  # noqa: S704 - numbers and names of months
        f'<time datetime="{at.astimezone(UTC).isoformat()}" title="{exact_time(at)}"'
        f' data-time="{form}"{_BARE if bare else ""}>{written(at, form, now, bare=bare)}</time>'
    )


def when(at: datetime, now: datetime) -> Markup:
    """Return a time of day, with the day unless it is today."""
    return _time(at, Form.SHORT, now)


def minute(at: datetime) -> Markup:
    """Return a time with its date, rounded down to the minute."""
    return _time(at, Form.MINUTE)


def exact(at: datetime) -> Markup:
    """Return a time with its date, rounded down to the second."""
    return _time(at, Form.EXACT)


def date(at: datetime) -> Markup:
    """Return the date of a time."""
    return _time(at, Form.DATE)


def weekly(at: datetime) -> Markup:
    """Return weekday and time of day."""
    return _time(at, Form.WEEKLY)


def span(begin: datetime, end: datetime) -> Markup:
    """Return the time range between two times, rounded down to the minute."""
    return Markup("{} to {}").format(_time(begin, Form.MINUTE, bare=True), minute(end))


def ago(at: datetime, now: datetime) -> Markup:
    """Return the age of a time, which scripts keep up to date."""
    return Markup(  # noqa: S704 - numbers and names of months
        f'<time datetime="{at.isoformat()}" title="{exact_time(at)}" data-ago>'
        f"{age((now - at).total_seconds())}</time>"
    )


def timed(text: str) -> Markup:
    """Return a message with its UTC times replaced by HTML elements."""
    message, end = Markup(), 0
    for at in _IN_MESSAGES.finditer(text):
        message += escape(text[end : at.start()]) + minute(datetime.fromisoformat(f"{at[1]}Z"))
        end = at.end()
    return message + escape(text[end:])


def plain(text: str) -> str:
    """Return a text without HTML elements of times, in UTC, for a file or an attribute."""
    return Markup(_TAG.sub("", text)).unescape() if isinstance(text, Markup) else text  # noqa: S704 - no page


@dataclass(frozen=True, slots=True)
class When:
    """A time in a text that cannot contain elements, such as in a figure or a choice.

    The script replaces the moment in the text of the element that has the `attributes`.
    """

    at: datetime
    form: Form
    now: datetime | None = None
    bare: bool = False  # whether its zone is said elsewhere, such as below the figure

    @property
    def text(self) -> str:
        """Return the time as text in UTC."""
        return written(self.at, self.form, self.now, bare=self.bare)

    @property
    def attributes(self) -> Markup:
        """Return the HTML attributes that `js/zone.js` reads."""
        return Markup(' data-at="{}" data-time="{}"{}').format(
            self.at.astimezone(UTC).isoformat(),
            self.form,
            _BARE if self.bare else "",
        )
