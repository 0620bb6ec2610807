"""Columns and cells of the tables of jobs, of silent jobs and of a job's sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from markupsafe import Markup

from app.analysis.budget.split import Losses, Part
from app.analysis.diagnosis.causes.registry import KINDS, title_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.session_verdict import Slowdown, VerdictCause
from app.analysis.wording import hours
from app.incidents.pages.parts import STATES
from app.jobs.current import JobStatus, Loss
from app.jobs.pages.query import FleetQuery
from app.platform.database.states import SessionState
from app.pulse.follow import LiveStep
from app.sessions.history import JobSummary
from app.sessions.read import SessionRow
from app.web import html, moments
from app.web.format import (
    count,
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
from app.web.links import Address, job_url
from app.web.parts import FINISHED_STATE, SLOW_STATE, Sparkline, StateLabel, job_state, sparkline
from app.web.tables import Shown

_AGAINST: Final = "Against the job without its causes, else S"
_LOST: Final = "GPU-hours of all ranks: the largest loss, to stragglers, between steps or by all"
_STRAGGLERS: Final = "Share of the time that is lost to stragglers: to what not all workers lose"
_BETWEEN: Final = "Share of the time that is lost between steps, beyond what usually passes there"
_TOGETHER: Final = "Share of the time that is lost in steps in which all workers compute slower"
_TIME_LOST: Final = (
    "Shares of the time: to stragglers, between steps, as all workers compute slower"
)
_TIME_LOST_TO: Final = {
    Loss.STRAGGLERS: _STRAGGLERS,
    Loss.BETWEEN: _BETWEEN,
    Loss.TOGETHER: _TOGETHER,
}
# Continuations of "GPU-hours lost …" and of a share of the time that is lost.
LOSS_WORDS: Final = {
    Loss.STRAGGLERS: "to stragglers",
    Loss.BETWEEN: "between steps",
    Loss.TOGETHER: "as all workers compute slower",
}
# Parts of the time whose colors the kinds of loss have, in the same order.
_LOSSES: Final = (Part.WAITING, Part.BETWEEN_STEPS_ABOVE, Part.SLOW_TOGETHER)
# Width of the bar of lost time in pixels; the full width means half of the time.
_BAR: Final = 32
_INTERVAL: Final = "95\N{NO-BREAK SPACE}% interval"
_SIZES: Final = "DP\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}PP\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}TP"
_PICK_ALL: Final = Markup(
    '<input class="operates" type="checkbox" data-pick-all '
    'aria-label="Select all on this page" disabled>'
)
_PICK: Final = Markup('<span class="vh">Select</span>')


def session_columns(now: datetime) -> tuple[Shown[SessionLine], ...]:
    """Return the columns of the table of a job's sessions."""
    return (
        Shown(
            "Session",
            lambda line: html.link(line.session_url, line.number),
            "number",
            of_cells="number",
        ),
        Shown("State", lambda line: html.state(line.state), "state"),
        Shown("Slowdown", _slowdown, "slowdown", "num", _AGAINST, title=lambda line: line.against),
        Shown(_INTERVAL, lambda line: line.interval, classes="opt w3", of_cells="nowrap muted"),
        Shown("Published S", lambda line: line.published, classes="num opt w3", of_cells="muted"),
        Shown("Lost each hour", lambda line: line.lost_each_hour_text, "lost", "num opt", _LOST),
        Shown("Stragglers", lambda line: line.stragglers, "stragglers", "num opt w3", _STRAGGLERS),
        Shown("Between steps", lambda line: line.between, "between", "num opt w3", _BETWEEN),
        Shown("All slow", lambda line: line.together, "together", "num opt w3", _TOGETHER),
        Shown("Cause", _cause, "", "opt cause", of_cells="ends", title=_cause_words),
        Shown("Where", _where, "", "opt w2 place-of", of_cells="muted ends", title=_place),
        Shown("Discrepancy", lambda line: line.discrepancy, "discrepancy", "num opt w2"),
        Shown("Steps", lambda line: count(line.steps), "steps", "num opt w2"),
        Shown("Operations", lambda line: count(line.operations), "operations", "num opt w2"),
        Shown("Received", lambda line: moments.ago(line.received_at, now), "received_at", "num"),
    )


