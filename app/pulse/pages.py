"""The live part of a job's page: step times, slow ranks, notices, session requests; CSV files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from fastapi import APIRouter
from fastapi.responses import Response
from markupsafe import Markup

from app.access.guard import RequestContainer
from app.analysis.pulse.notices import NoticeKind, describe_ranks
from app.analysis.wording import gpu_time, hours
from app.errors import NotFoundError
from app.incidents.models.facts import STANDING_STILL, TITLES, Outcome
from app.incidents.pages.parts import Actions
from app.pulse.live import MINUTES, LiveJob, NoticeRow, live_job
from app.pulse.spans import SlowRank, SpanRow
from app.web import html, moments
from app.web.format import NBSP, count, heat_color, percent, plural, seconds, times
from app.web.links import host_url, job_url
from app.web.pages import Pages
from app.web.parts import Fact, StateLabel
from app.web.tables import Drawn, Shown, Table, csv_file, drawn, one_of

# Size of the chart of step times in units of its SVG view box, which CSS stretches.
WIDTH: Final = MINUTES
HEIGHT: Final = 100
_MINUTE_S: Final = 60
# The y axis of the chart ends at this multiple of the median step time, because a single checkpoint
# would otherwise flatten all other steps.
_TOP: Final = 1.5
_ROOM: Final = 0.08
# Relative changes of the step time below this are not mentioned in the title of the chart.
_CHANGED: Final = 0.02
# Number of last minutes whose step time is compared with that of the earlier minutes.
_NOW: Final = 3


@dataclass(frozen=True, slots=True)
class StepLines:
    """Chart of step times: median, 95th percentile and longest of each minute, as SVG paths."""

    title: str
    low: str
    high: str
    # name and SVG path of each line, from top to bottom
    lines: tuple[tuple[str, str], ...]
    # x coordinates of the times at which notices were made
    marks: tuple[float, ...]


def step_lines(live: LiveJob) -> StepLines:
    """Return the chart of a job's step times over the last minutes."""
    minutes = live.minutes
    if not minutes:
        return StepLines("No minute is whole yet", "", "", (), ())
    medians = np.array([minute.step_median_s for minute in minutes])
    high = min(
        max(minute.step_p95_s for minute in minutes), _TOP * float(np.quantile(medians, 0.98))
    )
    low = float(medians.min())
    room = _ROOM * (high - low) or _ROOM * high
    low, high = max(0.0, low - room), high + room
    last = int(live.now.timestamp()) // _MINUTE_S

    def across(at: float) -> float:
        return WIDTH - 1 - last + at / _MINUTE_S

    starts = [int(minute.start.timestamp()) for minute in minutes]
    at = [across(start) + 0.5 for start in starts]
    lines = (
        ("worst", [minute.step_worst_s for minute in minutes]),
        ("p95", [minute.step_p95_s for minute in minutes]),
        ("median", [minute.step_median_s for minute in minutes]),
    )
    return StepLines(
        title=_title(live),
        low=seconds(low),
        high=seconds(high),
        lines=tuple((name, _path(at, values, low, high)) for name, values in lines),
        marks=tuple(
            round(x, 1)
            for notice in live.notices
            if 0 <= (x := across(notice.noticed_at.timestamp())) <= WIDTH
        ),
    )


def _path(at: Sequence[float], values: Sequence[float], low: float, high: float) -> str:
    parts, before = [], None
    for x, value in zip(at, values, strict=True):
        y = HEIGHT * (1 - (min(max(value, low), high) - low) / (high - low))
        # A minute without steps leaves a gap. Two attempts may have a step in the same minute.
        joined = before is not None and x - before <= 1
        parts.append(f"{'L' if joined else 'M'}{x:.1f} {y:.1f}{'' if joined else 'h.1'}")
        before = x
    return "".join(parts)


def _title(live: LiveJob) -> str:
    minutes = live.minutes
    now = float(np.median([minute.step_median_s for minute in minutes[-_NOW:]]))
    if len(minutes) <= _NOW:
        return f"A step takes {seconds(now if live.step_s is None else live.step_s)}"
    before = float(np.median([minute.step_median_s for minute in minutes[:-_NOW]]))
    change = now / before - 1
    if abs(change) < _CHANGED:
        return f"A step takes {seconds(now)}, as before"
    more = "longer" if change > 0 else "shorter"
    return f"A step takes {seconds(now)}, {percent(abs(change), 0)} {more} than {seconds(before)}"


