"""What the page of hosts shows: which machine costs again and again, and which only looks slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.wording import hours
from app.dashboard.hosts.words import gpu_words, outcome_words, state_of
from app.dashboard.look.choosing import Choice, Heading
from app.dashboard.look.format import (
    count,
    day_or_time,
    heat_color,
    listing,
    plural,
    rough_percent,
    times,
)
from app.dashboard.look.parts import Sparkline, StateLabel, sparkline
from app.dashboard.look.places import host_url
from app.dashboard.look.ranges import Range, RangeChoices, range_choices
from app.dashboard.look.time_asked import MONTH
from app.services.hosts.listed import PAGE, HostRow, Hosts, Show
from app.services.hosts.read import DEAREST

if TYPE_CHECKING:
    from app.dashboard.look.address import Address
    from app.services.hosts.listed import Totals
    from app.services.hosts.repairs import Repair

# A host is worth naming in the heading when it costs this share of what all blamed ones do.
NAMED_SHARE: Final = 0.3

# Column, what it is sorted by if at all, its classes, and what it says more of itself.
_COLUMNS: Final = (
    ("State", "", "", ""),
    ("Host", "host", "", ""),
    ("GPU-hours", "cost", "num", "Lost by causes that name the host, while each verdict stood"),
    ("Slowdown", "worst", "opt", "Of its slowest worker in the last 24 sessions, from 1.0 to 1.5"),
    ("Now", "", "num", "Slowdown of the job if only its slowest worker there were as recorded"),
    ("GPUs", "", "opt w2", "Those that causes name"),
    ("Jobs", "jobs", "num opt w3", "Slow of seen"),
    ("Sessions", "sessions", "num opt", "Slow of seen"),
    ("Incidents", "", "num opt w2", "All that were told of"),
    ("Cause", "", "opt", ""),
    ("Last repair", "", "opt w3", ""),
    ("Seen", "seen", "num", ""),
)


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host in the ranking."""

    host: str
    url: str
    state: StateLabel
    cost: str
    spark: Sparkline | None
    now: str
    color: str
    gpus: str
    jobs: str
    sessions: str
    incidents: int
    cause: str
    repair: str
    repair_hint: str
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class AlikeLine:
    """A host that looks slow and is not blamed."""

    host: str
    url: str
    slow_in: str
    why: str


