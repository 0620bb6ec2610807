"""Page of a host: heading, facts, sessions, jobs, repairs, incidents, and its latest probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import blames_machine, title_of
from app.analysis.trace.rank_metadata import node_label
from app.analysis.wording import hours
from app.hosts.costs import BLAMED_FROM
from app.hosts.detail import HostIncident, HostSession, HostView
from app.hosts.pages.gpu_map import GpuMap, gpu_map
from app.hosts.pages.list import (
    gpu_key,
    gpu_words,
    named_gpus,
    names_of_gpus,
    outcome_words,
    state_of,
)
from app.hosts.places import Move
from app.hosts.probes import (
    ENOUGH,
    SLOW_BELOW,
    WORDS,
    JudgedDevice,
    Measure,
    ProbeOutcome,
    ProbeRow,
    ProbeView,
    reason_of,
)
from app.hosts.repairs import Outcome, Repair
from app.incidents.held_machines import cordon_commands
from app.incidents.pages.parts import STATES
from app.web import html
from app.web.format import age, count, heat_color, listing, percent, plural, times
from app.web.links import Address, actions_url, host_url
from app.web.parts import Fact, StateLabel
from app.web.tables import Drawn, Shown, Table, drawn
from app.web.time_ranges import Range, RangeChoices, range_choices

GUESSED: Final = (
    "It is the name of a container or pod: its jobs do not say on which node they run, so no "
    "command is offered and a restart may be another host here"
)
# Number of sessions that the page lists; the CSV file has all.
LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session of the host as a line of the page."""

    url: str
    number: int
    job: str
    job_url: str
    slowdown: str
    color: str
    computing: str
    cause: str
    gpus: str
    cost: str
    received_at: datetime


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job that ran on the host as a line of the page."""

    job: str
    url: str
    gpus: str
    slowdown: str
    color: str
    sessions: str
    cost: str


@dataclass(frozen=True, slots=True)
class RepairLine:
    """A repair as a line of the page; `mark` is the glyph of its outcome, or ""."""

    at: datetime
    what: str
    by: str
    outcome: str
    mark: str
    levels: str


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident that names the host as a line of the page."""

    url: str
    job: str
    cause: str
    state: StateLabel
    fired_at: datetime
    lasted: str


@dataclass(frozen=True, slots=True)
class MoveLine:
    """A move of a GPU from or to another host as a line of the page."""

    at: datetime
    gpu: str
    way: str
    host: str
    url: str


@dataclass(frozen=True, slots=True)
class HostPage:
    """The page of a host."""

    now: datetime
    host: str
    title: str
    heading: str
    state: StateLabel
    counted: str
    facts: Sequence[Fact]
    range: RangeChoices
    csv: str
    query: str
    map: GpuMap | None
    sessions: Sequence[SessionLine]
    sessions_title: str
    sessions_note: str
    jobs: Sequence[JobLine]
    jobs_title: str
    repairs: Sequence[RepairLine]
    repairs_title: str
    gpus: Sequence[str]
    incidents: Sequence[IncidentLine]
    incidents_title: str
    # schedulers, each with its command that takes the host out of service
    drains: Sequence[tuple[str, str]]
    # why the page has no such command, if the host's name is a guess; else ""
    guessed: str
    moves: Sequence[MoveLine]
    moves_title: str
    # address of the page of actions on this host
    actions_url: str


