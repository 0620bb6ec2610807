"""Numbers and lists in the sentences of reports, in the same notation as on pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NBSP: Final = "\N{NO-BREAK SPACE}"
_NAMED: Final = 3


def percent(share: float, digits: int = 1) -> str:
    """Return a share of 1 in percent: ``19.9 %``."""
    return f"{100 * share:.{digits}f}{NBSP}%"


def sure(confidence: float) -> str:
    """Return a confidence in percent, never as certainty: ``over 99 %``."""
    beyond = 0.99
    return f"over {percent(beyond, 0)}" if confidence > beyond else percent(confidence, 0)


def hours(value: float) -> str:
    """Return GPU-hours to three digits: ``0.42``, ``8.7``, ``18.0``, ``3,341``."""
    size = abs(value)
    if size >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:,.0f}"
    if size >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}" if size >= 0.001 else "0"  # noqa: PLR2004 - less is nothing


def gpu_time(gpu_hours: float) -> str:
    """Return GPU-hours with their unit; few GPU-hours in GPU-minutes or GPU-seconds.

    Examples
    --------
    >>> gpu_time(3.25), gpu_time(0.05), gpu_time(0.0007)
    ('3.2 GPU-hours', '3.0 GPU-minutes', '2.5 GPU-seconds')
    """
    for scale, unit in ((1, "hours"), (60, "minutes")):
        if abs(gpu_hours) * scale >= 1:
            return f"{hours(gpu_hours * scale)} GPU-{unit}"
    return f"{hours(gpu_hours * 3600)} GPU-seconds" if gpu_hours else "0 GPU-hours"


def name_list(what: str, names: Sequence[str]) -> str:
    """Name one or several things: ``worker (1, 2)``, ``workers (1, 2), (3, 0) and 4 more``."""
    listed = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    label = f"{what} {listed}" if len(names) == 1 else f"{what}s {listed}"
    return f"{label} and {more} more" if more > 0 else label
