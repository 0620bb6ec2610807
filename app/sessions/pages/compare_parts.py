"""What the page shows of two times of a job: whether it is faster, and what is slow less often."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np

from app.analysis.arrivals.document import THRESHOLDS
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.report.charts import encode_heatmap
from app.sessions.compare import CauseCount, Comparison, TimesComparison, TimeSide
from app.sessions.compare_steps import SIGNIFICANT, Difference
from app.web.format import (
    EN_DASH,
    MINUS,
    NBSP,
    count,
    heat_color,
    listing,
    percent,
    plural,
    seconds,
    times,
    worker,
)
from app.web.links import host_url
from app.web.moments import span
from app.web.parts import Fact
from app.web.time_ranges import moment_in

# ---- Words that pages of comparisons share -----------------------------------------------------


# p below this is said as such.
SMALL: Final = 0.001


def change_s(value: float) -> str:
    """Return a change of a time: ``−3.91 s``, ``+120 ms``."""
    if value == 0.0:
        return f"0{NBSP}s"
    text = seconds(abs(value))
    return f"{MINUS}{text}" if value < 0 else f"+{text}"


def chance(
    steps: Difference, of: str = "step", within: Difference | None = None
) -> tuple[str, str, str]:
    """Return whether a difference may be a chance finding, what says so, and what that means.

    Parameters
    ----------
    within : Difference or None
        Of the steps within sessions, which answer where these are too few.
    """
    first, second = steps.steps
    note = f"Mann{EN_DASH}Whitney, {count(first)} + {count(second)} {of}s"
    hint = f"Probability of such a difference of ranks by chance; {of}s are assumed independent"
    if within is not None and within.tells and not steps.tells:
        said, counted, hint = chance(within)
        too_few = f"{count(first)} and {count(second)} {of}s are too few; by the steps within them"
        return said, f"{too_few}: {counted}", f"{hint}, and {of}s alike but for what changed"
    if steps.p is None:
        return "Cannot say", f"{count(first)} and {count(second)} {of}s are too few", hint
    if not steps.tells:
        least = f"of that many {of}s the test gives no less than p = {steps.least_p:.3f}"
        return "Cannot say", f"{note}: {least}", hint
    said = "p < 0.001" if steps.p < SMALL else f"p = {steps.p:.3f}"
    answer = "Chance" if steps.p >= SIGNIFICANT else "Change" if steps.real else "Unclear"
    return f"{answer}, {said}", note, hint


# ---- What the page of a comparison says of arrivals --------------------------------------------


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
            _arrival_time(one.waited_for_before_s),
            _arrival_time(one.waited_for_after_s),
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
    was, now = _arrival_time(first.waited_for_before_s), _arrival_time(first.waited_for_after_s)
    return f"Others wait {now} a step for rank {first.rank}, before it was {was}"


def _share(value: float | None) -> str:
    return "none" if value is None else percent(value, 0)


def _arrival_time(value: float | None) -> str:
    return "none" if value is None else seconds(value)


# ---- The step times of two sessions on one axis ------------------------------------------------


WIDTH: Final = 420
HEIGHT: Final = 132
LEFT: Final = 8
TOP: Final = 40
BASE: Final = HEIGHT - 20
BINS: Final = 48
TICKS: Final = 4
# Of the range that is added on either side, so that no bar stands at an edge.
_MARGIN: Final = 0.06


@dataclass(frozen=True, slots=True)
class Bar:
    """Steps of one session that took about as long."""

    x: float
    y: float
    width: float
    height: float
    after: bool
    hint: str


@dataclass(frozen=True, slots=True)
class Label:
    """A word at a place of the axis."""

    x: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Histogram:
    """The figure; `predicted` is where the mean was predicted to be."""

    bars: Sequence[Bar]
    ticks: Sequence[Label]
    before: Label
    after: Label
    predicted: Label | None


def histogram(
    before: Sequence[float], after: Sequence[float], predicted_s: float | None
) -> Histogram:
    """Return the step times of two sessions, counted in bins of equal width.

    Parameters
    ----------
    before, after : sequence of float
        Seconds.
    predicted_s : float or None
        Step time that a fix was predicted to bring.
    """
    shown = [*before, *after, *([] if predicted_s is None else [predicted_s])]
    low, high = min(shown), max(shown)
    room = (high - low) * _MARGIN or high * _MARGIN
    low, high = low - room, high + room
    scale = (WIDTH - 2 * LEFT) / (high - low)

    def place(value: float) -> float:
        return round(LEFT + (value - low) * scale, 1)

    counts = [_counts(side, low, high) for side in (before, after)]
    most = max(max(side) for side in counts)
    width = (WIDTH - 2 * LEFT) / BINS
    bars = [
        Bar(
            x=round(LEFT + at * width, 1),
            y=round(BASE - number / most * (BASE - TOP), 1),
            width=round(width - 1, 1),
            height=round(number / most * (BASE - TOP), 1),
            after=bool(side),
            hint=f"{number} of {sum(counts[side])} steps at {_time(low, high, at)}",
        )
        for side in (0, 1)
        for at, number in enumerate(counts[side])
        if number
    ]
    means = [math.fsum(side) / len(side) for side in (before, after)]
    return Histogram(
        bars=bars,
        ticks=[Label(place(value), seconds(value), anchor) for value, anchor in _ticks(low, high)],
        before=_label(place(means[0]), f"before {seconds(means[0])}"),
        after=_label(place(means[1]), f"after {seconds(means[1])}"),
        predicted=None
        if predicted_s is None
        else _label(place(predicted_s), f"predicted {seconds(predicted_s)}"),
    )


def _counts(values: Sequence[float], low: float, high: float) -> list[int]:
    found = [0] * BINS
    for value in values:
        found[min(int((value - low) / (high - low) * BINS), BINS - 1)] += 1
    return found


def _time(low: float, high: float, at: int) -> str:
    return seconds(low + (high - low) * (at + 0.5) / BINS)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    anchors = ["start", *["middle"] * (TICKS - 1), "end"]
    return [(low + (high - low) * at / TICKS, anchor) for at, anchor in enumerate(anchors)]


def _label(x: float, text: str) -> Label:
    """Return a label that stays within the figure."""
    third = WIDTH / 3
    anchor = "start" if x < third else "end" if x > 2 * third else "middle"
    return Label(x, text, anchor)


# ---- What the page of a comparison shows of workers: both heatmaps, and whose slowdown changed ---


# Workers that are listed.
WORKERS: Final = 8
# A worker that changed by less is not worth naming.
WORTH: Final = 0.02
_MANY: Final = 3


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker whose slowdown changed."""

    name: str
    hosts: Sequence[tuple[str, str]]
    before: str
    before_color: str
    after: str
    after_color: str
    change: str


