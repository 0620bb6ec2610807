"""Page of hosts: blamed hosts by cost, slow hosts without blame; texts and CSV files of hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.wording import hours
from app.hosts.costs import HOSTS, HostRow, Hosts, HostSums, Show, Totals
from app.hosts.detail import HostIncident, HostJob, HostSession, HostView, jobs_of
from app.hosts.places import Move
from app.hosts.repairs import ENOUGH, Judged, Outcome, Repair
from app.pulse.advance import HostNotice, HostNow, HostRank
from app.web import html, moments
from app.web.format import (
    EN_DASH,
    count,
    heat_color,
    listing,
    plural,
    rough_percent,
    seconds,
    times,
)
from app.web.forms import Choice
from app.web.links import Address, host_url, job_url
from app.web.parts import StateLabel, sparkline
from app.web.tables import Drawn, Shown, Table, drawn, pager, sorted_by
from app.web.time_ranges import MONTH, Range, RangeChoices, range_choices

FIRING: Final = StateLabel("firing", "Firing", 0)
SLOW_NOW: Final = StateLabel("slow", "Slow", 1)
IN_SERVICE: Final = StateLabel("ok", "In service", 2, quiet=True)

SLOWDOWN: Final = "Slowdown of the job if only its slowest worker there were as recorded"

# Number of consecutive GPUs from which on they are written as a range.
_RANGE_FROM: Final = 3


def state_of(*, firing: bool, slow: bool) -> StateLabel:
    """Return the state label of a host."""
    if firing:
        return FIRING
    return SLOW_NOW if slow else IN_SERVICE


def gpu_words(gpus: Sequence[str]) -> str:
    """Return a short text of GPUs; consecutive numbers become ranges.

    Examples
    --------
    >>> gpu_words(["0", "1", "2", "3", "5"])
    '0–3, 5'
    >>> gpu_words(["GPU-a1b2"])
    'GPU-a1b2'
    """
    parts: list[str] = []
    run: list[str] = []
    for gpu in (*gpus, None):
        follows = (run and gpu is not None and gpu.isdecimal() and run[-1].isdecimal()) and int(
            gpu
        ) == int(run[-1]) + 1
        if not follows and run:
            many = len(run) >= _RANGE_FROM
            parts += [f"{run[0]}{EN_DASH}{run[-1]}"] if many else run
            run = []
        if gpu is not None:
            run.append(gpu)
    return ", ".join(parts)


def named_gpus(gpus: Sequence[str]) -> str:
    """Return GPUs as a sentence names them, numbers with the word GPU.

    Examples
    --------
    >>> named_gpus(["0", "1"]), named_gpus(["5"]), named_gpus(["GPU 0"])
    ('GPUs 0, 1', 'GPU 5', 'GPU 0')
    """
    if not all(gpu.isdecimal() for gpu in gpus):
        return gpu_words(gpus)
    return f"GPU{'s' if len(gpus) > 1 else ''} {gpu_words(gpus)}"


def outcome_words(judged: Judged) -> str:
    """Return the effect of a repair in a word or two."""
    if judged.outcome is Outcome.OPEN:
        left = ENOUGH - judged.sessions_after
        return f"open: {plural(left, 'more session')} needed"
    return judged.outcome.value


# Share of the costs of all blamed hosts from which on the heading names a host.
NAMED_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class HostsPage:
    """The page of hosts."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[StateLabel, str]]
    seen: str
    words: str
    parameters: Sequence[tuple[str, str]]
    choices: Sequence[Choice]
    range: RangeChoices
    list_title: str
    list_note: str
    table: Drawn
    nothing: str
    alike_title: str
    alike: Drawn


def hosts_page(hosts: Hosts, about: Range, show: Show, words: str, address: Address) -> HostsPage:
    """Return the page of hosts."""
    totals, rows = hosts.totals, hosts.page.rows
    firing = sum(row.firing for row in rows)
    shown, page = _columns(hosts.now), hosts.page
    part = "" if page.pages == 1 else f"; {count(page.first)} to {count(page.last)}"
    return HostsPage(
        now=hosts.now,
        title=f"Hosts: {count(totals.blamed)} blamed",
        heading=_heading(totals, about),
        states=[(state_of(firing=True, slow=True), f"{count(firing)} firing")] if firing else [],
        seen=(
            f"{plural(totals.hosts, 'host')} measured in {about.words}, "
            f"{plural(totals.ranks, 'GPU')}"
        ),
        words=words,
        parameters=[
            (name, value)
            for name, value in address.parameters.items()
            if value and name not in {"q", "page"}
        ],
        choices=_choices(totals, show, address),
        range=range_choices(about, with_all=True),
        list_title=_list_title(hosts, show),
        list_note=f"GPU-hours in {about.words}, each verdict until its job’s next session, at most "
        f"6 h{part}",
        table=drawn(
            shown,
            rows,
            csv=replace(address, path="/hosts.csv").but(page=None),
            classes="fleet hosts",
            headings=sorted_by(HOSTS, shown, address),
            pager=pager(page, address),
        ),
        nothing=_nothing(show, words, about),
        alike_title=_alike_title(hosts.look_alikes),
        alike=drawn(
            _ALIKE,
            hosts.look_alikes,
            csv=Address("/hosts-not-blamed.csv", about.parameters(default=MONTH)).but(),
            classes="plain alike",
        ),
    )


