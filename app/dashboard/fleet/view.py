"""What the fleet page shows, made from the jobs and their latest sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from app.alerts.states import IncidentState
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.causes.sequence_lengths import SEQUENCE_LENGTHS
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.wording import hours
from app.dashboard.alerts.parts import STATES
from app.dashboard.look.format import (
    count,
    heat_color,
    interval,
    percent,
    plural,
    rough_percent,
    sizes,
    times,
    worker,
)
from app.dashboard.look.parts import (
    SILENT_STATE,
    SLOW,
    SLOW_STATE,
    Sparkline,
    StateLabel,
    job_state,
    sparkline,
    verdict_values,
)
from app.dashboard.look.ranges import DAY, Range, RangeChoices, range_choices, range_of
from app.db.states import SessionState

if TYPE_CHECKING:
    from app.analysis.report.summary import Summary, SummaryCause
    from app.services.alerts.incident_reads import IncidentRow
    from app.services.sessions.fleet import Fleet, JobSummary
    from app.services.sessions.read import SessionRow, ShownSlowdown

# A longer reason gives way to its code in a table, characters.
SHORT_REASON: Final = 60
# A job is worth naming in the heading when it loses this share of all that is lost.
NAMED_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class SessionLine:
    """One line of a table of jobs or of sessions."""

    state: StateLabel
    status: SessionState
    name: str
    url: str
    session_url: str
    number: int
    slowdown: float | None
    slowdown_text: str
    color: str
    interval: str
    published: str
    against: str
    lost_each_hour: float | None
    lost_each_hour_text: str
    cause: str
    cause_share: str
    where: str
    gpus: int
    sizes: str
    steps: int
    operations: int
    discrepancy: str
    received_at: datetime
    # the group by which the fleet page filters
    kind: str
    # that `where` begins with
    host: str = ""
    spark: Sparkline | None = None
    incident: StateLabel | None = None
    incident_url: str = ""

    @property
    def standing(self) -> StateLabel:
        """Return the state of its most pressing incident, or else its own."""
        return self.incident or self.state


@dataclass(frozen=True, slots=True)
class FleetPage:
    """The fleet page; without any job it is the page that says how to send a first trace.

    `jobs` are those with data in the chosen time; the silent ones count nowhere else.
    """

    now: datetime
    title: str
    heading: str
    states: tuple[tuple[StateLabel, str], ...]
    jobs: tuple[SessionLine, ...]
    slow: int
    without: int
    silent: tuple[SessionLine, ...]
    silent_title: str
    range: RangeChoices


def fleet_page(
    fleet: Fleet,
    incidents: Mapping[str, Sequence[IncidentRow]] | None = None,
    about: Range | None = None,
) -> FleetPage:
    """Return the fleet page, what needs attention first.

    Parameters
    ----------
    fleet : Fleet
        By the end of the chosen time.
    incidents : mapping of str to sequence of IncidentRow, optional
        Open ones by job.
    about : Range, optional
        The chosen time; a day where none is given.
    """
    about = range_of(DAY, "", "") if about is None else about
    since = about.since(fleet.now)
    lines = {job.name: _job_row(job, (incidents or {}).get(job.name, ())) for job in fleet.jobs}
    heard = [job for job in fleet.jobs if since is None or job.latest.received_at >= since]
    rows = sorted(
        (lines[job.name] for job in heard),
        key=lambda row: (row.standing.order, -(row.slowdown or 0.0), row.name),
    )
    names = {job.name for job in heard}
    silent = sorted(
        (_silent(line) for name, line in lines.items() if name not in names),
        key=lambda row: (row.standing.order, -row.received_at.timestamp(), row.name),
    )
    slow = sum(row.kind == "slow" for row in rows)
    words = Counter(row.standing for row in rows)
    states = [
        (state, f"{number} {state.word.lower()}")
        for state, number in sorted(words.items(), key=lambda item: item[0].order)
    ]
    if silent:
        states.append((SILENT_STATE, f"{count(len(silent))} silent"))
    return FleetPage(
        now=fleet.now,
        title=f"Fleet: {_short(rows, silent, slow)}",
        heading=_heading(heard, about, since, silent=len(silent)),
        states=tuple(states),
        jobs=tuple(rows),
        slow=slow,
        without=sum(row.kind == "none" for row in rows),
        silent=tuple(silent),
        silent_title=_silent_title(len(silent), about),
        range=range_choices(about),
    )


def _silent(line: SessionLine) -> SessionLine:
    return replace(line, state=SILENT_STATE, kind="silent")


def _short(rows: Sequence[SessionLine], silent: Sequence[SessionLine], slow: int) -> str:
    if rows:
        return f"{slow} of {plural(len(rows), 'job')} slow"
    return f"{plural(len(silent), 'silent job')}" if silent else "no job yet"


def _silent_title(silent: int, about: Range) -> str:
    who = "1 job is silent" if silent == 1 else f"{count(silent)} jobs are silent"
    return f"{who}: no session in {about.words}"


def session_row(job: str, session: SessionRow, *, shown: SessionRow | None = None) -> SessionLine:
    """Return a line about a session.

    Parameters
    ----------
    job : str
        Name of its job.
    session : SessionRow
        The session whose state and age the line shows.
    shown : SessionRow, optional
        An earlier session whose numbers the line shows instead, because this one has none yet.
    """
    numbers = shown or session
    measured = numbers.shown
    slowdown = measured.slowdown if measured else None
    headline = numbers.headline if measured else None
    slow = slowdown is not None and (
        (headline is not None and headline.level == "slow") or slowdown >= SLOW
    )
    first = headline.causes[0] if slow and headline and headline.causes else None
    lost = numbers.world * measured.waste if measured else None
    published = numbers.slowdown if measured else None
    state = job_state(session.state, slow=slow)
    return SessionLine(
        state=state,
        status=session.state,
        name=job,
        url=f"/jobs/{quote(job)}",
        session_url=f"/sessions/{session.id}",
        number=session.number,
        slowdown=slowdown,
        slowdown_text="none" if slowdown is None else times(slowdown),
        color="" if slowdown is None else heat_color(slowdown),
        interval=interval(*measured.ci95) if measured and measured.ci95 else "",
        published="" if published is None else times(published),
        against=_against(measured),
        lost_each_hour=lost,
        lost_each_hour_text="" if lost is None else hours(lost),
        cause=title_of(first.cause) if first else _reason(session),
        cause_share=_share(first, measured),
        where=_where(first, headline) if first and headline else "",
        gpus=session.world,
        sizes=sizes(session.dp, session.pp, session.tp, session.cp, session.vpp),
        steps=session.steps,
        operations=session.operations,
        discrepancy="" if session.discrepancy is None else percent(session.discrepancy),
        received_at=session.received_at,
        host=_host(first, headline) if first and headline else "",
        kind="slow" if state is SLOW_STATE else "none" if slowdown is None else "quiet",
    )


def _share(cause: SummaryCause | None, measured: ShownSlowdown | None) -> str:
    """Return what share a cause has, and that the slowdown is S where it is."""
    by_s = measured is not None and measured.kind is not HeadlineKind.CAUSES
    if cause is None:
        return "none, by S" if by_s else ""
    share = rough_percent(cause.contribution or 0.0)
    return f"{share}, by S" if by_s else share


def _against(measured: ShownSlowdown | None) -> str:
    """Return what a slowdown is counted against."""
    if measured is None:
        return ""
    if measured.kind is HeadlineKind.CAUSES:
        return "against the job without its causes"
    if measured.kind is HeadlineKind.PUBLISHED:
        return "published S: no cause explains it"
    return "published S, until the session is analyzed again"


def _job_row(job: JobSummary, incidents: Sequence[IncidentRow]) -> SessionLine:
    row = session_row(job.name, job.latest, shown=shown_session(job))
    if incidents:
        first = min((i.incident for i in incidents), key=lambda i: STATES[i.state].order)
        # A pending incident hides neither a missing verdict nor a failure.
        if first.state is not IncidentState.PENDING or job.latest.state == SessionState.ANALYZED:
            row = replace(row, incident=STATES[first.state], incident_url=f"/incidents/{first.id}")
    values = verdict_values(job.sessions)
    return replace(row, spark=sparkline(values) if values else None)


def shown_session(job: JobSummary) -> SessionRow:
    """Return the session whose numbers stand for a job: the latest that is through."""
    through = [session for session in job.sessions if session.state not in SessionState.UNDERWAY]
    return through[-1] if through else job.latest


def _reason(session: SessionRow) -> str:
    if session.state == SessionState.NO_VERDICT and session.discrepancy is not None:
        return f"replay differs by {percent(session.discrepancy)}"
    if session.state in SessionState.UNREPORTED:
        reason = session.reason or ""
        return reason if 0 < len(reason) <= SHORT_REASON else session.reason_code or ""
    return ""


def _where(cause: SummaryCause, headline: Summary) -> str:
    if cause.cause == SEQUENCE_LENGTHS.name:
        return "all DP ranks"
    where, workers = cause.where, cause.where.workers
    if not workers:
        return "" if where.stage is None else f"stage {where.stage}"
    if where.ranks:
        return f"rank {where.ranks[0]}, worker {worker(*workers[0])}"
    if len(workers) > 1:
        return plural(len(workers), "worker")
    host = _host(cause, headline)
    return f"{host}, worker {worker(*workers[0])}" if host else f"worker {worker(*workers[0])}"


def _host(cause: SummaryCause, headline: Summary) -> str:
    """Return the host of a cause that names one worker, where it is known."""
    workers, worst = cause.where.workers, headline.worst
    if len(workers) != 1 or cause.where.ranks or cause.cause == SEQUENCE_LENGTHS.name:
        return ""
    # What version 0.1.0 stored of a cause has no host; the slowest worker's may be another's.
    return cause.host or (worst.host if (worst.dp, worst.pp) == workers[0] else None) or ""


def _heading(
    heard: Sequence[JobSummary], about: Range, since: datetime | None, *, silent: int
) -> str:
    if not heard:
        if silent or about.end is not None:
            return f"No job has sent a session in {about.words}"
        return "No job is connected yet: three lines, and its first verdict is here after 50 steps"
    # A verdict from before is not of this time, even where a session that waits is.
    told = {
        job.name: (shown.world, shown.shown.waste)
        for job in heard
        if (shown := shown_session(job)).shown is not None
        and (since is None or shown.received_at >= since)
    }
    rates = {name: world * waste for name, (world, waste) in told.items()}
    if not rates:
        return f"{plural(len(heard), 'job')}, no verdict yet"
    lost = sum(rates.values())
    gpus = sum(world for world, _ in told.values())
    sentence = (
        f"Stragglers cost {hours(lost)} GPU-hours each hour, "
        f"{rough_percent(lost / gpus)} of {plural(gpus, 'GPU')}"
    )
    name, most = max(rates.items(), key=lambda item: item[1])
    if len(rates) > 1 and lost > 0 and most >= NAMED_SHARE * lost:
        sentence += f"; {name} alone loses {rough_percent(most / lost)} of them"
    return sentence