def slowdowns(found: Comparison) -> dict[str, Any]:
    """Return the slowdowns of both as what the script draws."""
    return {"dp": found.a.row.dp, "pp": found.a.row.pp} | {
        name: base64.b64encode(
            encode_heatmap(np.asarray(side.report.by_worker.exact, np.float32))
        ).decode()
        for name, side in (("a", found.a), ("b", found.b))
        if side.report is not None
    }


def moved_workers(found: Comparison) -> list[tuple[int, int]]:
    """Return workers by how much their slowdown changed."""
    a, b = found.a.report, found.b.report
    if a is None or b is None or not found.same_shape:
        return []
    before, after = np.asarray(a.by_worker.exact), np.asarray(b.by_worker.exact)
    order = np.argsort(-np.abs(after - before), axis=None, kind="stable")
    changed = [divmod(int(at), before.shape[1]) for at in order[: WORKERS * _MANY]]
    return [cell for cell in changed if abs(after[cell] - before[cell]) >= WORTH]


def map_title(found: Comparison, moved: Sequence[tuple[int, int]]) -> str:
    """Return the title of the heatmap of differences."""
    if not found.same_shape:
        return "The sessions have other workers: no difference can be drawn"
    if not moved:
        return f"Difference: no worker changed by {WORTH:.2f} or more"
    return f"Difference: {_changed(moved)}"


def _changed(moved: Sequence[tuple[int, int]]) -> str:
    if len(moved) == 1:
        return "one worker changed"
    more = "at least " if len(moved) == WORKERS * _MANY else ""
    return f"{more}{len(moved)} workers changed"


def workers_title(moved: Sequence[tuple[int, int]]) -> str:
    """Return the title of the table of workers."""
    if not moved:
        return f"No worker changed by {WORTH:.2f}"
    return f"Worker {worker(*moved[0])} changed most"


def worker_line(found: Comparison, dp: int, pp: int) -> WorkerLine:
    """Return the line of a worker in both sessions; both have a report."""
    a, b = found.a.report, found.b.report
    assert a is not None  # noqa: S101 - there are none otherwise
    assert b is not None  # noqa: S101 - as above
    before, after = a.by_worker.exact[dp][pp], b.by_worker.exact[dp][pp]
    hosts = [host for host in (a.host_of((dp, pp)), b.host_of((dp, pp))) if host]
    change = after - before
    return WorkerLine(
        name=worker(dp, pp),
        hosts=[(host, host_url(host)) for host in dict.fromkeys(hosts)],
        before=times(before, 3),
        before_color=heat_color(before),
        after=times(after, 3),
        after_color=heat_color(after),
        change=f"{MINUS if change < 0 else '+'}{abs(change):.3f}",
    )


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