def job_columns(
    now: datetime, query: FleetQuery, address: Address
) -> tuple[Shown[SessionLine], ...]:
    """Return the columns of the table of jobs with data in the chosen period.

    Parameters
    ----------
    address : Address
        Address of the list; labels link to it with a filter.
    """

    def job(line: SessionLine) -> Markup:
        written = (line.name, *(f"{name}={value}" for name, value in line.labels.items()))
        return (
            html.link(line.url, line.name, title=" ".join(written))
            + html.narrow(line.cause, line.where)
            + _labels(line, query, address)
        )

    return (
        Shown(_PICK_ALL, _pick, classes="pick"),
        Shown("State", _state, "rank"),
        Shown("Job", job, "name", of_cells="grow"),
        Shown("Lost each hour", lambda line: line.lost_each_hour_text, "lost", "num", _LOST),
        Shown("Slowdown", _job_slowdown, "slowdown", "num", _AGAINST),
        Shown(
            "Time lost",
            lambda line: _time_lost(line, query.loss),
            query.loss or "time",
            "opt w2",
            _TIME_LOST if query.loss is None else _TIME_LOST_TO[query.loss],
            "nowrap",
            _time_lost_words,
        ),
        Shown(_INTERVAL, lambda line: line.interval, classes="opt w2", of_cells="nowrap muted"),
        Shown("Sessions", lambda line: html.spark(line.spark), classes="opt w3"),
        Shown("Cause", _cause, "cause", "opt cause", of_cells="ends", title=_cause_words),
        Shown("Where", _where, "", "opt w2 place-of", of_cells="muted ends", title=_place),
        Shown(
            "Owner",
            lambda line: _owner(line, query, address),
            "owner",
            "opt w3",
            "The label of that name",
            of_cells="muted owner",
        ),
        Shown("GPUs", lambda line: count(line.gpus), "gpus", "num opt"),
        Shown(
            _SIZES,
            lambda line: line.short_sizes,
            classes="opt w2",
            of_cells="muted nowrap",
            title=lambda line: line.sizes,
        ),
        Shown("Data", lambda line: moments.ago(line.received_at, now), "received_at", "num opt"),
    )


def silent_columns(now: datetime) -> tuple[Shown[SessionLine], ...]:
    """Return the columns of the table of jobs without data in the chosen period."""
    return (
        Shown(_PICK, _pick, classes="pick"),
        Shown("State", _state),
        Shown("Job", lambda line: html.link(line.url, line.name, title=line.name), of_cells="grow"),
        Shown(
            "Last session",
            lambda line: html.link(
                line.session_url, moments.ago(line.received_at, now), plain=True
            ),
            classes="num",
        ),
        Shown("Slowdown then", lambda line: line.slowdown_text, classes="num", of_cells="muted"),
        Shown(
            "Cause then",
            lambda line: line.cause,
            classes="opt w2 cause",
            of_cells="muted ends",
            title=lambda line: line.cause,
        ),
        Shown("Owner", lambda line: line.owner, classes="opt w3", of_cells="muted"),
        Shown("GPUs", lambda line: count(line.gpus), classes="num opt", of_cells="muted"),
        Shown("Parallelism", lambda line: line.sizes, classes="opt w2", of_cells="muted"),
    )


def row_attributes(line: SessionLine) -> Mapping[str, str]:
    """Return the attributes of a row that scripts read: the session and its state."""
    return {"data-session": line.session_url.rsplit("/", 1)[1], "data-status": line.status}


def job_attributes(line: SessionLine) -> Mapping[str, str]:
    """Return the attributes of a job's row that scripts read: group, session and its state."""
    return {"data-kind": line.kind, **row_attributes(line)}


def _pick(line: SessionLine) -> Markup:
    return Markup(
        '<input class="operates" type="checkbox" data-pick="{0}" aria-label="Select {0}" disabled>'
    ).format(line.name)


def _state(line: SessionLine) -> Markup:
    if line.incident is None:
        return html.state(line.state)
    return html.link(line.incident_url, html.state(line.incident), plain=True)


def _labels(line: SessionLine, query: FleetQuery, address: Address) -> Markup:
    """Return a job's labels as links that filter by the label; "" if labels are hidden."""
    if not query.labels or not line.labels:
        return html.NOTHING
    written = [f"{name}={value}" for name, value in line.labels.items()]
    chips = (
        html.element(
            "a",
            text,
            class_="chip",
            href=address.but(label=None if text == query.filtered.label else text),
            aria_current="true" if text == query.filtered.label else "",
        )
        for text in written
    )
    return html.element("span", html.join(chips), class_="chips")