def _heading(totals: Totals, about: Range) -> str:
    if not totals.hosts:
        return f"No session named a host in {about.words}"
    if not totals.blamed:
        return f"None of {plural(totals.hosts, 'host')} was slow more than once in {about.words}"
    verb = "costs" if totals.blamed == 1 else "cost"
    text = (
        f"{count(totals.blamed)} of {plural(totals.hosts, 'host')} {verb} {hours(totals.cost)} "
        f"GPU-hours in {about.words}"
    )
    share = totals.first_cost / totals.cost if totals.cost else 0.0
    if totals.first and totals.blamed > 1 and share >= NAMED_SHARE:
        return f"{text}; {totals.first} alone {rough_percent(share)} of them"
    return f"{text}: {totals.first}" if totals.blamed == 1 else text


def _choices(totals: Totals, show: Show, address: Address) -> list[Choice]:
    labels = {
        Show.BLAMED: f"Blamed {count(totals.blamed)}",
        Show.REPAIRED: f"Repaired {count(totals.repaired)}",
        Show.ALL: f"All {count(totals.hosts)}",
    }
    return [
        Choice(
            choice.value,
            label,
            choice is show,
            address.but(show=None if choice is Show.BLAMED else choice, page=None),
        )
        for choice, label in labels.items()
    ]


def _list_title(hosts: Hosts, show: Show) -> str:
    total = plural(hosts.page.total, "host")
    if show is Show.BLAMED:
        return f"{total} slow more than once" if hosts.page.total else "No host is blamed"
    return f"{total} with a repair" if show is Show.REPAIRED else total


def _nothing(show: Show, words: str, about: Range) -> str:
    if words:
        return "No host matches."
    if show is Show.REPAIRED:
        return "No repair is noted: each host’s page has its log."
    return f"No host was slow in more than one session in {about.words}."


def _columns(now: datetime) -> tuple[Shown[HostRow], ...]:
    return (
        Shown("State", lambda row: html.state(state_of(firing=row.firing, slow=row.is_slow))),
        Shown("Host", _host, "host", of_cells="grow"),
        Shown(
            "GPU-hours",
            lambda row: hours(row.cost_gpu_hours),
            "cost_gpu_hours",
            "num",
            "Lost by causes that name the host, while each verdict stood",
        ),
        Shown(
            "Slowdown",
            lambda row: html.spark(sparkline(row.trend)),
            "slowdown_worst",
            "opt",
            "Of its slowest worker in the last 24 sessions, from 1.0 to 1.5",
        ),
        Shown(
            "Now",
            lambda row: html.slowdown(row.slowdown_now),
            classes="num",
            hint=SLOWDOWN,
        ),
        Shown(
            "GPUs",
            lambda row: gpu_words(row.gpus),
            classes="opt w2",
            hint="GPUs that causes name",
            of_cells="nowrap",
        ),
        Shown(
            "Jobs",
            lambda row: f"{count(row.slow_jobs)} of {count(row.jobs)}",
            "slow_jobs",
            "num opt w3",
            "Slow of seen",
        ),
        Shown("Sessions", _sessions, "slow_sessions", "num opt", "Slow of seen"),
        Shown(
            "Incidents",
            lambda row: row.incidents,
            classes="num opt w2",
            hint="Incidents that name the host and were sent",
        ),
        Shown("Cause", _causes, classes="opt"),
        Shown(
            "Last repair",
            lambda row: _repair(row.repair, now),
            classes="opt w3",
            title=lambda row: f"{row.repair.what}, by {row.repair.by}" if row.repair else "",
        ),
        Shown("Seen", lambda row: moments.ago(row.last_seen, now), "last_seen", "num"),
    )


def _named(row: HostSums) -> Markup:
    link = html.link(host_url(row.host), row.host)
    return link + html.element("span", " guessed", class_="note") if row.guessed else link


def _host(row: HostSums) -> Markup:
    return _named(row) + html.narrow(_causes(row), f"{_sessions(row)} sessions slow")


def _sessions(row: HostSums) -> str:
    return f"{count(row.slow_sessions)} of {count(row.sessions)}"


def _causes(row: HostSums) -> str:
    return listing([title_of(cause) for cause in row.causes])


def _repair(repair: Repair | None, now: datetime) -> Markup:
    if repair is None:
        return html.NOTHING
    return html.join([moments.when(repair.at, now), f", {outcome_words(repair.judged)}"])