def host_page(view: HostView, about: Range, address: Address) -> HostPage:
    """Return the page of a host."""
    sessions = view.sessions
    slow = [item for item in sessions if item.cause]
    gpus = _gpus(sessions)
    jobs = _jobs(sessions)
    firing = any(STATES[item.state].glyph == "firing" for item in view.incidents)
    whole = address.but()
    text = "Slowdown of the job if only its slowest worker there were as recorded"
    listed = min(LISTED, len(view.sessions))
    return HostPage(
        now=view.now,
        host=view.host,
        title=f"{_name(view)}: slow in {count(len(slow))} of {plural(len(sessions), 'session')}",
        heading=_heading(view, slow, about),
        state=state_of(firing=firing, slow=bool(sessions and sessions[0].cause)),
        counted=f"{plural(view.seen, 'session')} in {about.words}",
        facts=_facts(view, slow, jobs),
        range=range_choices(about, with_all=True),
        csv=host_url(view.host),
        query=whole[len(address.path) :],
        map=gpu_map(view, about),
        sessions=[_session(item) for item in sessions[:LISTED]],
        sessions_title=_sessions_title(sessions, slow),
        sessions_note=text
        if listed == view.seen
        else f"{text}; the latest {listed} of {count(view.seen)}",
        jobs=jobs,
        jobs_title=_jobs_title(sessions, jobs),
        repairs=[_repair(item) for item in view.repairs],
        repairs_title=_repairs_title(view.repairs),
        gpus=gpus,
        incidents=[_incident(item, view.now) for item in view.incidents],
        incidents_title=f"{plural(len(view.incidents), 'incident')} named it"
        if view.incidents
        else "No incident named it",
        drains=[] if view.guessed else _drains(view.host, slow),
        guessed=GUESSED if view.guessed else "",
        moves=[_move(item, view.host) for item in view.moves],
        moves_title=f"{plural(len(view.moves), 'GPU')} moved" if view.moves else "",
        actions_url=actions_url(view.host),
    )


def _name(view: HostView) -> str:
    return node_label(view.host, guessed=view.guessed)


def _move(move: Move, host: str) -> MoveLine:
    came = move.after == host
    other = move.before if came else move.after
    return MoveLine(move.at, move.gpu, "came from" if came else "went to", other, host_url(other))


def _gpus(sessions: Sequence[HostSession], *, slow: bool = False) -> list[str]:
    names = names_of_gpus(sessions)
    found = {names[gpu_key(gpu)] for one in sessions for gpu in one.gpus if gpu["slow"] or not slow}
    return sorted(found, key=lambda gpu: (len(gpu), gpu))


def _cost(sessions: Sequence[HostSession]) -> float:
    return sum(session.cost for session in sessions)


def _heading(view: HostView, slow: Sequence[HostSession], about: Range) -> str:
    host, sessions = _name(view), view.sessions
    if not sessions:
        return f"No session named {host} in {about.words}"
    if not slow:
        return f"{host}: no cause named it in {plural(len(sessions), 'session')}"
    named = _gpus(slow, slow=True)
    who = f"{host}: {named_gpus(named)}" if named else host
    text = f"{who} slow in {count(len(slow))} of {plural(len(sessions), 'session')}"
    if len(slow) < BLAMED_FROM:
        return f"{text}: not blamed: a second slow session would blame it"
    jobs = len({one.job for one in slow})
    of_jobs = f", in {plural(jobs, 'job')}" if jobs > 1 else ""
    return f"{text}{of_jobs}, which cost {hours(_cost(slow))} GPU-hours in {about.words}"


def _facts(view: HostView, slow: Sequence[HostSession], jobs: Sequence[JobLine]) -> list[Fact]:
    sessions = view.sessions
    found = []
    if sessions:
        latest, worst = sessions[0], max(one.slowdown for one in sessions)
        causes = [title_of(cause) for cause in sorted({one.cause for one in slow if one.cause})]
        found = [
            Fact(
                "Slowdown now",
                times(latest.slowdown),
                f"at most {times(worst)}",
                "Slowdown of the job if only its slowest worker there were as recorded",
            ),
            Fact(
                "Computing now",
                "none" if latest.computing is None else times(latest.computing),
                "against peers of its stage",
            ),
            Fact("GPU-hours lost", hours(_cost(slow)), "while each verdict stood"),
            Fact(
                "Slow in",
                f"{count(len(slow))} of {count(len(sessions))}",
                f"sessions of {plural(len(jobs), 'job')}",
            ),
            Fact("Cause", listing(causes) or "none", "named by diagnosis"),
        ]
    if view.repairs:
        last = view.repairs[0]
        found.append(Fact("Last repair", outcome_words(last.judged), last.what))
    if view.last_seen is not None:
        found.append(Fact("Last seen", "", "in a session", moment=view.last_seen))
    return found


