"""Page of the fleet: sums over all jobs, a page of them, live jobs, and lost time by session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from markupsafe import Markup

from app.analysis.budget.split import Part, Shares
from app.analysis.wording import hours
from app.incidents.pages.parts import STATES
from app.jobs.current import FLEET, Loss, Show
from app.jobs.fleet import FleetView, Group
from app.jobs.pages.query import FilterBar, FleetQuery, filter_bar
from app.jobs.pages.tables import (
    LOSS_WORDS,
    SessionLine,
    job_attributes,
    job_columns,
    job_line,
    silent_columns,
)
from app.jobs.time_axis import TimePoint
from app.pulse.follow import LiveStep
from app.web import html
from app.web.format import count, percent, plural, rough_percent, seconds
from app.web.forms import Choice
from app.web.links import Address, job_url
from app.web.parts import FINISHED_STATE, SILENT_STATE, StateLabel, job_state
from app.web.tables import Drawn, Shown, drawn, pager, sorted_by
from app.web.time_ranges import Range, RangeChoices, range_choices

# Least relative change of the step time that is shown.
_CHANGED: Final = 0.02
# Largest number of live jobs without a session that the page lists.
_NAMED: Final = 12


@dataclass(frozen=True, slots=True)
class LiveJobs:
    """Jobs with a live pulse, by name, and a summary of them."""

    by_name: Mapping[str, LiveStep]
    words: str
    # name, address and step time of each live job that has no session
    unrecorded: Sequence[tuple[str, str, str]]
    unrecorded_more: int


def live_jobs(steps: Sequence[LiveStep]) -> LiveJobs:
    """Return the live jobs of the fleet's page."""
    suspected = sum(bool(step.suspicions) for step in steps)
    words = f"{count(len(steps))} live" if steps else ""
    if suspected:
        words += f", {count(suspected)} suspected"
    without = [step for step in steps if not step.recorded]
    return LiveJobs(
        {step.job: step for step in steps},
        words,
        [(step.job, job_url(step.job), words_of(step)) for step in without[:_NAMED]],
        max(0, len(without) - _NAMED),
    )


LIVE: Final[Shown[SessionLine]] = Shown(
    "Live",
    lambda line: _cell(line.live),
    classes="num opt",
    hint="Step time of the last minute, and its change against the last hour",
    title=lambda line: words_of(line.live),
)


def words_of(live: LiveStep | None) -> str:
    """Return a live job's step time, change and suspicions as texts; "" if the job is not live."""
    if live is None:
        return ""
    changed = _change(live)
    step = f"A step takes {seconds(live.step_s)}{f', {changed}' if changed else ''}"
    return ". ".join([step, *live.suspicions])


def _cell(live: LiveStep | None) -> Markup | str:
    if live is None:
        return html.NOTHING
    step = seconds(live.step_s)
    if live.suspicions:
        return html.join((html.glyph("pending", "suspected"), " ", step))
    changed = _change(live)
    return html.join((step, " ", html.muted(changed))) if changed else step


def _change(live: LiveStep) -> str:
    if abs(live.change) < _CHANGED:
        return ""
    return f"{'+' if live.change > 0 else ''}{percent(live.change, 0)}"


