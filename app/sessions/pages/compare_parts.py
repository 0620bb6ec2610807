"""Parts of the pages of comparisons, and the page of two time ranges of a job."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from app.analysis.arrivals.document import THRESHOLDS
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.report.charts import encode_heatmap
from app.analysis.report.document import Report
from app.sessions.compare import (
    ArrivalChange,
    CauseCount,
    Comparison,
    TimesComparison,
    TimeSide,
)
from app.sessions.compare_steps import SIGNIFICANT, Difference
from app.web import html
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
from app.web.tables import Drawn, Shown, drawn
from app.web.time_ranges import moment_in

# Smaller p values are shown as p < 0.001.
SMALL: Final = 0.001


def change_s(value: float) -> str:
    """Return the change of a time in words: ``−3.91 s``, ``+120 ms``."""
    if value == 0.0:
        return f"0{NBSP}s"
    text = seconds(abs(value))
    return f"{MINUS}{text}" if value < 0 else f"+{text}"


def step_time_fact(steps: Difference) -> Fact:
    """Return the step time after the change and before it."""
    return Fact("Step time", seconds(steps.after_s), f"was {seconds(steps.before_s)}")


def difference_fact(steps: Difference, of: str, hint: str = "") -> Fact:
    """Return a difference with its interval; `of` names the compared items, in the singular."""
    if steps.ci95_s is None:
        note = f"too few {of}s for an interval"
    else:
        low, high = steps.ci95_s
        note = f"95{NBSP}%: {change_s(low)} to {change_s(high)}"
    return Fact("Difference", change_s(steps.change_s), note, hint)


def chance(
    steps: Difference, of: str = "step", within: Difference | None = None
) -> tuple[str, str, str]:
    """Return whether a difference may be due to chance, the basis of this answer, and a hint.

    Parameters
    ----------
    steps : Difference
        The difference to judge.
    of : str
        Name of the compared items, in the singular.
    within : Difference or None
        Difference of the steps within sessions, used if the sessions are too few.
    """
    first, second = steps.steps
    note = f"Mann{EN_DASH}Whitney, {count(first)} + {count(second)} {of}s"
    hint = f"Probability of such a difference of ranks by chance; {of}s are assumed independent"
    if within is not None and within.tells and not steps.tells:
        answer_p, counted, hint = chance(within)
        too_few = f"{count(first)} and {count(second)} {of}s are too few; by the steps within them"
        return answer_p, f"{too_few}: {counted}", f"{hint}, and {of}s alike but for what changed"
    if steps.p is None:
        return "Cannot say", f"{count(first)} and {count(second)} {of}s are too few", hint
    if not steps.tells:
        least = f"of that many {of}s the test gives no less than p = {steps.least_p:.3f}"
        return "Cannot say", f"{note}: {least}", hint
    answer_p = "p < 0.001" if steps.p < SMALL else f"p = {steps.p:.3f}"
    answer = "Chance" if steps.p >= SIGNIFICANT else "Change" if steps.real else "Unclear"
    return f"{answer}, {answer_p}", note, hint


def changed_causes(gone: list[str], came: list[str]) -> str:
    """Return the title of the table of causes: which causes disappeared or appeared."""
    if not gone and not came:
        return "No cause disappeared or appeared"
    went = f"{listing(gone)} disappeared" if gone else "No cause disappeared"
    return f"{went}, {listing(came).lower() + ' appeared' if came else 'none appeared'}"


# Limit of the listed ranks; the CSV file has all of them.
RANKS: Final = 6


def arrivals_title(comparison: Comparison) -> str:
    """Return the title of the table of waiting times: the rank with the largest change."""
    before, after = comparison.a.arrivals, comparison.b.arrivals
    if before is None or after is None or not comparison.arrivals:
        return ""
    first = comparison.arrivals[0]
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


# Columns of the table of the ranks that others wait for.
ARRIVALS: Final[tuple[Shown[ArrivalChange], ...]] = (
    Shown("Rank", lambda row: row.rank),
    Shown(
        "Last at",
        lambda row: f"{_share(row.last_share_before)} → {_share(row.last_share_after)}",
        classes="num",
    ),
    Shown("Before", lambda row: _arrival_time(row.waited_for_before_s), classes="num"),
    Shown("After", lambda row: _arrival_time(row.waited_for_after_s), classes="num"),
    Shown("Change", lambda row: change_s(row.change_s), classes="num"),
)


WIDTH: Final = 420
HEIGHT: Final = 132
LEFT: Final = 8
TOP: Final = 40
BASE: Final = HEIGHT - 20
BINS: Final = 48
TICKS: Final = 4
# Margin of the time axis on either side, as a share of the range of step times.
_MARGIN: Final = 0.06


@dataclass(frozen=True, slots=True)
class Bar:
    """Number of one session's steps whose time is within a bin."""

    x: float
    y: float
    width: float
    height: float
    after: bool
    hint: str


