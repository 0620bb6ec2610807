"""Page of a job: its verdict, incidents, sessions, and their figure over a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from app.analysis.replay.metrics import STRAGGLING
from app.incidents.everywhere import Onset
from app.incidents.message import cause_name
from app.incidents.pages.parts import Actions, since_when
from app.jobs.pages.axis import (
    NAMES,
    FirstPanel,
    MarkRow,
    around_change,
    axis_figure,
    compare_url,
    first_axis,
    mark_rows,
    panels_of,
)
from app.jobs.pages.fleet import BudgetOverTime, budget_over_time
from app.jobs.pages.tables import row_attributes, session_columns, session_row, shown_session
from app.jobs.time_axis import JobAxis, JobChange, MarkKind, Measure
from app.platform.database.states import NoteKind, SessionState
from app.sessions.history import Fleet, JobHistory
from app.sessions.read import SESSIONS, SessionRow
from app.web.format import count, plural, seconds, times
from app.web.links import Address, job_url
from app.web.lists import Page
from app.web.moments import when
from app.web.parts import FINISHED_STATE, StateLabel, job_state
from app.web.tables import Drawn, drawn, pager, sorted_by
from app.web.time_ranges import ALL, Range, RangeChoices, range_choices


def history_finding(
    history: JobHistory, latest: tuple[int, float] | None, onset: Onset | None
) -> str:
    """Return a sentence on a job's slowdown over its sessions, the title of the figure.

    Parameters
    ----------
    latest : (int, float) or None
        Number and slowdown of the latest session with a verdict.
    onset : Onset or None
        Start of the current slowdown; None if the latest session is not slow.
    """
    if latest is None or not history.verdicts:
        return "No session has a verdict yet"
    number, slowdown = latest
    if not history.slow:
        return f"Stragglers slow no session: none above {times(history.worst or slowdown)}"
    if onset is None:
        of_all = f"{count(history.slow)} of {count(history.verdicts)}"
        return f"{of_all} sessions were slow; session {number} is not"
    since = "the first session" if onset.was is None else f"session {onset.number}"
    return f"Slow since {since}: {times(slowdown)} in session {number}"


def change_text(change: JobChange, now: datetime) -> Markup:
    """Return a lasting change as a text: ``Slower since 02:35 UTC, session 4: 1.01× → 1.38×``."""
    of_steps = change.measure is Measure.STEP_TIME
    written = seconds if of_steps else times
    what = "Steps longer" if of_steps else "Slower"
    if not change.slower:
        what = "Steps shorter" if of_steps else "Faster"
    text = Markup("{} since {}, session {}: {} → {}").format(
        what, when(change.at, now), change.number, written(change.before), written(change.after)
    )
    if change.cause is not None:
        cause = cause_name(change.cause).lower()
        text += f", {cause}" if change.slower else f", without {cause}"
    return text if change.mark is None else text + f"; last event before it: {change.mark}"


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A lasting change as a text, and the address of the comparison around the change."""

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
    # addresses of links, by the name of the link
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
    comparable: bool  # whether two of its sessions have a verdict
    last_good_url: str  # comparison of a slow latest session with the last good one, or ""


def job_page(  # noqa: PLR0913 - everything that is on it
    fleet: Fleet,
    history: JobHistory,
    times_of: JobAxis,
    *,
    incidents: Sequence[Actions],
    about: Range,
    address: Address,
) -> JobPage:
    """Return the page of the only job in `fleet`; `times_of` holds its sessions and marks."""
    job = fleet.jobs[0]
    shown, onset = shown_session(job), history.onset
    row = session_row(job.name, job.latest)
    verdicts = [(p.number, p.slowdown) for p in times_of.points if p.slowdown is not None]
    period = {key: address.parameters.get(key, "") for key in ("range", "from", "to")}
    csv = {
        name: Address(f"{job_url(job.name)}/{name}.csv", period).but()
        for name in ("sessions", "marks")
    }
    shown_columns = session_columns(fleet.now)
    return JobPage(
        now=fleet.now,
        name=job.name,
        archived=job.archived,
        title=f"{job.name}: {_said(shown)}",
        heading=job_heading(shown),
        state=FINISHED_STATE if job.finished else row.state,
        sizes=f"{row.sizes} · {plural(row.gpus, 'GPU')}",
        links=history.links,
        since="" if onset is None else since_when(onset, fleet.now),
        counted=f"{plural(history.page.total, 'session')}{'' if about.name == ALL else _in(about)}",
        incidents=incidents,
        range=range_choices(about, with_all=True),
        sessions=drawn(
            shown_columns,
            [session_row(job.name, session) for session in history.page.rows],
            csv=csv["sessions"],
            classes="fleet sessions",
            headings=sorted_by(SESSIONS, shown_columns, address),
            pager=pager(history.page, address),
            attributes=row_attributes,
        ),
        sessions_title=_sessions_title(history.page, about),
        figure=axis_figure(times_of) if verdicts else None,
        panels=panels_of(times_of),
        first=first_axis(times_of) if verdicts else (),
        finding=history_finding(history, verdicts[-1] if verdicts else None, onset),
        budget=budget_over_time(times_of.points),
        drawn=""
        if len(times_of.points) == history.page.total
        else f"; the latest {count(len(times_of.points))} of {count(history.page.total)}",
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
        last_good_url=compare_url(history.last_good, shown.id)
        if history.last_good is not None
        and shown.headline is not None
        and shown.headline.slowdown >= STRAGGLING
        else "",
        comparable=sum(session.headline is not None for session in job.sessions) > 1,
    )


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
    """Return the heading of a job's page: the verdict of the session that represents it."""
    if session.state is SessionState.ANALYZED and session.verdict is not None:
        return session.verdict.sentence
    return session.reason or {
        SessionState.NO_VERDICT: "The latest session has no verdict",
        SessionState.FAILED: "The analysis of the latest session failed",
        SessionState.DISCARDED: "The latest session was discarded",
    }.get(session.state, "The first session is being analyzed")
