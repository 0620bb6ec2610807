"""Step times over the last minutes as lines: of the median, the 95th percentile and the longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from app.dashboard.ui.format import percent, seconds
from app.services.pulse.live import MINUTES

if TYPE_CHECKING:
    from app.services.pulse.live import LiveJob

# The box that is drawn in, which is stretched.
WIDTH: Final = MINUTES
HEIGHT: Final = 100
_MINUTE_S: Final = 60
# What is longer is cut off above: a checkpoint would make all else flat.
_TOP: Final = 1.5
_ROOM: Final = 0.08
# A change of the step time that is said.
_CHANGED: Final = 0.02
# Minutes that are compared with those before them.
_NOW: Final = 3


@dataclass(frozen=True, slots=True)
class StepLines:
    """The lines, as SVG paths, and what they say."""

    title: str
    low: str
    high: str
    # name and path, from the top down
    lines: tuple[tuple[str, str], ...]
    # of minutes in which notices began and sessions were asked for
    marks: tuple[float, ...]


def step_lines(live: LiveJob) -> StepLines:
    """Return the step times of a job."""
    minutes = live.minutes
    if not minutes:
        return StepLines("No minute is whole yet", "", "", (), ())
    medians = np.array([one.step_median_s for one in minutes])
    high = min(max(one.step_p95_s for one in minutes), _TOP * float(np.quantile(medians, 0.98)))
    low = float(medians.min())
    room = _ROOM * (high - low) or _ROOM * high
    low, high = max(0.0, low - room), high + room
    last = int(live.now.timestamp()) // _MINUTE_S

    def across(at: float) -> float:
        return WIDTH - 1 - last + at / _MINUTE_S

    starts = [int(one.start.timestamp()) for one in minutes]
    at = [across(start) + 0.5 for start in starts]
    lines = (
        ("worst", [one.step_worst_s for one in minutes]),
        ("p95", [one.step_p95_s for one in minutes]),
        ("median", [one.step_median_s for one in minutes]),
    )
    return StepLines(
        title=_title(live),
        low=seconds(low),
        high=seconds(high),
        lines=tuple((name, _path(at, values, low, high)) for name, values in lines),
        marks=tuple(
            round(found, 1)
            for one in live.notices
            if 0 <= (found := across(one.noticed_at.timestamp())) <= WIDTH
        ),
    )


def _path(at: Sequence[float], values: Sequence[float], low: float, high: float) -> str:
    parts, before = [], None
    for x, value in zip(at, values, strict=True):
        y = HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low))
        # A minute without a step is a gap; two attempts may share a minute.
        joined = before is not None and x - before <= 1
        parts.append(f"{'L' if joined else 'M'}{x:.1f} {y:.1f}{'' if joined else 'h.1'}")
        before = x
    return "".join(parts)


def _title(live: LiveJob) -> str:
    minutes = live.minutes
    now = float(np.median([one.step_median_s for one in minutes[-_NOW:]]))
    if len(minutes) <= _NOW:
        return f"A step takes {seconds(now if live.step_s is None else live.step_s)}"
    before = float(np.median([one.step_median_s for one in minutes[:-_NOW]]))
    change = now / before - 1
    if abs(change) < _CHANGED:
        return f"A step takes {seconds(now)}, as before"
    more = "longer" if change > 0 else "shorter"
    return f"A step takes {seconds(now)}, {percent(abs(change), 0)} {more} than {seconds(before)}"
