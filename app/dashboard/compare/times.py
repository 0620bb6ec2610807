"""What the page shows of two times of a job: whether it is faster, and what is slow less often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from app.analysis.diagnosis.causes.registry import title_of
from app.dashboard.compare.histogram import Histogram, histogram
from app.dashboard.compare.words import chance, change_s
from app.dashboard.ui.format import count, listing, percent, plural, seconds, times
from app.dashboard.ui.moments import span
from app.dashboard.ui.parts import Fact
from app.dashboard.ui.ranges import moment_in

if TYPE_CHECKING:
    from app.services.compare.ranges import CauseCount, TimesComparison, TimeSide

# What is compared where an address does not say: this long before and after.
USUAL: Final = timedelta(days=7)

Bounds = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class TimeView:
    """One of the two times; `begin` and `end` are as fields of the form have them."""

    words: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class CountLine:
    """A cause, and in how many sessions it is named."""

    cause: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class TimesPage:
    """The page of two times of a job."""

    now: datetime
    title: str
    heading: str
    job: str
    why: str
    facts: Sequence[Fact]
    a: TimeView
    b: TimeView
    swap_url: str
    csv: str
    histogram: Histogram | None
    causes: Sequence[CountLine]
    causes_title: str


def bounds_of(texts: Sequence[str], now: datetime) -> tuple[Bounds, Bounds]:
    """Return the two times that an address asks for; a week and the week before where it does not.

    Parameters
    ----------
    texts : sequence of str
        Begin and end of the first, and of the second.
    now : datetime
    """
    a_from, a_to, b_from, b_to = (moment_in(text) for text in texts)
    last = b_to or now
    begin = b_from or last - USUAL
    end = a_to or min(begin, last)
    first = a_from or end - USUAL
    return _ordered(first, end), _ordered(begin, last)


def _ordered(begin: datetime, end: datetime) -> Bounds:
    return (begin, end) if begin <= end else (end, begin)


def times_url(job: str, a: TimeSide, b: TimeSide, path: str = "/compare/times") -> str:
    """Return the address of two times of a job, or of a file of them."""
    parameters = {
        "job": job,
        "a_from": _field(a.since),
        "a_to": _field(a.until),
        "b_from": _field(b.since),
        "b_to": _field(b.until),
    }
    return f"{path}?{urlencode(parameters)}"


def times_page(found: TimesComparison) -> TimesPage:
    """Return the page of two times of a job."""
    a, b, steps = found.a, found.b, found.step_times
    return TimesPage(
        now=found.now,
        title=f"{found.job}: two times",
        heading=_heading(found),
        job=found.job,
        why=""
        if found.same_sizes
        else f"The job had other sizes: {listing(sorted(a.layouts | b.layouts))}; steps of "
        "different sizes say little of each other",
        facts=_facts(found),
        a=_view(a),
        b=_view(b),
        swap_url=times_url(found.job, b, a),
        csv=times_url(found.job, a, b, "/compare/times/causes.csv"),
        histogram=histogram(a.step_times, b.step_times, None) if steps else None,
        causes=[_cause(one, a, b) for one in found.causes],
        causes_title=_causes_title(found),
    )


def _heading(found: TimesComparison) -> str:
    a, b, steps = found.a, found.b, found.step_times
    if steps is None:
        return f"{_counted(a)} before and {_counted(b)} after: there is nothing to compare"
    if not steps.real:
        return f"No difference can be shown between {_counted(a)} before and {_counted(b)} after"
    word = "faster" if steps.change < 0 else "slower"
    return (
        f"Steps are {percent(abs(steps.change))} {word} in {_counted(b)} than in "
        f"{_counted(a)} before"
    )


def _counted(side: TimeSide) -> str:
    return plural(len(side.sessions), "session")


def _facts(found: TimesComparison) -> list[Fact]:
    a, b, steps = found.a, found.b, found.step_times
    if steps is None:
        return []
    low, high = steps.ci95_s or (None, None)
    return [
        Fact("Step time", seconds(steps.after_s), f"was {seconds(steps.before_s)}"),
        Fact(
            "Slowdown",
            "none" if b.slowdown is None else times(b.slowdown, 3),
            "" if a.slowdown is None else f"was {times(a.slowdown, 3)}",
            "Median of the sessions, against the job without its causes, else S",
        ),
        Fact(
            "Difference",
            change_s(steps.change_s),
            "too few sessions for an interval"
            if low is None or high is None
            else f"95\N{NO-BREAK SPACE}%: {change_s(low)} to {change_s(high)}",
        ),
        Fact("Chance or change?", *chance(steps, "session", found.within)),
    ]


def _view(side: TimeSide) -> TimeView:
    return TimeView(
        words=span(side.since, side.until) + f", {_counted(side)}",
        begin=_field(side.since),
        end=_field(side.until),
    )


def _field(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="minutes")


def _cause(one: CauseCount, a: TimeSide, b: TimeSide) -> CountLine:
    return CountLine(
        title_of(one.cause),
        f"{count(one.before)} of {count(len(a.sessions))}",
        f"{count(one.after)} of {count(len(b.sessions))}",
    )


def _causes_title(found: TimesComparison) -> str:
    gone = [title_of(one.cause) for one in found.causes if one.before and not one.after]
    came = [title_of(one.cause) for one in found.causes if one.after and not one.before]
    if not found.causes:
        return "No session of either time has a cause"
    if not gone and not came:
        return "No cause disappeared or appeared"
    went = f"{listing(gone)} disappeared" if gone else "No cause disappeared"
    return f"{went}, {listing(came).lower() + ' appeared' if came else 'none appeared'}"