# A pulse is late after this time, because a body is sent every five seconds and read within two
# seconds.
_LATE: Final = timedelta(seconds=30)
# A rank whose ratio of computing to its peers is above this is slow; hosts in a session have the
# same limit.
_SLOW: Final = 1.05
# Age from which a minute is complete, since its last steps arrive late.
_WHOLE: Final = timedelta(seconds=75)
# Number of steps from which on the ranks are compared in an incomplete minute.
_ENOUGH: Final = 20
_HOUR: Final = 60
# A cleared notice is shown as just over for this time.
_RECENT: Final = timedelta(minutes=10)
_LIVE: Final = StateLabel("run", "Live", 4, quiet=True)
_SUSPECTED: Final = StateLabel("pending", "Suspected", -2)
_STANDS: Final = StateLabel("firing", "Stands still", -4)
_ENDED: Final = StateLabel("warn", "No pulse", 5)
_OVER: Final = StateLabel("resolved", "Over", 5)
_GOES_ON: Final = StateLabel("pending", "Goes on", 0)
# Kinds of notices about slow computing of ranks, which the map of the ranks shows.
_COMPUTE_LONG: Final = frozenset(
    {NoticeKind.SLOW_RANK, NoticeKind.SPELLS, NoticeKind.DRIFT, NoticeKind.IMBALANCE}
)
_OUTCOMES: Final = {
    Outcome.CONFIRMED: "confirmed by a session",
    Outcome.EXPLAINED: "a session names another cause",
    Outcome.CLEARED: "cleared by a session",
    Outcome.UNCONFIRMED: "no session tells",
}


@dataclass(frozen=True, slots=True)
class LiveView:
    """The live part of a job's page, which the browser fetches every few seconds."""

    now: datetime
    job: str
    url: str
    title: str
    heading: str
    state: StateLabel
    since: Markup | str
    facts: Sequence[Fact]
    asked: str
    can_record: bool
    steps: StepLines
    map_title: str
    # known host and GPU by rank
    places: dict[int, str]
    noticed: Drawn | None
    noticed_title: str
    slowest: Drawn | None
    slowest_title: str


@dataclass(frozen=True, slots=True)
class UnrecordedJob:
    """The page of a job that has no session."""

    now: datetime
    name: str
    incidents: Sequence[Actions]


def unrecorded_job(live: LiveView, incidents: Sequence[Actions]) -> UnrecordedJob:
    """Return the page of a job that has sent a pulse but no session yet."""
    return UnrecordedJob(live.now, live.job, incidents)


def live_view(live: LiveJob) -> LiveView:
    """Return the live part of the page of a job."""
    last, latest = _last_minute(live), _last_minute(live, _ENOUGH)
    slowest = [] if latest is None else latest.slowest
    state, heading = _state_and_heading(live, slowest)
    url = job_url(live.job)
    requested = ""
    if live.request is not None:
        template = (
            "Recording {} steps…: {}" if live.request.handed else "{} steps are asked for: {}"
        )
        requested = template.format(live.request.steps, live.request.reason)
    slowest_title = ""
    if latest is not None:
        number = len(latest.slowest)
        slowest_title = (
            f"The {plural(number, 'rank')} that compute longest" if number > 1 else "The only rank"
        )
    return LiveView(
        now=live.now,
        job=live.job,
        url=url,
        title=f"{live.job}: {heading[0].lower()}{heading[1:]}",
        heading=heading,
        state=state,
        since=_since(live),
        facts=_facts(live, last, slowest),
        asked=requested,
        can_record=live.sends,
        steps=step_lines(live),
        map_title=_map_title(live, slowest),
        places={
            rank.rank: _place(rank)
            for minute in live.minutes
            for rank in minute.slowest
            if rank.host
        },
        noticed=_noticed(live, f"{url}/pulse/notices.csv"),
        noticed_title=f"{plural(len(live.notices), 'notice')}, {count(len(live.open))} open"
        if live.notices
        else "",
        slowest=drawn(_SLOWEST, slowest, csv=f"{url}/pulse/slowest.csv", classes="plain slowest")
        if slowest
        else None,
        slowest_title=slowest_title,
    )


def _state_and_heading(live: LiveJob, slowest: Sequence[SlowRank]) -> tuple[StateLabel, str]:
    if live.open:
        first = _most_pressing(live.open)
        stands = first.kind in STANDING_STILL
        return (_STANDS if stands else _SUSPECTED), _capital(first.evidence.sentence)
    step = "" if live.step_s is None else f"A step takes {seconds(live.step_s)}"
    if not live.sends:
        return _ENDED, f"No pulse comes any more{f'; a{step[1:]} then' if step else ''}"
    if not step:
        return _LIVE, "The first pulse came; no step has ended yet"
    if _just_over(live) is not None:
        return _LIVE, f"{step}; no rank is slow any more"
    if slowest and slowest[0].ratio >= _SLOW:
        worst = slowest[0]
        computed = f"rank {worst.rank} computed {times(worst.ratio)} as long as its peers"
        return _LIVE, f"{step}; in the last minute {computed}"
    return _LIVE, f"{step}; no rank is slow"


