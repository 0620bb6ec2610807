"""What the fleet page shows: sums over all jobs, and a page of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.analysis.wording import hours
from app.dashboard.alerts.parts import STATES
from app.dashboard.fleet.lines import job_line
from app.dashboard.fleet.live import LIVE, LiveJobs, live_jobs, unrecorded_title
from app.dashboard.fleet.query import FilterBar, FleetQuery, filter_bar
from app.dashboard.fleet.tables import job_attributes, job_columns, silent_columns
from app.dashboard.ui.address import Address
from app.dashboard.ui.format import (
    count,
    plural,
    rough_percent,
)
from app.dashboard.ui.parts import (
    FINISHED_STATE,
    SILENT_STATE,
    StateLabel,
    job_state,
)
from app.dashboard.ui.ranges import Range, RangeChoices, range_choices
from app.dashboard.ui.tables import Drawn, drawn, pager, sorted_by
from app.services.fleet.rows import FLEET
from app.services.fleet.standing import Show

if TYPE_CHECKING:
    from app.dashboard.ui.choosing import Choice
    from app.services.fleet.listing import FleetView, Group
    from app.services.fleet.rows import Standing
    from app.services.pulse.fleet import LiveStep

# A job is worth naming in the heading when it loses this share of all that is lost.
NAMED_SHARE: Final = 0.3
# Up to this number, silent jobs are not folded.
SILENT_OPEN: Final = 10
# Less is shown as 0.0, GPU-hours.
_LEAST: Final = 0.05
# What is lost may differ by rounding.
_NEARLY: Final = 1 + 1e-6
EMPTY: Final = "The archive is empty"


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The fleet page.

    `jobs` are those of this page with data in the chosen time; the silent ones count nowhere else.
    """

    now: datetime
    title: str
    heading: str
    lost_to: str
    states: tuple[tuple[StateLabel, str], ...]
    tabs: Sequence[Choice]
    bar: FilterBar
    jobs: Drawn
    list_title: str
    nothing: str
    silent: Drawn
    silent_title: str
    silent_open: bool
    range: RangeChoices
    archived: bool
    live: LiveJobs
    live_title: str


def fleet_page(
    found: FleetView, query: FleetQuery, about: Range, running: Sequence[LiveStep] = ()
) -> FleetPage:
    """Return the fleet page.

    Parameters
    ----------
    running : sequence of LiveStep
        Jobs whose pulse comes now.
    """
    groups = found.groups
    heard = [group for group in groups if group.heard]
    silent = found.silent.total
    words: Counter[StateLabel] = Counter()
    for group in heard:
        words[_standing_label(group)] += group.matching
    finished = sum(group.matching for group in groups if group.finished and not group.heard)
    words[FINISHED_STATE] += finished
    states = [
        (state, f"{count(number)} {state.word.lower()}")
        for state, number in sorted(words.items(), key=lambda item: item[0].order)
        if number
    ]
    if silent > finished:
        states.append((SILENT_STATE, f"{count(silent - finished)} silent"))
    address, page, quiet = query.address(about), found.page, found.silent
    live = live_jobs(running)
    shown, jobs = job_columns(found.now, query, address), sum(group.jobs for group in heard)
    if any(job.name in live.by_name for job in page.rows):
        shown = (*shown[:-1], LIVE, shown[-1])
    return FleetPage(
        now=found.now,
        title=f"Fleet: {_short(heard, silent)}",
        heading=_heading(found, about),
        lost_to=_lost_to(heard),
        states=tuple(states),
        tabs=query.tabs(about),
        bar=filter_bar(query, about, found),
        jobs=drawn(
            shown,
            [replace(job_line(job), live=live.by_name.get(job.name)) for job in page.rows],
            csv=Address("/fleet/jobs.csv", address.parameters).but(),
            classes="fleet jobs",
            headings=sorted_by(FLEET, shown, address),
            pager=pager(page, address),
            attributes=job_attributes,
        ),
        list_title=_list_title(found, jobs),
        nothing="" if page.rows else _nothing(found, jobs),
        silent=drawn(
            silent_columns(found.now),
            [replace(job_line(job), state=_quiet_state(job), kind="silent") for job in quiet.rows],
            csv=Address("/fleet/silent.csv", address.parameters).but(sort=None),
            classes="fleet silent",
            pager=pager(
                quiet,
                Address(address.path, {**address.parameters, "page": _number(page.number)}),
                "silent",
                "#silent",
            ),
            attributes=job_attributes,
        ),
        silent_title=_silent_title(found, about),
        silent_open=silent <= SILENT_OPEN or query.filtered.narrowed or quiet.number > 1,
        range=range_choices(about),
        archived=query.archived,
        live=live,
        live_title=unrecorded_title(live) if live.unrecorded else "",
    )


