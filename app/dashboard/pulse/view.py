"""What pages show of a pulse: how a job runs now, who is slow, what is suspected and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from app.alerts.notices.facts import STANDING_STILL, TITLES, Outcome
from app.analysis.pulse.ledger import named
from app.analysis.pulse.notices import NoticeKind
from app.analysis.wording import gpu_time, hours
from app.dashboard.pulse.steps import StepLines, step_lines
from app.dashboard.ui import html, moments
from app.dashboard.ui.format import NBSP, count, heat_color, plural, seconds, times
from app.dashboard.ui.parts import Fact, StateLabel
from app.dashboard.ui.places import host_url, job_url
from app.dashboard.ui.tables import Drawn, Shown, drawn

if TYPE_CHECKING:
    from markupsafe import Markup

    from app.dashboard.alerts.parts import Actions
    from app.services.pulse.live import Asked, LiveJob
    from app.services.pulse.read import NoticeRow
    from app.services.pulse.spans import SlowRank, SpanRow

# A pulse comes every five seconds and is read two seconds later: after so long it is late.
_LATE: Final = timedelta(seconds=30)
# Computing from here on is said to be slow; as of a host in a session.
_SLOW: Final = 1.05
# A minute that began less long ago than this still grows.
_WHOLE: Final = timedelta(seconds=75)
# Steps of a minute under way, from which on ranks are compared in it.
_ENOUGH: Final = 20
_HOUR: Final = 60
# For so long a page says that something is over.
_RECENT: Final = timedelta(minutes=10)
_LIVE: Final = StateLabel("run", "Live", 4, quiet=True)
_SUSPECTED: Final = StateLabel("pending", "Suspected", -2)
_STANDS: Final = StateLabel("firing", "Stands still", -4)
_ENDED: Final = StateLabel("warn", "No pulse", 5)
_OVER: Final = StateLabel("resolved", "Over", 5)
_GOES_ON: Final = StateLabel("pending", "Goes on", 0)
# What is noticed of these is that ranks compute long: what the map shows.
_COMPUTE_LONG: Final = frozenset({NoticeKind.SLOW_RANK, NoticeKind.SPELLS, NoticeKind.DRIFT})
_OUTCOMES: Final = {
    Outcome.CONFIRMED: "confirmed by a session",
    Outcome.EXPLAINED: "a session names another cause",
    Outcome.CLEARED: "cleared by a session",
    Outcome.UNCONFIRMED: "no session tells",
}


@dataclass(frozen=True, slots=True)
class LiveView:
    """A job, live; what of it changes is fetched anew every few seconds."""

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
    # host and GPU of ranks by number, as far as minutes name them
    places: dict[int, str]
    noticed: Drawn | None
    noticed_title: str
    slowest: Drawn | None
    slowest_title: str


@dataclass(frozen=True, slots=True)
class UnrecordedJob:
    """The page of a job without a session."""

    now: datetime
    name: str
    incidents: Sequence[Actions]


def unrecorded_job(live: LiveView, incidents: Sequence[Actions]) -> UnrecordedJob:
    """Return the page of a job that has sent a pulse, and no session yet."""
    return UnrecordedJob(live.now, live.job, incidents)


def live_view(live: LiveJob) -> LiveView:
    """Return what pages show of a job that sends a pulse."""
    last, latest = _last_minute(live), _last_minute(live, _ENOUGH)
    slowest = [] if latest is None else latest.slowest
    state, heading = _standing(live, slowest)
    url = job_url(live.job)
    return LiveView(
        now=live.now,
        job=live.job,
        url=url,
        title=f"{live.job}: {heading[0].lower()}{heading[1:]}",
        heading=heading,
        state=state,
        since=_since(live),
        facts=_facts(live, last, slowest),
        asked=_asked(live.asked),
        can_record=live.sends,
        steps=step_lines(live),
        map_title=_map_title(live, slowest),
        places=_places(live.minutes),
        noticed=_noticed(live, f"{url}/pulse/notices.csv"),
        noticed_title=f"{plural(len(live.notices), 'notice')}, {count(len(live.open))} open"
        if live.notices
        else "",
        slowest=drawn(_SLOWEST, slowest, csv=f"{url}/pulse/slowest.csv", classes="plain slowest")
        if slowest
        else None,
        slowest_title="" if latest is None else _slowest_title(latest),
    )


def _standing(live: LiveJob, slowest: Sequence[SlowRank]) -> tuple[StateLabel, str]:
    if live.open:
        first = _most_pressing(live.open)
        stands = first.kind in STANDING_STILL
        return (_STANDS if stands else _SUSPECTED), _capital(first.evidence.sentence)
    step = "" if live.step_s is None else f"A step takes {seconds(live.step_s)}"
    if not live.sends:
        return _ENDED, f"No pulse comes any more{f'; {_small(step)} then' if step else ''}"
    if not step:
        return _LIVE, "The first pulse came; no step has ended yet"
    if _just_over(live) is not None:
        return _LIVE, f"{step}; no rank is slow any more"
    if slowest and slowest[0].ratio >= _SLOW:
        one = slowest[0]
        return _LIVE, (
            f"{step}; in the last minute rank {one.rank} computed {times(one.ratio)} as long as "
            "its peers"
        )
    return _LIVE, f"{step}; no rank is slow"


def _just_over(live: LiveJob) -> NoticeRow | None:
    """Return what ended last, where that was not long ago."""
    over = [one for one in live.notices if one.cleared_at is not None]
    last = max(over, key=lambda one: one.cleared_at or one.noticed_at, default=None)
    if last is None or last.cleared_at is None or last.cleared_at < live.now - _RECENT:
        return None
    return last


def _most_pressing(notices: Sequence[NoticeRow]) -> NoticeRow:
    return max(
        notices, key=lambda one: (one.kind in STANDING_STILL, one.factor or 0.0, one.noticed_at)
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
    found = []
    if live.step_s is not None:
        hint = "Median of the latest 20 steps; p95 and worst since the last whole minute began"
        found.append(Fact("Step time", seconds(live.step_s), _spread(live, last), hint))
    if last is not None and last.tokens_per_s:
        found.append(Fact("Tokens a second", _short(last.tokens_per_s), "of the whole job"))
    if live.minutes:
        lost = sum(one.lost_gpu_s for one in live.minutes) / 3_600
        rate = "" if last is None else f"{hours(last.lost_gpu_s / _HOUR)} more each hour"
        hint = "GPU-hours in which ranks waited for the one that computes longest"
        found.append(Fact("Lost in 12 hours", gpu_time(lost), rate, hint))
    if slowest:
        first = slowest[0]
        found.append(
            Fact(
                "Longest computing",
                f"Rank {first.rank}, {times(first.ratio)}",
                _place(first),
                "In the last minute",
            )
        )
    found.append(Fact("Ranks", count(live.ranks), f"attempt {count(live.attempt)}"))
    found.append(Fact("Pulse", "", "since the last one", moment=live.heard_at))
    return found


def _spread(live: LiveJob, last: SpanRow | None) -> str:
    """Return the spread of the step time, with the steps that its median is of among its own."""
    if last is None:
        return ""
    among = [one for one in live.minutes if one.attempt == live.attempt and one.start >= last.start]
    p95_s = max(one.step_p95_s for one in among)
    worst_s = max(one.step_worst_s for one in among)
    return f"p95 {seconds(p95_s)}, worst {seconds(worst_s)}"


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{NBSP}{unit}"
    return f"{value:.3g}"


def _asked(asked: Asked | None) -> str:
    if asked is None:
        return ""
    if asked.handed:
        return f"Recording {asked.steps} steps…: {asked.reason}"
    return f"{asked.steps} steps are asked for: {asked.reason}"


def _last_minute(live: LiveJob, enough: int | None = None) -> SpanRow | None:
    """Return the last minute that is whole; the last one of a job that just began or has ended.

    Parameters
    ----------
    enough : int, optional
        The steps with which that under way counts, too: it has what was just noticed.
    """
    own = [one for one in live.minutes if one.attempt == live.attempt]
    whole = [
        one
        for one in own
        if one.start <= live.now - _WHOLE or (enough is not None and one.steps >= enough)
    ]
    found = whole or own
    return found[-1] if found else None


def _map_title(live: LiveJob, slowest: Sequence[SlowRank]) -> str:
    """Return what the map shows, by the same facts as the page's heading.

    Of what goes on the notice tells, which the last minute may not have yet, or still has.
    """
    blamed = [one for one in live.open if one.kind in _COMPUTE_LONG and one.ranks]
    if blamed:
        worst = _most_pressing(blamed)
        computes = "computes" if len(worst.ranks) == 1 else "compute"
        return f"{_who(worst)} {computes} {_compared(live, worst)}"
    over = _just_over(live)
    if not live.open and over is not None and over.kind in _COMPUTE_LONG and over.ranks:
        return f"{_who(over)} computed {_compared(live, over)} until a moment ago"
    if any(one.kind in STANDING_STILL for one in live.open):
        return "Computing of the ranks until no step ended any more"
    slow = [one for one in slowest if one.ratio >= _SLOW]
    if not slow:
        return "All ranks compute as long as their peers"
    first = slow[0]
    where = f" ({_place(first)})" if first.host else ""
    return f"Rank {first.rank}{where} computes {times(first.ratio)} as long as its peers"


def _who(notice: NoticeRow) -> str:
    return _capital(named(tuple(notice.ranks), tuple(notice.hosts)))


def _compared(live: LiveJob, notice: NoticeRow) -> str:
    """Return what the ranks are held against; by how much stands in the sentence."""
    its = "its" if len(notice.ranks) == 1 else "their"
    at_times = " at times" if notice.kind is NoticeKind.SPELLS else ""
    return f"longer than {f'{its} peers' if live.ranks > 1 else 'before'}{at_times}"


def _places(minutes: Sequence[SpanRow]) -> dict[int, str]:
    return {rank.rank: _place(rank) for one in minutes for rank in one.slowest if rank.host}


def _place(rank: SlowRank) -> str:
    return f"{rank.host}, GPU{NBSP}{rank.gpu}" if rank.host else ""


def _slowest_title(last: SpanRow) -> str:
    number = len(last.slowest)
    return f"The {plural(number, 'rank')} that compute longest" if number > 1 else "The only rank"


def _host(rank: SlowRank) -> object:
    return html.link(host_url(rank.host), rank.host) if rank.host else html.NOTHING


_SLOWEST: Final[tuple[Shown[SlowRank], ...]] = (
    Shown("Rank", lambda one: count(one.rank), classes="num"),
    Shown("Host", _host, of_cells="grow"),
    Shown("GPU", lambda one: one.gpu if one.host else "", classes="num"),
    Shown(
        "Computing",
        lambda one: html.swatch(heat_color(one.ratio)) + times(one.ratio),
        classes="num",
        hint="Against the median of the ranks of its stage, without waiting",
    ),
)


def _noticed(live: LiveJob, csv: str) -> Drawn | None:
    if not live.notices:
        return None
    now = live.now
    shown: tuple[Shown[NoticeRow], ...] = (
        Shown("Noticed", lambda one: moments.when(one.noticed_at, now), of_cells="nowrap"),
        Shown("State", lambda one: html.state(_GOES_ON if one.cleared_at is None else _OVER)),
        Shown("Notice", lambda one: TITLES[one.kind], classes="opt", of_cells="nowrap"),
        Shown("What", _what, of_cells="grow"),
        Shown("Session", _outcome, of_cells="ends"),
        Shown("Lost", lambda one: gpu_time(one.gpu_hours), classes="num opt"),
    )
    return drawn(shown, live.notices, csv=csv, classes="plain notices")


def _what(one: NoticeRow) -> object:
    return _capital(one.evidence.told)


def _outcome(one: NoticeRow) -> object:
    if one.outcome is None:
        return "" if one.cleared_at is not None else "none yet"
    words = _OUTCOMES[one.outcome]
    return words if one.session is None else html.link(f"/sessions/{one.session}", words)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]