# Share of the total loss from which on the heading names a job.
NAMED_SHARE: Final = 0.3
# Largest number of silent jobs with which their list is open on the page.
SILENT_OPEN: Final = 10
# Least loss in GPU-hours that a text names; a smaller one would read 0.0 GPU-hours.
_LEAST: Final = 0.05
# Relative tolerance for comparisons of floating-point sums.
_NEARLY: Final = 1 + 1e-6
EMPTY: Final = "The archive is empty"


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The fleet page; `jobs` have data in the chosen period, `silent` jobs are in no sum."""

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
    view: FleetView, query: FleetQuery, about: Range, running: Sequence[LiveStep] = ()
) -> FleetPage:
    """Return the fleet page.

    Parameters
    ----------
    running : sequence of LiveStep
        Jobs with a live pulse.
    """
    groups = view.groups
    with_data = [group for group in groups if group.has_data]
    silent = view.silent.total
    words: Counter[StateLabel] = Counter()
    for group in with_data:
        label = FINISHED_STATE if group.finished else job_state(group.state, slow=group.slow)
        words[label if group.incident is None else STATES[group.incident]] += group.matching
    finished = sum(group.matching for group in groups if group.finished and not group.has_data)
    words[FINISHED_STATE] += finished
    states = [
        (state, f"{count(number)} {state.word.lower()}")
        for state, number in sorted(words.items(), key=lambda item: item[0].order)
        if number
    ]
    if silent > finished:
        states.append((SILENT_STATE, f"{count(silent - finished)} silent"))
    address, page, quiet = query.address(about), view.page, view.silent
    live = live_jobs(running)
    shown, jobs = job_columns(view.now, query, address), sum(group.jobs for group in with_data)
    if any(job.name in live.by_name for job in page.rows):
        shown = (*shown[:-1], LIVE, shown[-1])
    return FleetPage(
        now=view.now,
        title=f"Fleet: {_short(with_data, silent)}",
        heading=_heading(view, about),
        lost_to=_lost_to(with_data),
        states=tuple(states),
        tabs=query.tabs(about),
        bar=filter_bar(query, about, view),
        jobs=drawn(
            shown,
            [replace(job_line(job), live=live.by_name.get(job.name)) for job in page.rows],
            csv=Address("/fleet/jobs.csv", address.parameters).but(),
            classes="fleet jobs",
            headings=sorted_by(FLEET, shown, address),
            pager=pager(page, address),
            attributes=job_attributes,
        ),
        list_title=_list_title(view, jobs),
        nothing="" if page.rows else _nothing(view, jobs),
        silent=drawn(
            silent_columns(view.now),
            [
                replace(
                    job_line(job),
                    state=FINISHED_STATE if job.finished else SILENT_STATE,
                    kind="silent",
                )
                for job in quiet.rows
            ],
            csv=Address("/fleet/silent.csv", address.parameters).but(sort=None),
            classes="fleet silent",
            pager=pager(
                quiet,
                Address(
                    address.path,
                    {**address.parameters, "page": str(page.number) if page.number > 1 else ""},
                ),
                "silent",
                "#silent",
            ),
            attributes=job_attributes,
        ),
        silent_title=_silent_title(view, about),
        silent_open=silent <= SILENT_OPEN or query.filtered.narrowed or quiet.number > 1,
        range=range_choices(about),
        archived=query.archived,
        live=live,
        live_title=f"{plural(len(live.unrecorded) + live.unrecorded_more, 'job')} live, without a "
        "session yet"
        if live.unrecorded
        else "",
    )


def _short(with_data: Sequence[Group], silent: int) -> str:
    if matching := sum(group.matching for group in with_data):
        slow = sum(group.matching for group in with_data if group.slow)
        return f"{count(slow)} of {plural(matching, 'job')} slow"
    if silent:
        return plural(silent, "silent job")
    return "no job matches" if with_data else "no job yet"


def _list_title(view: FleetView, jobs: int) -> str:
    matching = view.page.total
    of_all = "" if matching == jobs else f" of {count(jobs)}"
    if view.page.pages == 1:
        return f"{count(matching)}{of_all} {'job' if matching == 1 and not of_all else 'jobs'}"
    first, last = view.page.first, view.page.last
    suffix = "" if matching == jobs else " found"
    return f"Jobs {count(first)} to {count(last)} of {count(matching)}{suffix}"


def _nothing(view: FleetView, jobs: int) -> str:
    if view.filters.narrowed and not view.silent.rows:
        return "No job matches."
    return "No job with data in this time matches." if jobs else ""


def _silent_title(view: FleetView, about: Range) -> str:
    silent_groups = [group for group in view.groups if not group.has_data]
    finished = sum(group.jobs for group in silent_groups if group.finished)
    silent = sum(group.jobs for group in silent_groups) - finished
    who = "1 job is silent" if silent == 1 else f"{count(silent)} jobs are silent"
    title = f"{who}: no session in {about.words}" if silent or not finished else ""
    if finished:
        title += f"{'; ' if title else ''}{plural(finished, 'job')} finished"
    matching = view.silent.total
    if matching != silent + finished:
        title += f"; {count(matching)} {'matches' if matching == 1 else 'match'}"
    return title


def _heading(view: FleetView, about: Range) -> str:
    """Return a sentence with the loss of the matching jobs, or why no loss is known."""
    with_data = [group for group in view.groups if group.has_data]
    if not with_data:
        silent = any(group.jobs for group in view.groups)
        if view.filters.show is Show.ARCHIVED:
            return "No job of the archive has sent a session in this time" if silent else EMPTY
        if silent or about.end is not None:
            return f"No job has sent a session in {about.words}"
        return "No job is connected yet: three lines, and its first verdict is here after 50 steps"
    jobs = sum(group.matching for group in with_data)
    matching = "matching " if view.filters.has_criteria else ""
    if not jobs:
        return f"No job with data in {about.words} matches"
    with_verdict = sum(group.with_verdict for group in with_data)
    if not with_verdict:
        return f"{plural(jobs, f'{matching}job')}, no verdict yet"
    lost, gpus = sum(group.lost for group in with_data), sum(group.gpus for group in with_data)
    who = plural(jobs, f"{matching}job")
    to_stragglers = all(group.lost <= _NEARLY * group.wasted for group in with_data)
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
    first = max((group for group in with_data if group.with_verdict), key=lambda group: group.most)
    if with_verdict > 1 and lost > 0 and first.most >= NAMED_SHARE * lost:
        sentence += f"; {first.job} alone loses {rough_percent(first.most / lost)} of them"
    return sentence


def _lost_to(with_data: Sequence[Group]) -> str:
    """Return the losses of the matching jobs by kind; "" if stragglers are the only kind."""
    gpus = sum(group.gpus for group in with_data)
    parts = {
        Loss.STRAGGLERS: sum(group.wasted for group in with_data),
        Loss.BETWEEN: sum(group.between for group in with_data),
        Loss.TOGETHER: sum(group.together for group in with_data),
    }
    shown = {loss: lost for loss, lost in parts.items() if lost >= _LEAST}
    if not gpus or shown.keys() <= {Loss.STRAGGLERS}:
        return ""
    words = (
        f"{hours(lost)} {LOSS_WORDS[loss]} ({rough_percent(lost / gpus)})"
        for loss, lost in shown.items()
    )
    return f"By kind, GPU-hours each hour: {', '.join(words)}"


# Largest number of columns that can be distinguished on a narrow page.
MOST: Final = 120
# Share of the time; parts that are smaller in every session are omitted from the legend.
_SHOWN: Final = 0.005
# Least height of a drawn piece in per cent; lower pieces would be invisible.
_DRAWN: Final = 0.05
# Gap on either side of a column, as a share of its width.
_GAP: Final = 0.04
# Order of the parts in a column, from the bottom up; lost parts are on top.
_STACKED: Final = tuple(sorted(Part, key=lambda part: part.lost))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a session's time in a column; position from the top, and height, in per cent."""

    part: str
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class SessionColumn:
    """A session as a stacked column; `words` is the session's lost share as a text."""

    words: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class BudgetOverTime:
    """Parts of the time of the latest sessions with a known budget, oldest first."""

    title: str
    columns: tuple[SessionColumn, ...]
    paths: tuple[tuple[str, str], ...]  # (part, SVG path of its pieces), a column one unit wide
    names: tuple[tuple[str, str], ...]  # legend: (part, its name)