def _number(page: int) -> str:
    return str(page) if page > 1 else ""


def _standing_label(group: Group) -> StateLabel:
    if group.incident is not None:
        return STATES[group.incident]
    if group.finished:
        return FINISHED_STATE
    return job_state(group.state, slow=group.slow)


def _short(heard: Sequence[Group], silent: int) -> str:
    if matching := sum(group.matching for group in heard):
        slow = sum(group.matching for group in heard if group.slow)
        return f"{count(slow)} of {plural(matching, 'job')} slow"
    if silent:
        return plural(silent, "silent job")
    return "no job matches" if heard else "no job yet"


def _list_title(found: FleetView, jobs: int) -> str:
    matching = found.page.total
    of_all = "" if matching == jobs else f" of {count(jobs)}"
    if found.page.pages == 1:
        return f"{count(matching)}{of_all} {'job' if matching == 1 and not of_all else 'jobs'}"
    first, last = found.page.first, found.page.last
    found_ = "" if matching == jobs else " found"
    return f"Jobs {count(first)} to {count(last)} of {count(matching)}{found_}"


def _nothing(found: FleetView, jobs: int) -> str:
    if found.filters.narrowed and not found.silent.rows:
        return "No job matches."
    return "No job with data in this time matches." if jobs else ""


def _silent_title(found: FleetView, about: Range) -> str:
    unheard = [group for group in found.groups if not group.heard]
    finished = sum(group.jobs for group in unheard if group.finished)
    silent = sum(group.jobs for group in unheard) - finished
    who = "1 job is silent" if silent == 1 else f"{count(silent)} jobs are silent"
    title = f"{who}: no session in {about.words}" if silent or not finished else ""
    if finished:
        title += f"{'; ' if title else ''}{plural(finished, 'job')} finished"
    matching = found.silent.total
    if matching != silent + finished:
        title += f"; {count(matching)} {'matches' if matching == 1 else 'match'}"
    return title


def _heading(found: FleetView, about: Range) -> str:
    """Return what the jobs cost that are asked for; of none it says why."""
    heard = [group for group in found.groups if group.heard]
    if not heard:
        return _unheard(found, about)
    jobs = sum(group.matching for group in heard)
    matching = "matching " if found.filters.asked else ""
    if not jobs:
        return f"No job with data in {about.words} matches"
    told = sum(group.told for group in heard)
    if not told:
        return f"{plural(jobs, f'{matching}job')}, no verdict yet"
    lost, gpus = sum(group.lost for group in heard), sum(group.gpus for group in heard)
    who = plural(jobs, f"{matching}job")
    to_stragglers = all(group.lost <= _NEARLY * group.wasted for group in heard)
    if to_stragglers:
        costs = "Stragglers cost"
        each_hour = f"each hour in {who}" if matching else "each hour"
    else:
        costs = f"{who if matching else 'Jobs'} {'loses' if matching and jobs == 1 else 'lose'}"
        each_hour = "each hour"
    sentence = (
        f"{costs} {hours(lost)} GPU-hours {each_hour}, "
        f"{rough_percent(lost / gpus)} of {plural(gpus, 'GPU')}"
    )
    first = max((group for group in heard if group.told), key=lambda group: group.most)
    if told > 1 and lost > 0 and first.most >= NAMED_SHARE * lost:
        sentence += f"; {first.job} alone loses {rough_percent(first.most / lost)} of them"
    return sentence


def _lost_to(heard: Sequence[Group]) -> str:
    """Return to what the jobs lose their time that are asked for, where that is several things."""
    gpus = sum(group.gpus for group in heard)
    parts = {
        "to stragglers": sum(group.wasted for group in heard),
        "between steps": sum(group.between for group in heard),
        "as all workers compute slower": sum(group.together for group in heard),
    }
    told = {what: lost for what, lost in parts.items() if lost >= _LEAST}
    if not gpus or told.keys() <= {"to stragglers"}:
        return ""
    words = (f"{hours(lost)} {what} ({rough_percent(lost / gpus)})" for what, lost in told.items())
    return f"By kind, GPU-hours each hour: {', '.join(words)}"


def _unheard(found: FleetView, about: Range) -> str:
    silent = any(group.jobs for group in found.groups)
    if found.filters.show is Show.ARCHIVED:
        return "No job of the archive has sent a session in this time" if silent else EMPTY
    if silent or about.end is not None:
        return f"No job has sent a session in {about.words}"
    return "No job is connected yet: three lines, and its first verdict is here after 50 steps"


def _quiet_state(job: Standing) -> StateLabel:
    return FINISHED_STATE if job.finished else SILENT_STATE