@dataclass(frozen=True, slots=True)
class Label:
    """A label on the time axis of the histogram."""

    x: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Histogram:
    """The step times of two sessions; `predicted` marks the mean that a fix predicted."""

    bars: Sequence[Bar]
    ticks: Sequence[Label]
    before: Label
    after: Label
    predicted: Label | None


def histogram(
    before: Sequence[float], after: Sequence[float], predicted_s: float | None
) -> Histogram:
    """Return the histogram of the step times of two sessions, in bins of equal width.

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

    counts = [[0] * BINS, [0] * BINS]
    for side, values in zip(counts, (before, after), strict=True):
        for value in values:
            side[min(int((value - low) / (high - low) * BINS), BINS - 1)] += 1
    most = max(max(side) for side in counts)
    width = (WIDTH - 2 * LEFT) / BINS
    bars = [
        Bar(
            x=round(LEFT + at * width, 1),
            y=round(BASE - number / most * (BASE - TOP), 1),
            width=round(width - 1, 1),
            height=round(number / most * (BASE - TOP), 1),
            after=bool(side),
            hint=f"{number} of {sum(counts[side])} steps at "
            f"{seconds(low + (high - low) * (at + 0.5) / BINS)}",
        )
        for side in (0, 1)
        for at, number in enumerate(counts[side])
        if number
    ]
    means = [math.fsum(side) / len(side) for side in (before, after)]
    ticks = [low + (high - low) * at / TICKS for at in range(TICKS + 1)]
    anchors = ["start", *["middle"] * (TICKS - 1), "end"]
    return Histogram(
        bars=bars,
        ticks=[
            Label(place(value), seconds(value), anchor)
            for value, anchor in zip(ticks, anchors, strict=True)
        ],
        before=_label(place(means[0]), f"before {seconds(means[0])}"),
        after=_label(place(means[1]), f"after {seconds(means[1])}"),
        predicted=None
        if predicted_s is None
        else _label(place(predicted_s), f"predicted {seconds(predicted_s)}"),
    )


def _label(x: float, text: str) -> Label:
    """Return an axis label at a position that keeps it within the figure."""
    third = WIDTH / 3
    anchor = "start" if x < third else "end" if x > 2 * third else "middle"
    return Label(x, text, anchor)


# Limit of the listed workers.
MOST_WORKERS: Final = 8
# Workers with a smaller change of their slowdown are left out.
WORTH: Final = 0.02
_MANY: Final = 3


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A worker's host and slowdown S_w in the two sessions."""

    dp: int
    pp: int
    host_before: str | None
    host_after: str | None
    slowdown_before: float
    slowdown_after: float

    @property
    def change(self) -> float:
        """Return the change of the slowdown."""
        return self.slowdown_after - self.slowdown_before