def _session(session: HostSession) -> SessionLine:
    named = [gpu["gpu"] for gpu in session.gpus if gpu["slow"]]
    return SessionLine(
        url=f"/sessions/{session.session}",
        number=session.number,
        job=session.job,
        job_url=f"/jobs/{quote(session.job)}",
        slowdown=times(session.slowdown),
        color=heat_color(session.slowdown),
        computing="" if session.computing is None else times(session.computing),
        cause="" if session.cause is None else title_of(session.cause),
        gpus=gpu_words(named),
        cost=hours(session.cost),
        received_at=session.received_at,
    )


def _sessions_title(sessions: Sequence[HostSession], slow: Sequence[HostSession]) -> str:
    if not sessions:
        return "No session"
    return f"Named by a cause in {count(len(slow))} of {plural(len(sessions), 'session')}"


def _jobs(sessions: Sequence[HostSession]) -> list[JobLine]:
    by_job: dict[str, list[HostSession]] = {}
    for session in sessions:
        by_job.setdefault(session.job, []).append(session)
    ranked = sorted(by_job.items(), key=lambda item: (-_cost(item[1]), item[0]))
    lines = []
    for job, own in ranked:
        slow = [session for session in own if session.cause]
        worst = max(session.slowdown for session in own)
        lines.append(
            JobLine(
                job=job,
                url=f"/jobs/{quote(job)}",
                gpus=gpu_words(_gpus(slow, slow=True)) or "none",
                slowdown=times(worst),
                color=heat_color(worst),
                sessions=f"{count(len(slow))} of {count(len(own))}",
                cost=hours(_cost(own)),
            )
        )
    return lines


def _jobs_title(sessions: Sequence[HostSession], jobs: Sequence[JobLine]) -> str:
    slow = len({session.job for session in sessions if session.cause})
    if len(jobs) == 1:
        return "It slowed its only job" if slow else "It did not slow its only job"
    return f"It slowed {count(slow) if slow else 'none'} of its {plural(len(jobs), 'job')}"


def _repair(repair: Repair) -> RepairLine:
    judged = repair.judged
    known = judged.before is not None and judged.after is not None
    marks = {Outcome.HELPED: "resolved", Outcome.NO_HELP: "warn", Outcome.WORSE: "warn"}
    return RepairLine(
        at=repair.at,
        what=repair.what if repair.gpu is None else f"{named_gpus([repair.gpu])}: {repair.what}",
        by=repair.by,
        outcome=outcome_words(judged),
        mark=marks.get(judged.outcome, ""),
        levels=f"{times(judged.before or 0)} → {times(judged.after or 0)}" if known else "",
    )


def _repairs_title(repairs: Sequence[Repair]) -> str:
    if not repairs:
        return "No repair is noted"
    judged = repairs[0].judged
    title = {
        Outcome.HELPED: "The last repair helped",
        Outcome.NO_HELP: "The last repair did not help",
        Outcome.NO_CHANGE: "The last repair changed nothing",
        Outcome.WORSE: "It became slow after the last repair",
        Outcome.OPEN: "The effect of the last repair is not known yet",
    }[judged.outcome]
    if judged.before is None or judged.after is None:
        return title
    return f"{title}: {times(judged.before)} → {times(judged.after)}"


def _drains(host: str, slow: Sequence[HostSession]) -> list[tuple[str, str]]:
    """Return the commands that take a blamed host out of service, for users to copy."""
    at_fault = [
        session for session in slow if session.cause is not None and blames_machine(session.cause)
    ]
    if len(at_fault) < BLAMED_FROM:
        return []
    return cordon_commands(host, f"Paceline: slow in {plural(len(at_fault), 'session')}")


