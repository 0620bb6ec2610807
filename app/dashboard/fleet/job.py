"""What a job's page shows: how it stands, its incidents, and its sessions over a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from app.analysis.replay.metrics import STRAGGLING
from app.dashboard.fleet.axis import NAMES, MarkRow, axis_figure, mark_rows, panels_of
from app.dashboard.fleet.before_after import around_change, compare_url
from app.dashboard.fleet.budget import BudgetOverTime, budget_over_time
from app.dashboard.fleet.first_axis import FirstPanel, first_axis
from app.dashboard.fleet.history import change_text, history_finding
from app.dashboard.fleet.lines import session_row, shown_session
from app.dashboard.fleet.tables import row_attributes, session_columns
from app.dashboard.ui.address import Address
from app.dashboard.ui.format import count, plural, times
from app.dashboard.ui.parts import FINISHED_STATE, StateLabel, job_state, since_when
from app.dashboard.ui.places import job_url
from app.dashboard.ui.ranges import ALL, Range, RangeChoices, range_choices
from app.dashboard.ui.tables import Drawn, drawn, pager, sorted_by
from app.db.states import NoteKind, SessionState
from app.services.history.axis import MarkKind
from app.services.sessions.read import SESSIONS

if TYPE_CHECKING:
    from app.dashboard.alerts.parts import Actions
    from app.lists.pages import Page
    from app.services.history.axis import JobAxis
    from app.services.sessions.fleet import Fleet
    from app.services.sessions.history import JobHistory
    from app.services.sessions.read import SessionRow


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A change that lasted, in words, and the sessions around it side by side."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """A job's page."""

    now: datetime
    name: str
    archived: bool
    title: str
    heading: str
    state: StateLabel
    sizes: str
    # addresses by what they are called
    links: Mapping[str, str]
    since: str
    counted: str
    incidents: Sequence[Actions]
    range: RangeChoices
    sessions: Drawn
    sessions_title: str
    figure: Mapping[str, Any] | None
    panels: int
    first: Sequence[FirstPanel]
    finding: str
    budget: BudgetOverTime | None
    drawn: str
    changes: Sequence[ChangeLine]
    marks: Sequence[MarkRow]
    marks_title: str
    csv: Mapping[str, str]
    note_kinds: Sequence[tuple[str, str]]
    # whether two of its sessions have a verdict
    comparable: bool
    # the latest session, if it is slow, next to the last good one; empty where there is none
    last_good_url: str


def job_page(  # noqa: PLR0913 - everything that is on it
    fleet: Fleet,
    found: JobHistory,
    times_of: JobAxis,
    *,
    incidents: Sequence[Actions],
    about: Range,
    address: Address,
) -> JobPage:
    """Return the page of the only job of `fleet`.

    Parameters
    ----------
    times_of : JobAxis
        The same with the events in that time.
    """
    job = fleet.jobs[0]
    shown, onset = shown_session(job), found.onset
    row = session_row(job.name, job.latest)
    verdicts = [(p.number, p.slowdown) for p in times_of.points if p.slowdown is not None]
    csv = {name: _csv_url(address, job.name, name) for name in ("sessions", "marks")}
    shown_columns = session_columns(fleet.now)
    return JobPage(
        now=fleet.now,
        name=job.name,
        archived=job.archived,
        title=f"{job.name}: {_said(shown)}",
        heading=job_heading(shown),
        state=FINISHED_STATE if job.finished else row.state,
        sizes=f"{row.sizes} · {plural(row.gpus, 'GPU')}",
        links=found.links,
        since="" if onset is None else since_when(onset, fleet.now),
        counted=f"{plural(found.page.total, 'session')}{'' if about.name == ALL else _in(about)}",
        incidents=incidents,
        range=range_choices(about, with_all=True),
        sessions=drawn(
            shown_columns,
            [session_row(job.name, session) for session in found.page.rows],
            csv=csv["sessions"],
            classes="fleet sessions",
            headings=sorted_by(SESSIONS, shown_columns, address),
            pager=pager(found.page, address),
            attributes=row_attributes,
        ),
        sessions_title=_sessions_title(found.page, about),
        figure=axis_figure(times_of) if verdicts else None,
        panels=panels_of(times_of),
        first=first_axis(times_of) if verdicts else (),
        finding=history_finding(found, verdicts[-1] if verdicts else None, onset),
        budget=budget_over_time(times_of.points),
        drawn=""
        if len(times_of.points) == found.page.total
        else f"; the latest {count(len(times_of.points))} of {count(found.page.total)}",
        changes=[
            ChangeLine(change_text(change, fleet.now), around_change(times_of.points, change))
            for change in times_of.changes
        ],
        marks=mark_rows(times_of),
        marks_title=f"{plural(len(times_of.marks), 'mark')}{_in(about)}"
        if times_of.marks
        else f"Nothing is marked{_in(about)}",
        csv=csv,
        note_kinds=[(kind.value, NAMES[MarkKind(kind.value)]) for kind in NoteKind],
        last_good_url=compare_url(found.last_good, shown.id)
        if found.last_good is not None and _is_slow(shown)
        else "",
        comparable=sum(session.headline is not None for session in job.sessions) > 1,
    )


def _is_slow(session: SessionRow) -> bool:
    return session.headline is not None and session.headline.slowdown >= STRAGGLING


def _csv_url(address: Address, job: str, name: str) -> str:
    """Return where a table of the page is as CSV, over the same time."""
    parameters = {key: address.parameters.get(key, "") for key in ("range", "from", "to")}
    return Address(f"{job_url(job)}/{name}.csv", parameters).but()


def _in(about: Range) -> str:
    return f" in {about.words}"


def _sessions_title(page: Page[SessionRow], about: Range) -> str:
    if not page.total:
        return f"No session{_in(about)}"
    if page.pages == 1:
        return f"{plural(page.total, 'session')}"
    return f"Sessions {count(page.first)} to {count(page.last)} of {count(page.total)}"


def _said(session: SessionRow) -> str:
    if session.headline is not None:
        return f"{times(session.headline.slowdown)} in session {session.number}"
    return f"session {session.number} {job_state(session.state, slow=False).word.lower()}"


def job_heading(session: SessionRow) -> str:
    """Return what is said first of a job, by the session whose numbers stand for it."""
    if session.state is SessionState.ANALYZED and session.verdict is not None:
        return session.verdict.sentence
    return session.reason or {
        SessionState.NO_VERDICT: "The latest session has no verdict",
        SessionState.FAILED: "The analysis of the latest session failed",
        SessionState.DISCARDED: "The latest session was discarded",
    }.get(session.state, "The first session is being analyzed")