def budget_over_time(points: Sequence[TimePoint]) -> BudgetOverTime | None:
    """Return the parts of the sessions' time; None if no session has a known time budget."""
    sessions = [(point, point.shares) for point in points if point.shares is not None][-MOST:]
    if not sessions:
        return None
    latest, shares = sessions[-1]
    most = max((part for part in Part if part.lost), key=shares.of)
    said = f"{rough_percent(shares.lost)} of session {latest.number} is lost"
    columns = tuple(_column(point.number, of) for point, of in sessions)
    return BudgetOverTime(
        title=f"{said}, most of it by {most.words}" if shares.lost >= _SHOWN else said,
        columns=columns,
        paths=tuple((part.value, _path(part, columns)) for part in _STACKED),
        names=tuple(
            (part.value, f"{part.words[0].upper()}{part.words[1:]}")
            for part in _STACKED
            if any(of.of(part) >= _SHOWN for _, of in sessions)
        ),
    )


def _path(part: Part, columns: Sequence[SessionColumn]) -> str:
    """Return the pieces of a part as one SVG path; separate elements would make the page long."""
    return "".join(
        f"M{at + _GAP:g} {piece.top:.2f}h{1 - 2 * _GAP:g}v{piece.height:.2f}h-{1 - 2 * _GAP:g}z"
        for at, column in enumerate(columns)
        for piece in column.pieces
        if piece.part == part and piece.height >= _DRAWN
    )


def _column(number: int, shares: Shares) -> SessionColumn:
    pieces, top = [], 100.0
    for part in _STACKED:
        height = 100 * shares.of(part)
        top -= height
        pieces.append(Piece(part.value, top, height))
    return SessionColumn(f"Session {number}: {percent(shares.lost)} lost", tuple(pieces))
