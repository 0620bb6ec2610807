"""Which two sessions of a job say what an event did: those around it, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence
    from datetime import datetime

    from app.services.history.axis import JobChange, TimePoint


def compare_url(before: uuid.UUID, after: uuid.UUID) -> str:
    """Return the page of two sessions side by side."""
    return f"/compare?a={before}&b={after}"


def around_moment(points: Sequence[TimePoint], at: datetime) -> str:
    """Return the comparison of the sessions around a moment; empty without one on either side.

    Parameters
    ----------
    points : sequence of TimePoint
        Oldest first; those without a verdict cannot be compared.
    """
    known = [point for point in points if point.slowdown is not None]
    before = [point for point in known if point.received_at < at]
    after = [point for point in known if point.received_at >= at]
    return compare_url(before[-1].id, after[0].id) if before and after else ""


def around_change(points: Sequence[TimePoint], change: JobChange) -> str:
    """Return the comparison of the first session of a change with the one before it."""
    return around_moment(points, change.at)