def _just_over(live: LiveJob) -> NoticeRow | None:
    """Return the notice that was cleared last, if this was within `_RECENT`."""
    over = [notice for notice in live.notices if notice.cleared_at is not None]
    last = max(over, key=lambda notice: notice.cleared_at or notice.noticed_at, default=None)
    if last is None or last.cleared_at is None or last.cleared_at < live.now - _RECENT:
        return None
    return last


def _most_pressing(notices: Sequence[NoticeRow]) -> NoticeRow:
    return max(
        notices,
        key=lambda notice: (notice.kind in STANDING_STILL, notice.factor or 0.0, notice.noticed_at),
    )


def _since(live: LiveJob) -> Markup | str:
    if live.open:
        first = _most_pressing(live.open)
        return html.join(
            (
                "noticed ",
                moments.when(first.noticed_at, live.now),
                f", step {count(first.noticed_step)}; slow from step {count(first.from_step)}"
                if first.kind not in STANDING_STILL
                else f", after step {count(first.from_step)}",
            )
        )
    last = _just_over(live)
    if last is not None and last.cleared_at is not None:
        return html.join(("over ", moments.when(last.cleared_at, live.now)))
    if live.now - live.heard_at > _LATE:
        return html.join(("last pulse ", moments.when(live.heard_at, live.now)))
    return ""


def _facts(live: LiveJob, last: SpanRow | None, slowest: Sequence[SlowRank]) -> list[Fact]:
    facts = []
    if live.step_s is not None:
        hint = "Median of the latest 20 steps; p95 and worst since the last whole minute began"
        facts.append(Fact("Step time", seconds(live.step_s), _spread(live, last), hint))
    if last is not None and last.tokens_per_s:
        facts.append(Fact("Tokens a second", _with_unit(last.tokens_per_s), "of the whole job"))
    if live.minutes:
        lost = sum(minute.lost_gpu_s for minute in live.minutes) / 3_600
        rate = "" if last is None else f"{hours(last.lost_gpu_s / _HOUR)} more each hour"
        hint = "GPU-hours in which ranks waited for the one that computes longest"
        facts.append(Fact("Lost in 12 hours", gpu_time(lost), rate, hint))
    if slowest:
        rank = f"Rank {slowest[0].rank}, {times(slowest[0].ratio)}"
        facts.append(Fact("Longest computing", rank, _place(slowest[0]), "In the last minute"))
    facts.append(Fact("Ranks", count(live.ranks), f"attempt {count(live.attempt)}"))
    facts.append(Fact("Pulse", "", "since the last one", moment=live.heard_at))
    return facts


def _spread(live: LiveJob, last: SpanRow | None) -> str:
    """Return the p95 and the longest step time since the start of the last whole minute, in words.

    The median of the latest steps is of the same time, so that it lies within the spread.
    """
    if last is None:
        return ""
    among = [
        minute
        for minute in live.minutes
        if minute.attempt == live.attempt and minute.start >= last.start
    ]
    p95_s = max(minute.step_p95_s for minute in among)
    worst_s = max(minute.step_worst_s for minute in among)
    return f"p95 {seconds(p95_s)}, worst {seconds(worst_s)}"