@dataclass(frozen=True, slots=True)
class HostsPage:
    """The page of hosts."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[StateLabel, str]]
    seen: str
    words: str
    asked: Sequence[tuple[str, str]]
    choices: Sequence[Choice]
    range: RangeChoices
    list_title: str
    list_note: str
    headings: Sequence[Heading]
    lines: Sequence[HostLine]
    nothing: str
    csv: str
    previous_url: str
    next_url: str
    alike_title: str
    alike: Sequence[AlikeLine]
    alike_csv: str


def hosts_page(found: Hosts, about: Range, show: Show, words: str, address: Address) -> HostsPage:
    """Return the page of hosts.

    Parameters
    ----------
    found : Hosts
    about : Range
        The chosen time.
    show : Show
        Which of them.
    words : str
        What was looked for.
    address : Address
        Of the page.
    """
    totals = found.totals
    csv_address = type(address)("/hosts.csv", address.parameters)
    firing = sum(alarm.firing for alarm in found.alarms.values())
    return HostsPage(
        now=found.now,
        title=f"Hosts: {count(totals.blamed)} blamed",
        heading=_heading(totals, about),
        states=[(state_of(firing=True, slow=True), f"{count(firing)} firing")] if firing else [],
        seen=f"{plural(totals.hosts, 'host')} seen in {about.words}, {plural(totals.ranks, 'GPU')}",
        words=words,
        asked=[
            (name, value)
            for name, value in address.parameters.items()
            if value and name not in {"q", "page"}
        ],
        choices=_choices(totals, show, address),
        range=range_choices(about, with_all=True),
        list_title=_list_title(found, show),
        list_note=_list_note(found, about),
        headings=_headings(address),
        lines=[_line(row, found) for row in found.rows],
        nothing=_nothing(show, words, about),
        csv=csv_address.but(page=None),
        previous_url=address.but(page=_page(found.page - 1)) if found.page > 1 else "",
        next_url=address.but(page=found.page + 1) if found.page < found.pages else "",
        alike_title=_alike_title(found.look_alikes),
        alike=[_alike(row) for row in found.look_alikes],
        alike_csv=type(address)("/hosts-not-blamed.csv", about.parameters(default=MONTH)).but(),
    )


def _page(number: int) -> int | None:
    return number if number > 1 else None


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
    total = plural(found.totals.matching, "host")
    if show is Show.BLAMED:
        return f"{total} slow more than once" if found.totals.matching else "Nobody is blamed"
    return f"{total} with a repair" if show is Show.REPAIRED else total


def _list_note(found: Hosts, about: Range) -> str:
    text = f"GPU-hours in {about.words}, each verdict until its job’s next session, at most 6 h"
    if found.pages == 1:
        return text
    first = PAGE * (found.page - 1) + 1
    return f"{text}; {count(first)} to {count(first + len(found.rows) - 1)}"


def _nothing(show: Show, words: str, about: Range) -> str:
    if words:
        return "No host matches."
    if show is Show.REPAIRED:
        return "No repair is noted: each host’s page has its log."
    return f"No host was slow in more than one session in {about.words}."


def _headings(address: Address) -> list[Heading]:
    sort = address.parameters.get("sort") or DEAREST
    by, largest_first = sort.removeprefix("-"), sort.startswith("-")
    found = []
    for label, name, classes, hint in _COLUMNS:
        chosen = bool(name) and name == by
        turned = name if (chosen and largest_first) or (name == "host" != by) else f"-{name}"
        found.append(
            Heading(
                label=label,
                classes=classes,
                hint=hint,
                url=address.but(sort=None if turned == DEAREST else turned, page=None)
                if name
                else "",
                order=("descending" if largest_first else "ascending") if chosen else "",
            )
        )
    return found


def _line(row: HostRow, found: Hosts) -> HostLine:
    alarms = found.alarms.get(row.host)
    repair = found.repairs.get(row.host)
    return HostLine(
        host=row.host,
        url=host_url(row.host),
        state=state_of(firing=bool(alarms and alarms.firing), slow=row.is_slow),
        cost=hours(row.cost),
        spark=sparkline(found.trends[row.host]),
        now=times(found.trends[row.host][-1]),
        color=heat_color(found.trends[row.host][-1]),
        gpus=gpu_words(found.gpus.get(row.host, ())),
        jobs=f"{count(row.slow_jobs)} of {count(row.jobs)}",
        sessions=f"{count(row.slow_sessions)} of {count(row.sessions)}",
        incidents=alarms.incidents if alarms else 0,
        cause=listing([title_of(cause) for cause in row.causes]),
        repair=_repair(repair, found.now),
        repair_hint="" if repair is None else f"{repair.what}, by {repair.by}",
        last_seen=row.last_seen,
    )


def _repair(repair: Repair | None, now: datetime) -> str:
    if repair is None:
        return ""
    return f"{day_or_time(repair.at, now)}, {outcome_words(repair.judged)}"


def _alike_title(rows: Sequence[HostRow]) -> str:
    if not rows:
        return ""
    who = "1 host looks" if len(rows) == 1 else f"{count(len(rows))} hosts look"
    verb = "is" if len(rows) == 1 else "are"
    return f"{who} slow and {verb} not blamed"


def _alike(row: HostRow) -> AlikeLine:
    seen = plural(row.sessions, "session")
    slow_in = f"{count(row.slow_sessions)} of {seen}, {plural(row.jobs, 'job')}"
    if row.slow_sessions:
        after = "" if row.is_slow else "; not named since"
        cause = listing([title_of(cause) for cause in row.causes]).lower()
        why = f"one session only, by {cause}{after}: another one would settle it"
    else:
        own = (
            "its computing has no peers to hold it against"
            if row.computing is None
            else f"its computing is at most {times(row.computing)} its peers’"
        )
        why = f"up to {times(row.worst)}, but no cause names it; {own}"
    return AlikeLine(row.host, host_url(row.host), slow_in, why)