def slowdowns(comparison: Comparison) -> dict[str, Any]:
    """Return both sessions' slowdowns by worker for the page's script, encoded as heatmaps."""
    return {"dp": comparison.a.row.dp, "pp": comparison.a.row.pp} | {
        name: base64.b64encode(
            encode_heatmap(np.asarray(side.report.by_worker.exact, np.float32))
        ).decode()
        for name, side in (("a", comparison.a), ("b", comparison.b))
        if side.report is not None
    }


def all_workers(comparison: Comparison) -> Iterator[WorkerChange]:
    """Yield all workers; none without two verdicts of the same DP and PP sizes."""
    a, b = comparison.a.report, comparison.b.report
    if a is not None and b is not None and comparison.same_shape:
        for cell in itertools.product(range(comparison.a.row.dp), range(comparison.a.row.pp)):
            yield _worker_change(a, b, *cell)


def _worker_change(a: Report, b: Report, dp: int, pp: int) -> WorkerChange:
    hosts = a.host_of((dp, pp)), b.host_of((dp, pp))
    return WorkerChange(dp, pp, *hosts, a.by_worker.exact[dp][pp], b.by_worker.exact[dp][pp])


def moved_workers(comparison: Comparison) -> list[WorkerChange]:
    """Return the workers with a changed slowdown, largest change first."""
    a, b = comparison.a.report, comparison.b.report
    if a is None or b is None or not comparison.same_shape:
        return []
    before, after = np.asarray(a.by_worker.exact), np.asarray(b.by_worker.exact)
    order = np.argsort(-np.abs(after - before), axis=None, kind="stable")
    largest = [divmod(int(at), before.shape[1]) for at in order[: MOST_WORKERS * _MANY]]
    changes = [_worker_change(a, b, *cell) for cell in largest]
    return [change for change in changes if abs(change.change) >= WORTH]


def map_title(comparison: Comparison, moved: Sequence[WorkerChange]) -> str:
    """Return the title of the heatmap of differences."""
    if not comparison.same_shape:
        return "The sessions have other workers: no difference can be drawn"
    if not moved:
        return f"Difference: no worker changed by {WORTH:.2f} or more"
    if len(moved) == 1:
        return "Difference: one worker changed"
    more = "at least " if len(moved) == MOST_WORKERS * _MANY else ""
    return f"Difference: {more}{len(moved)} workers changed"


def workers_title(moved: Sequence[WorkerChange]) -> str:
    """Return the title of the table of workers."""
    if not moved:
        return f"No worker changed by {WORTH:.2f}"
    return f"Worker {worker(moved[0].dp, moved[0].pp)} changed most"


def _hosts(row: WorkerChange) -> Markup:
    hosts = dict.fromkeys(host for host in (row.host_before, row.host_after) if host)
    return Markup(" → ").join(html.link(host_url(host), host) for host in hosts)


def _slowdown(value: float) -> Markup:
    return html.swatch(heat_color(value)) + times(value, 3)


# Columns of the table of the workers that changed.
WORKERS: Final[tuple[Shown[WorkerChange], ...]] = (
    Shown("Worker", lambda row: worker(row.dp, row.pp)),
    Shown("Host", _hosts, of_cells="grow"),
    Shown("Before", lambda row: _slowdown(row.slowdown_before), classes="num"),
    Shown("After", lambda row: _slowdown(row.slowdown_after), classes="num"),
    Shown(
        "Change",
        lambda row: f"{MINUS if row.change < 0 else '+'}{abs(row.change):.3f}",
        classes="num",
    ),
)


# Default length of each of the two time ranges.
USUAL: Final = timedelta(days=7)

Bounds = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class TimeView:
    """One of the two time ranges; `begin` and `end` are values of form fields."""

    words: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class TimesPage:
    """The contents of the page that compares two time ranges of a job."""

    now: datetime
    title: str
    heading: str
    job: str
    why: str
    facts: Sequence[Fact]
    a: TimeView
    b: TimeView
    swap_url: str
    histogram: Histogram | None
    causes: Drawn
    causes_title: str