def _incident(incident: HostIncident, now: datetime) -> IncidentLine:
    ended = incident.resolved_at or now
    return IncidentLine(
        url=f"/incidents/{incident.id}",
        job=incident.job,
        cause=title_of(incident.cause),
        state=STATES[incident.state],
        fired_at=incident.fired_at,
        lasted=age((ended - incident.fired_at).total_seconds()),
    )


# Labels of a probe's outcome: for a host, and shorter ones for a device.
_STATES: Final = {
    ProbeOutcome.CONFIRMED: StateLabel("slow", "Confirmed by probe", 1),
    ProbeOutcome.CLEARED: StateLabel("ok", "Cleared by probe", 5),
    ProbeOutcome.UNCLEAR: StateLabel("pending", "Unclear by probe", 3),
    ProbeOutcome.NO_PEERS: StateLabel("pending", "Probed", 4, quiet=True),
}
_IN_A_WORD: Final = {
    outcome: replace(state, word=outcome.value.capitalize()) for outcome, state in _STATES.items()
}
_HEADINGS: Final = {
    Measure.MATMUL: "Products",
    Measure.MEMORY_COPY: "Memory",
    Measure.HOST_TO_DEVICE: "From host",
    Measure.DEVICE_TO_HOST: "To host",
    Measure.ALL_REDUCE: "All-reduce",
}


@dataclass(frozen=True, slots=True)
class ProbePart:
    """The latest probe of a host; `state` is None if the host was repaired after the probe."""

    at: datetime
    state: StateLabel | None
    title: str
    note: str
    devices: Drawn


def probe_part(view: ProbeView | None, repairs: Sequence[Repair], csv: str) -> ProbePart | None:
    """Return the page's part on the host's latest probe; None if the host was never probed."""
    if view is None:
        return None
    repaired = any(repair.at > view.at for repair in repairs)
    title = _title(view)
    models = ", ".join(sorted({device.model for device in view.devices}))
    measures = [
        measure for measure in Measure if any(measure in device.measures for device in view.devices)
    ]
    return ProbePart(
        at=view.at,
        state=None if repaired else _STATES[view.outcome],
        title=f"{title}, before the last repair" if repaired else title,
        note=f"Against the median of other {models}; below {percent(SLOW_BELOW, 0)} and "
        "outside of what the others reach is slow",
        devices=drawn(
            (
                Shown(
                    "GPU", lambda device: device.index, title=lambda item: item.gpu or item.model
                ),
                *map(_column, measures),
                Shown(
                    "Says",
                    lambda device: html.state(_IN_A_WORD[device.outcome]),
                    of_cells="nowrap",
                ),
            ),
            view.devices,
            csv=f"{csv}/probes.csv",
        ),
    )


def probes_csv(rows: Sequence[ProbeRow]) -> Table:
    """Return the table of a host's probed devices, latest probe first."""
    return Table.of(ProbeRow, rows)


def _title(view: ProbeView) -> str:
    if view.outcome is ProbeOutcome.NO_PEERS:
        return f"Probed; {ENOUGH} or more other devices of its kind make a comparison"
    if view.outcome is ProbeOutcome.CLEARED:
        return f"Cleared by probe: {plural(len(view.devices), 'device')} as fast as their like"
    verdict = "Confirmed" if view.outcome is ProbeOutcome.CONFIRMED else "Unclear"
    return f"{verdict} by probe: {reason_of(view)}"


def _column(measure: Measure) -> Shown[JudgedDevice]:
    what, unit = WORDS[measure]

    def cell(device: JudgedDevice) -> str | Markup:
        figure = device.measures.get(measure)
        if figure is None:
            return "failed" if device.fault else ""
        value = f"{figure.value:,.4g}"
        if figure.ratio is None:
            return value
        ratio = html.element("span", percent(figure.ratio, 0), class_="note by")
        return html.join([value, ratio])

    return Shown(
        _HEADINGS[measure],
        cell,
        classes="num" if measure is Measure.MATMUL else "num opt",
        hint=f"{what[:1].upper()}{what[1:]}, {unit}",
    )
