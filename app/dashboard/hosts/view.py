"""What the page of hosts shows: which machine costs again and again, and which only looks slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.wording import hours
from app.dashboard.hosts.words import gpu_words, outcome_words, state_of
from app.dashboard.ui import html, moments
from app.dashboard.ui.address import Address
from app.dashboard.ui.choosing import Choice
from app.dashboard.ui.format import count, listing, plural, rough_percent, times
from app.dashboard.ui.parts import StateLabel, sparkline
from app.dashboard.ui.places import host_url
from app.dashboard.ui.ranges import Range, RangeChoices, range_choices
from app.dashboard.ui.tables import Drawn, Shown, drawn, pager, sorted_by
from app.dashboard.ui.time_query import MONTH
from app.services.hosts.listed import HOSTS, HostRow, Hosts, HostSums, Show

if TYPE_CHECKING:
    from markupsafe import Markup

    from app.services.hosts.listed import Totals
    from app.services.hosts.repairs import Repair

# A host is worth naming in the heading when it costs this share of what all blamed ones do.
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


def hosts_page(found: Hosts, about: Range, show: Show, words: str, address: Address) -> HostsPage:
    """Return the page of hosts."""
    totals, rows = found.totals, found.page.rows
    firing = sum(row.firing for row in rows)
    shown = _columns(found.now)
    return HostsPage(
        now=found.now,
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
        list_title=_list_title(found, show),
        list_note=_list_note(found, about),
        table=drawn(
            shown,
            rows,
            csv=replace(address, path="/hosts.csv").but(page=None),
            classes="fleet hosts",
            headings=sorted_by(HOSTS, shown, address),
            pager=pager(found.page, address),
        ),
        nothing=_nothing(show, words, about),
        alike_title=_alike_title(found.look_alikes),
        alike=drawn(
            _ALIKE,
            found.look_alikes,
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
            one.value,
            label,
            one is show,
            address.but(show=None if one is Show.BLAMED else one, page=None),
        )
        for one, label in labels.items()
    ]


def _list_title(found: Hosts, show: Show) -> str:
    total = plural(found.page.total, "host")
    if show is Show.BLAMED:
        return f"{total} slow more than once" if found.page.total else "No host is blamed"
    return f"{total} with a repair" if show is Show.REPAIRED else total


def _list_note(found: Hosts, about: Range) -> str:
    text = f"GPU-hours in {about.words}, each verdict until its job’s next session, at most 6 h"
    if found.page.pages == 1:
        return text
    return f"{text}; {count(found.page.first)} to {count(found.page.last)}"


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
            hint="Slowdown of the job if only its slowest worker there were as recorded",
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