def _owner(line: SessionLine, query: FleetQuery, address: Address) -> Markup:
    if not line.owner:
        return html.NOTHING
    chosen = line.owner == query.filtered.owner
    return html.link(
        address.but(owner=None if chosen else line.owner),
        line.owner,
        plain=True,
        title="All owners" if chosen else f"Only jobs of {line.owner}",
    )


def _slowdown(line: SessionLine) -> Markup:
    return html.swatch(line.color) + line.slowdown_text


def _time_lost(line: SessionLine, loss: Loss | None) -> Markup:
    """Return a bar of the lost time by kind, and the lost share in total or of one kind."""
    losses = line.losses
    if losses is None:
        return html.NOTHING
    rects, begin = [], 0.0
    shares = (losses.stragglers, losses.between, losses.together)
    shown = losses.lost if loss is None else shares[tuple(Loss).index(loss)]
    for part, share in zip(_LOSSES, shares, strict=True):
        width = max(min(2 * _BAR * share, _BAR - begin), 0.0)
        rects.append(
            Markup('<rect class="p-{}" x="{:.1f}" width="{:.1f}" height="8"/>').format(
                part, begin, width
            )
        )
        begin += width
    bar = Markup(
        '<svg viewBox="0 0 {0} 8" width="{0}" height="8" aria-hidden="true">'
        '<rect class="track" width="{0}" height="8"/>{1}</svg> '
    ).format(_BAR, html.join(rects))
    return bar + rough_percent(shown)


def _time_lost_words(line: SessionLine) -> str:
    if line.losses is None:
        return ""
    shares = (line.stragglers, line.between, line.together)
    return ", ".join(
        f"{share} {LOSS_WORDS[loss]}" for loss, share in zip(Loss, shares, strict=True)
    )


def _job_slowdown(line: SessionLine) -> Markup:
    against = f", {line.against}; S {line.published}" if line.against else ""
    return html.link(
        line.session_url, _slowdown(line), plain=True, title=f"Session {line.number}{against}"
    )


def _cause(line: SessionLine) -> Markup:
    share = (" ", html.muted(line.cause_share)) if line.cause_share else ()
    return html.join((line.cause, *share))


def _cause_words(line: SessionLine) -> str:
    return " ".join(filter(None, (line.cause, line.cause_share)))


def _place(line: SessionLine) -> str:
    return line.where


def _where(line: SessionLine) -> Markup:
    return html.where(line.where, line.host)