def bounds_of(texts: Sequence[str], now: datetime) -> tuple[Bounds, Bounds]:
    """Return the two time ranges of a query; default: the last week and the week before.

    Parameters
    ----------
    texts : sequence of str
        Begin and end of the first range, and of the second.
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
    """Return the URL of a comparison of two time ranges, or of its CSV file."""
    parameters = {
        "job": job,
        "a_from": _field(a.since),
        "a_to": _field(a.until),
        "b_from": _field(b.since),
        "b_to": _field(b.until),
    }
    return f"{path}?{urlencode(parameters)}"


def times_page(comparison: TimesComparison) -> TimesPage:
    """Return the page that compares two time ranges of a job."""
    a, b, steps = comparison.a, comparison.b, comparison.step_times
    columns: tuple[Shown[CauseCount], ...] = (
        Shown("Cause", lambda cause: title_of(cause.cause)),
        Shown("Before", lambda cause: _of_all(cause.before, a), classes="num"),
        Shown("After", lambda cause: _of_all(cause.after, b), classes="num"),
    )
    return TimesPage(
        now=comparison.now,
        title=f"{comparison.job}: two times",
        heading=_heading(comparison),
        job=comparison.job,
        why=""
        if comparison.same_sizes
        else f"The job had other sizes: {listing(sorted(a.layouts | b.layouts))}; steps of "
        "different sizes say little of each other",
        facts=_facts(comparison),
        a=_view(a),
        b=_view(b),
        swap_url=times_url(comparison.job, b, a),
        histogram=histogram(a.step_times, b.step_times, None) if steps else None,
        causes=drawn(
            columns,
            comparison.causes,
            csv=times_url(comparison.job, a, b, "/compare/times/causes.csv"),
            classes="plain changes",
        ),
        causes_title=_causes_title(comparison),
    )


def _heading(comparison: TimesComparison) -> str:
    a, b, steps = comparison.a, comparison.b, comparison.step_times
    if steps is None:
        return f"{_counted(a)} before and {_counted(b)} after: there is nothing to compare"
    if not steps.real:
        return f"No difference can be shown between {_counted(a)} before and {_counted(b)} after"
    word = "faster" if steps.change < 0 else "slower"
    return (
        f"Steps are {percent(abs(steps.change))} {word} in {_counted(b)} than in "
        f"{_counted(a)} before"
    )


def _of_all(sessions: int, side: TimeSide) -> str:
    return f"{count(sessions)} of {count(len(side.sessions))}"


def _counted(side: TimeSide) -> str:
    return plural(len(side.sessions), "session")


def _facts(comparison: TimesComparison) -> list[Fact]:
    a, b, steps = comparison.a, comparison.b, comparison.step_times
    if steps is None:
        return []
    return [
        step_time_fact(steps),
        Fact(
            "Slowdown",
            "none" if b.slowdown is None else times(b.slowdown, 3),
            "" if a.slowdown is None else f"was {times(a.slowdown, 3)}",
            "Median of the sessions, against the job without its causes, else S",
        ),
        difference_fact(steps, "session"),
        Fact("Chance or change?", *chance(steps, "session", comparison.within)),
    ]


def _view(side: TimeSide) -> TimeView:
    return TimeView(
        words=span(side.since, side.until) + f", {_counted(side)}",
        begin=_field(side.since),
        end=_field(side.until),
    )


def _field(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="minutes")


def _causes_title(comparison: TimesComparison) -> str:
    gone = [
        title_of(cause.cause) for cause in comparison.causes if cause.before and not cause.after
    ]
    came = [
        title_of(cause.cause) for cause in comparison.causes if cause.after and not cause.before
    ]
    if not comparison.causes:
        return "No session of either time has a cause"
    return changed_causes(gone, came)