def _alike_title(rows: Sequence[HostSums]) -> str:
    if not rows:
        return ""
    who = "1 host looks" if len(rows) == 1 else f"{count(len(rows))} hosts look"
    verb = "is" if len(rows) == 1 else "are"
    return f"{who} slow and {verb} not blamed"


def _slow_in(row: HostSums) -> str:
    seen = plural(row.sessions, "session")
    return f"{count(row.slow_sessions)} of {seen}, {plural(row.jobs, 'job')}"


def _why_not(row: HostSums) -> str:
    if row.slow_sessions:
        after = "" if row.is_slow else "; not named since"
        return f"one session only, by {_causes(row).lower()}{after}: a second one would blame it"
    own = (
        "its computing has no peers to compare with"
        if row.computing_worst is None
        else f"its computing is at most {times(row.computing_worst)} its peers’"
    )
    return f"up to {times(row.slowdown_worst)}, but no cause names it; {own}"


_ALIKE: Final[tuple[Shown[HostSums], ...]] = (
    Shown("Host", _named, of_cells="nowrap"),
    Shown("Slow in", _slow_in),
    Shown("Why it is not blamed", _why_not),
)


def gpus_csv(view: HostView) -> Table:
    """Return the table of a host's GPUs in each session."""
    return Table(
        ("received_at", "job", "session", "gpu", "uuid", "slowdown", "computing",
         "named_by_a_cause"),
        (
            (
                *(session.received_at, session.job, session.number),
                *(gpu["gpu"], gpu.get("uuid"), gpu["slowdown"], gpu["computing"], gpu["slow"]),
            )
            for session in view.sessions
            for gpu in session.gpus
        ),
    )  # fmt: skip


# File name → function that returns the file's table, given a host.
EXPORTS: Final[Mapping[str, Callable[[HostView], Table]]] = {
    "sessions": lambda view: Table.of(HostSession, view.sessions),
    "gpus": gpus_csv,
    "moves": lambda view: Table.of(Move, view.moves),
    "repairs": lambda view: Table.of(
        *(Repair, view.repairs, "at", "gpu", "what", "by"),
        *("outcome", "slowdown_before", "slowdown_after"),
    ),
    "jobs": lambda view: Table.of(HostJob, sorted(jobs_of(view.sessions), key=attrgetter("job"))),
    "incidents": lambda view: Table.of(HostIncident, view.incidents),
}


_GOES_ON: Final = StateLabel("pending", "Goes on", 0)
_OVER: Final = StateLabel("resolved", "Over", 5)


@dataclass(frozen=True, slots=True)
class HostLive:
    """Tables of a host's ranks in live pulses, and of notices about the host; None if empty."""

    ranks: Drawn | None
    ranks_title: str
    notices: Drawn | None
    notices_title: str


def host_live(live: HostNow, csv: str, now: datetime) -> HostLive:
    """Return the live part of a host's page."""
    number, open_now = len(live.ranks), sum(notice.cleared_at is None for notice in live.notices)
    return HostLive(
        drawn(_RANKS, live.ranks, csv=f"{csv}/pulse.csv") if live.ranks else None,
        f"{plural(number, 'rank')} among the slowest now" if number else "",
        drawn(
            (
                Shown(
                    "Noticed",
                    lambda notice: moments.when(notice.noticed_at, now),
                    of_cells="nowrap",
                ),
                Shown(
                    "State",
                    lambda notice: html.state(_GOES_ON if notice.cleared_at is None else _OVER),
                ),
                Shown(
                    "Job", lambda notice: html.link(job_url(notice.job), notice.job), classes="opt"
                ),
                Shown(
                    "What",
                    lambda notice: notice.sentence[:1].upper() + notice.sentence[1:],
                    of_cells="grow",
                ),
            ),
            live.notices,
            csv=f"{csv}/notices.csv",
        )
        if live.notices
        else None,
        f"{plural(len(live.notices), 'notice')} of its ranks, {count(open_now)} open",
    )


# File name → function that returns the file's table, given the live pulses of a host.
FILES: Final[Mapping[str, Callable[[HostNow], Table]]] = {
    "pulse": lambda now: Table.of(HostRank, now.ranks, "job", "rank", "gpu", "ratio", "step_s"),
    "notices": lambda now: Table.of(
        HostNotice, now.notices, "job", "noticed_at", "cleared_at", "sentence"
    ),
}

_RANKS: Final[tuple[Shown[HostRank], ...]] = (
    Shown("Job", lambda rank: html.link(job_url(rank.job), rank.job), of_cells="grow"),
    Shown("Rank", lambda rank: count(rank.rank), classes="num"),
    Shown("GPU", lambda rank: rank.gpu, classes="num"),
    Shown(
        "Computing",
        lambda rank: html.swatch(heat_color(rank.ratio)) + times(rank.ratio),
        classes="num",
        hint="Against the median of the ranks of its stage, in the last minute",
    ),
    Shown("Step", lambda rank: seconds(rank.step_s), classes="num opt"),
)
