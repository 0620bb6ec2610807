"""Lines of tables about jobs and sessions: what stands in their cells, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from app.analysis.diagnosis.causes.registry import KINDS, title_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.wording import hours
from app.dashboard.alerts.parts import STATES
from app.dashboard.ui.format import (
    heat_color,
    interval,
    percent,
    plural,
    rough_percent,
    short_sizes,
    sizes,
    times,
    worker,
)
from app.dashboard.ui.parts import (
    FINISHED_STATE,
    SLOW_STATE,
    Sparkline,
    StateLabel,
    job_state,
    sparkline,
)
from app.db.states import SessionState

if TYPE_CHECKING:
    from app.analysis.budget.document import Losses
    from app.analysis.report.verdict import Slowdown, VerdictCause
    from app.services.fleet.rows import Standing
    from app.services.pulse.fleet import LiveStep
    from app.services.sessions.fleet import JobSummary
    from app.services.sessions.read import SessionRow

# A longer reason gives way to its code in a table, characters.
SHORT_REASON: Final = 60


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
    short_sizes: str  # without the names of what is always there
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
    # of the job
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    # what of the time is lost to what; empty where that is not known
    losses: Losses | None = None
    stragglers: str = ""
    between: str = ""
    together: str = ""
    # its last minute, where its pulse comes now
    live: LiveStep | None = None

    @property
    def standing(self) -> StateLabel:
        """Return the state of its most pressing incident, or else its own."""
        return self.incident or self.state


def session_row(job: str, session: SessionRow, *, shown: SessionRow | None = None) -> SessionLine:
    """Return a line about a session.

    Parameters
    ----------
    session : SessionRow
        The session whose state and age the line shows.
    shown : SessionRow, optional
        An earlier session whose numbers the line shows instead, because this one has none yet.
    """
    numbers = shown or session
    measured, verdict = numbers.headline, numbers.verdict
    slowdown = measured.slowdown if measured else None
    slow = verdict is not None and _is_slow(verdict.level, slowdown)
    first = leading_cause(numbers)
    lost = numbers.lost_each_hour
    published = verdict.published if measured and verdict else None
    # S says nothing of what is lost between steps, or by all workers together.
    lost_to_steps = verdict is None or measured is None or verdict.lost == measured.waste
    state = job_state(session.state, slow=slow)
    losses = numbers.losses
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
        published="" if published is None else times(published.slowdown),
        against=_against(measured),
        lost_each_hour=lost,
        lost_each_hour_text="" if lost is None else hours(lost),
        cause=title_of(first.cause) if first else _reason(session),
        cause_share=_share(first, measured, lost_to_steps=lost_to_steps)
        if measured or not first
        else _reason(session),
        where=where_words(first) if first else "",
        gpus=session.world,
        sizes=sizes(session.dp, session.pp, session.tp, session.cp, session.vpp),
        short_sizes=short_sizes(session.dp, session.pp, session.tp, session.cp, session.vpp),
        steps=session.steps,
        operations=session.operations,
        discrepancy=percent(session.verdict.discrepancy) if session.verdict else "",
        received_at=session.received_at,
        host=first.host or "" if first and _names_one(first) else "",
        kind="slow" if state is SLOW_STATE else "none" if slowdown is None else "quiet",
        losses=losses,
        stragglers="" if losses is None else rough_percent(losses.stragglers),
        between="" if losses is None else rough_percent(losses.between),
        together="" if losses is None else rough_percent(losses.together),
    )


def leading_cause(session: SessionRow) -> VerdictCause | None:
    """Return the cause that a line names; None where nothing is blamed."""
    verdict, measured = session.verdict, session.headline
    if verdict is None:
        return None
    slowdown = None if measured is None else measured.slowdown
    return named_cause(session.state, verdict.level, slowdown, verdict.causes)


def named_cause(
    state: SessionState, level: str | None, slowdown: float | None, causes: Sequence[VerdictCause]
) -> VerdictCause | None:
    """Return the cause that is named of a verdict; None where nothing is blamed.

    Parameters
    ----------
    slowdown : float or None
        None where the verdict on S is withheld; a cause may be known nevertheless.
    """
    if slowdown is None:
        known = causes if state == SessionState.NO_VERDICT else ()
        return next((one for one in known if one.cause != UNKNOWN), None)
    return causes[0] if causes and _is_slow(level, slowdown) else None


def _is_slow(level: str | None, slowdown: float | None) -> bool:
    return slowdown is not None and (level == "slow" or slowdown >= STRAGGLING)


def _share(cause: VerdictCause | None, measured: Slowdown | None, *, lost_to_steps: bool) -> str:
    """Return what share a cause has, and that the slowdown is S where that is what is lost."""
    by_s = lost_to_steps and measured is not None and not measured.kind.without_causes
    if cause is None:
        return "no cause, by S" if by_s else ""
    share = rough_percent(cause.contribution or 0.0)
    return f"{share}, by S" if by_s else share


def _against(measured: Slowdown | None) -> str:
    """Return what a slowdown is counted against."""
    if measured is None:
        return ""
    if measured.kind.without_causes:
        return "against the job without its causes"
    return "published S: no cause explains it"


def job_line(job: Standing) -> SessionLine:
    """Return the line of a job."""
    row = session_row(job.name, job.latest, shown=job.told)
    if job.finished:
        row = replace(row, state=FINISHED_STATE, lost_each_hour=None, lost_each_hour_text="")
    return replace(
        row,
        incident=None if job.incident is None else STATES[job.incident.state],
        incident_url="" if job.incident is None else f"/incidents/{job.incident.id}",
        spark=sparkline(job.slowdowns) if job.slowdowns else None,
        owner=job.labels.get("owner", ""),
        labels=dict(sorted(job.labels.items())),
    )


def shown_session(job: JobSummary) -> SessionRow:
    """Return the session whose numbers stand for a job: the latest that is through."""
    through = [session for session in job.sessions if session.state not in SessionState.UNDERWAY]
    return through[-1] if through else job.latest


def _reason(session: SessionRow) -> str:
    verdict = session.verdict
    discrepancy = None if verdict is None else verdict.discrepancy
    return reason_words(session.state, discrepancy, session.reason, session.reason_code)


def reason_words(
    state: SessionState, discrepancy: float | None, reason: str | None, code: str | None
) -> str:
    """Return why a session has no verdict; empty where it has one, or is under way."""
    if state == SessionState.NO_VERDICT and discrepancy is not None:
        return f"replay {percent(discrepancy)} off"
    if state in SessionState.UNREPORTED:
        return reason if reason and len(reason) <= SHORT_REASON else code or ""
    return ""


def _names_one(cause: VerdictCause) -> bool:
    """Return whether a cause names one place, whose host can be linked to."""
    return len(cause.place.workers) == 1 or bool(cause.place.ranks)


def where_words(cause: VerdictCause) -> str:
    """Return the place that a line names; empty where there is none."""
    kind = KINDS.get(cause.cause)
    if kind is not None and kind.everywhere:
        return "all DP ranks"
    where, workers = cause.place, cause.place.workers
    if not workers:
        return "" if where.stage is None else f"stage {where.stage}"
    if len(workers) > 1 and not where.ranks:
        return plural(len(workers), "worker")
    if not cause.gpus:
        # Analyzed before GPUs were stored with it.
        return ", ".join(filter(None, (cause.host, f"worker {worker(*workers[0])}")))
    at = cause.gpus[0]
    host = at.host_words or f"worker {worker(*workers[0])}"
    if at.one_of > 1:
        return f"{host}, 1 of {at.one_of} GPUs"
    return ", ".join(filter(None, (host, at.gpu_words or f"rank {at.rank}")))