def _with_unit(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{NBSP}{unit}"
    return f"{value:.3g}"


def _last_minute(live: LiveJob, enough: int | None = None) -> SpanRow | None:
    """Return the attempt's last complete minute, or its last minute if none is complete.

    Parameters
    ----------
    enough : int, optional
        Steps from which on an incomplete minute counts too, as it shows what was just noticed.
    """
    own = [minute for minute in live.minutes if minute.attempt == live.attempt]
    whole = [
        minute
        for minute in own
        if minute.start <= live.now - _WHOLE or (enough is not None and minute.steps >= enough)
    ]
    return (whole or own)[-1] if own else None


def _map_title(live: LiveJob, slowest: Sequence[SlowRank]) -> str:
    """Return the title of the map, which agrees with the heading of the page.

    An open notice decides: the last minute may not show the slowdown yet, or still show a past one.
    """
    blamed = [notice for notice in live.open if notice.kind in _COMPUTE_LONG and notice.ranks]
    if blamed:
        worst = _most_pressing(blamed)
        computes = "computes" if len(worst.ranks) == 1 else "compute"
        return f"{_who(worst)} {computes} {_compared(live, worst)}"
    over = _just_over(live)
    if not live.open and over is not None and over.kind in _COMPUTE_LONG and over.ranks:
        return f"{_who(over)} computed {_compared(live, over)} until a moment ago"
    if any(notice.kind in STANDING_STILL for notice in live.open):
        return "Computing of the ranks until no step ended any more"
    slow = [rank for rank in slowest if rank.ratio >= _SLOW]
    if not slow:
        return "All ranks compute as long as their peers"
    first = slow[0]
    where = f" ({_place(first)})" if first.host else ""
    return f"Rank {first.rank}{where} computes {times(first.ratio)} as long as its peers"


def _who(notice: NoticeRow) -> str:
    return _capital(describe_ranks(tuple(notice.ranks), tuple(notice.hosts)))


def _compared(live: LiveJob, notice: NoticeRow) -> str:
    """Return in words what a notice's ranks are compared with: "longer than its peers"."""
    its = "its" if len(notice.ranks) == 1 else "their"
    at_times = " at times" if notice.kind is NoticeKind.SPELLS else ""
    return f"longer than {f'{its} peers' if live.ranks > 1 else 'before'}{at_times}"


def _place(rank: SlowRank) -> str:
    return f"{rank.host}, GPU{NBSP}{rank.gpu}" if rank.host else ""


_SLOWEST: Final[tuple[Shown[SlowRank], ...]] = (
    Shown("Rank", lambda rank: count(rank.rank), classes="num"),
    Shown(
        "Host",
        lambda rank: html.link(host_url(rank.host), rank.host) if rank.host else html.NOTHING,
        of_cells="grow",
    ),
    Shown("GPU", lambda rank: rank.gpu if rank.host else "", classes="num"),
    Shown(
        "Computing",
        lambda rank: html.swatch(heat_color(rank.ratio)) + times(rank.ratio),
        classes="num",
        hint="Against the median of the ranks of its stage, without waiting",
    ),
)


def _noticed(live: LiveJob, csv: str) -> Drawn | None:
    if not live.notices:
        return None
    now = live.now
    shown: tuple[Shown[NoticeRow], ...] = (
        Shown("Noticed", lambda notice: moments.when(notice.noticed_at, now), of_cells="nowrap"),
        Shown("State", lambda notice: html.state(_GOES_ON if notice.cleared_at is None else _OVER)),
        Shown("Notice", lambda notice: TITLES[notice.kind], classes="opt", of_cells="nowrap"),
        Shown("What", lambda notice: _capital(notice.evidence.full_sentence), of_cells="grow"),
        Shown("Session", _outcome, of_cells="ends"),
        Shown("Lost", lambda notice: gpu_time(notice.gpu_hours), classes="num opt"),
    )
    return drawn(shown, live.notices, csv=csv, classes="plain notices")


def _outcome(notice: NoticeRow) -> object:
    if notice.outcome is None:
        return "" if notice.cleared_at is not None else "none yet"
    words = _OUTCOMES[notice.outcome]
    return words if notice.session is None else html.link(f"/sessions/{notice.session}", words)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def minutes_csv(live: LiveJob) -> Table:
    """Return the table of a job's step times, one row for each minute."""
    names = ("attempt", "start", "ranks", "steps", "step_median_s", "step_p95_s", "step_worst_s")
    more = ("compute_median_s", "compute_p95_s", "tokens_per_s", "lost_gpu_s")
    return Table.of(SpanRow, live.minutes, *names, *more)


def slowest_csv(live: LiveJob) -> Table:
    """Return the table of the slowest ranks in each minute, the slowest first."""
    header = ("attempt", "start", "rank", "host", "gpu", "ratio")
    return Table(
        header,
        (
            (minute.attempt, minute.start, rank.rank, rank.host, rank.gpu, rank.ratio)
            for minute in live.minutes
            for rank in minute.slowest
        ),
    )


def notices_csv(live: LiveJob) -> Table:
    """Return the table of a job's notices, the latest first."""
    header = (
        "attempt", "number", "kind", "ranks", "hosts", "factor", "from_step", "noticed_step",
        "noticed_at", "cleared_step", "cleared_at", "outcome", "session", "cause", "gpu_hours",
        "sentence",
    )  # fmt: skip
    return Table(
        header,
        (
            [*(getattr(notice, name) for name in header[:-1]), notice.evidence.full_sentence]
            for notice in live.notices
        ),
    )


FILES: Final[Mapping[str, Callable[[LiveJob], Table]]] = {
    "minutes": minutes_csv,
    "slowest": slowest_csv,
    "notices": notices_csv,
}


def add_pulse_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the live part of a job's page, and its CSV files, to the dashboard."""

    @routes.get("/jobs/{job}/live")
    def live_route(container: RequestContainer, job: str) -> Response:
        with pages.reading(container) as (tx, nav):
            live = live_job(tx, job)
        if live is None:
            return pages.not_found(f"pulse of {job}", nav)
        return pages.render("pulse/parts.html", nav, live=live_view(live))

    @routes.get("/jobs/{job}/pulse/{name}.csv")
    def file_route(container: RequestContainer, job: str, name: str) -> Response:
        make = one_of(FILES, name)
        with container.reading() as tx:
            live = live_job(tx, job)
        if live is None:
            raise NotFoundError(f"There is no pulse of {job}.")
        return csv_file(f"paceline-pulse-{name}.csv", make(live))