# Largest number of characters of a reason; a longer reason is replaced by its code.
SHORT_REASON: Final = 60


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A line of a table of jobs or of a table of sessions, as texts."""

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
    short_sizes: str  # DP, PP and TP as bare numbers
    steps: int
    operations: int
    discrepancy: str
    received_at: datetime
    kind: str  # ``slow``, ``none``, ``quiet`` or ``silent``, the group of the row for scripts
    host: str = ""  # host at the beginning of `where`
    spark: Sparkline | None = None
    incident: StateLabel | None = None
    incident_url: str = ""
    owner: str = ""  # label of the job
    labels: Mapping[str, str] = field(default_factory=dict)
    losses: Losses | None = None  # None if not known; the three texts below are its parts
    stragglers: str = ""
    between: str = ""
    together: str = ""
    live: LiveStep | None = None  # last minute of its pulse; None if it is not live


def session_row(job: str, session: SessionRow, *, shown: SessionRow | None = None) -> SessionLine:
    """Return the line of a session.

    Parameters
    ----------
    session : SessionRow
        The session whose state and age the line shows.
    shown : SessionRow, optional
        Earlier session whose numbers the line shows, if `session` has no numbers yet.
    """
    numbers = shown or session
    measured, verdict = numbers.headline, numbers.verdict
    slowdown = measured.slowdown if measured else None
    slow = verdict is not None and _is_slow(verdict.level, slowdown)
    first = leading_cause(numbers)
    lost = numbers.lost_each_hour
    published = verdict.published if measured and verdict else None
    # S does not include time lost between steps or by all workers together.
    lost_to_steps = verdict is None or measured is None or verdict.lost == measured.waste
    state = job_state(session.state, slow=slow)
    losses = numbers.losses
    return SessionLine(
        state=state,
        status=session.state,
        name=job,
        url=job_url(job),
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
        host=first.host or ""
        if first and (len(first.place.workers) == 1 or bool(first.place.ranks))
        else "",
        kind="slow" if state is SLOW_STATE else "none" if slowdown is None else "quiet",
        losses=losses,
        stragglers="" if losses is None else rough_percent(losses.stragglers),
        between="" if losses is None else rough_percent(losses.between),
        together="" if losses is None else rough_percent(losses.together),
    )


def leading_cause(session: SessionRow) -> VerdictCause | None:
    """Return the cause that the line of a session names; None if no cause is blamed."""
    verdict, measured = session.verdict, session.headline
    if verdict is None:
        return None
    slowdown = None if measured is None else measured.slowdown
    return named_cause(session.state, verdict.level, slowdown, verdict.causes)


def named_cause(
    state: SessionState, level: str | None, slowdown: float | None, causes: Sequence[VerdictCause]
) -> VerdictCause | None:
    """Return the cause of a verdict that a line names; None if no cause is blamed.

    Parameters
    ----------
    slowdown : float or None
        None if the verdict on S is withheld; a cause may still be known.
    """
    if slowdown is None:
        candidates = causes if state == SessionState.NO_VERDICT else ()
        return next((cause for cause in candidates if cause.cause != UNKNOWN), None)
    return causes[0] if causes and _is_slow(level, slowdown) else None


def _is_slow(level: str | None, slowdown: float | None) -> bool:
    return slowdown is not None and (level == "slow" or slowdown >= STRAGGLING)


def _share(cause: VerdictCause | None, measured: Slowdown | None, *, lost_to_steps: bool) -> str:
    """Return the share of a cause, followed by ``by S`` if the slowdown is S."""
    by_s = lost_to_steps and measured is not None and not measured.kind.without_causes
    if cause is None:
        return "no cause, by S" if by_s else ""
    share = rough_percent(cause.contribution or 0.0)
    return f"{share}, by S" if by_s else share


def _against(measured: Slowdown | None) -> str:
    """Return the baseline of a slowdown in words; "" without a slowdown."""
    if measured is None:
        return ""
    if measured.kind.without_causes:
        return "against the job without its causes"
    return "published S: no cause explains it"


def job_line(job: JobStatus) -> SessionLine:
    """Return the line of a job."""
    row = session_row(job.name, job.latest, shown=job.verdict_session)
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
    """Return the session whose verdict represents a job: the latest completed one."""
    completed = [session for session in job.sessions if session.state not in SessionState.UNDERWAY]
    return completed[-1] if completed else job.latest


def _reason(session: SessionRow) -> str:
    verdict = session.verdict
    discrepancy = None if verdict is None else verdict.discrepancy
    return reason_words(session.state, discrepancy, session.reason, session.reason_code)


def reason_words(
    state: SessionState, discrepancy: float | None, reason: str | None, code: str | None
) -> str:
    """Return the reason why a session has no verdict; "" if it has one or is under way."""
    if state == SessionState.NO_VERDICT and discrepancy is not None:
        return f"replay {percent(discrepancy)} off"
    if state in SessionState.UNREPORTED:
        return reason if reason and len(reason) <= SHORT_REASON else code or ""
    return ""


def where_words(cause: VerdictCause) -> str:
    """Return the place of a cause in words; "" if it has none."""
    kind = KINDS.get(cause.cause)
    if kind is not None and kind.everywhere:
        return "all DP ranks"
    where, workers = cause.place, cause.place.workers
    if not workers:
        return "" if where.stage is None else f"stage {where.stage}"
    if len(workers) > 1 and not where.ranks:
        return plural(len(workers), "worker")
    if not cause.gpus:
        # Verdicts that earlier versions stored contain no GPUs.
        return ", ".join(filter(None, (cause.host, f"worker {worker(*workers[0])}")))
    at = cause.gpus[0]
    host = at.host_words or f"worker {worker(*workers[0])}"
    if at.one_of > 1:
        return f"{host}, 1 of {at.one_of} GPUs"
    return ", ".join(filter(None, (host, at.gpu_words or f"rank {at.rank}")))
