"""What the page of a host shows: when and where it was slow, what that cost, what was repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import blames_machine, title_of
from app.analysis.trace.rank_metadata import called
from app.analysis.wording import hours
from app.hosts.costs import BLAMED_FROM
from app.hosts.one import HostIncident, HostSession, HostView
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
# Sessions that the page lists; the file has all.
LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session of the host."""

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
    """A job that ran on the host."""

    job: str
    url: str
    gpus: str
    slowdown: str
    color: str
    sessions: str
    cost: str


@dataclass(frozen=True, slots=True)
class RepairLine:
    """An entry of the repair log; `mark` is the glyph of its outcome, empty for none."""

    at: datetime
    what: str
    by: str
    outcome: str
    mark: str
    levels: str


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident that names the host."""

    url: str
    job: str
    cause: str
    state: StateLabel
    fired_at: datetime
    lasted: str


@dataclass(frozen=True, slots=True)
class MoveLine:
    """A GPU that came from another host, or went to it."""

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
    # schedulers, and the command with which each gives the host no more work
    drains: Sequence[tuple[str, str]]
    # why there is no such command where the name is a guess; else empty
    guessed: str
    moves: Sequence[MoveLine]
    moves_title: str
    # the page of what was done to it
    actions_url: str


def host_page(view: HostView, about: Range, address: Address) -> HostPage:
    """Return the page of a host."""
    sessions = view.sessions
    slow = [one for one in sessions if one.cause]
    gpus = _gpus(sessions)
    jobs = _jobs(sessions)
    firing = any(STATES[one.state].glyph == "firing" for one in view.incidents)
    whole = address.but()
    text = "Slowdown of the job if only its slowest worker there were as recorded"
    listed = min(LISTED, len(view.sessions))
    return HostPage(
        now=view.now,
        host=view.host,
        title=f"{_name(view)}: {_said(sessions, slow)}",
        heading=_heading(view, slow, about),
        state=state_of(firing=firing, slow=bool(sessions and sessions[0].cause)),
        counted=f"{plural(view.seen, 'session')} in {about.words}",
        facts=_facts(view, slow, jobs),
        range=range_choices(about, with_all=True),
        csv=host_url(view.host),
        query=whole[len(address.path) :],
        map=gpu_map(view, about),
        sessions=[_session(one) for one in sessions[:LISTED]],
        sessions_title=_sessions_title(sessions, slow),
        sessions_note=text
        if listed == view.seen
        else f"{text}; the latest {listed} of {count(view.seen)}",
        jobs=jobs,
        jobs_title=_jobs_title(sessions, jobs),
        repairs=[_repair(one) for one in view.repairs],
        repairs_title=_repairs_title(view.repairs),
        gpus=gpus,
        incidents=[_incident(one, view.now) for one in view.incidents],
        incidents_title=_incidents_title(len(view.incidents)),
        drains=[] if view.guessed else _drains(view.host, slow),
        guessed=GUESSED if view.guessed else "",
        moves=[_move(one, view.host) for one in view.moves],
        moves_title=f"{plural(len(view.moves), 'GPU')} moved" if view.moves else "",
        actions_url=actions_url(view.host),
    )


def _name(view: HostView) -> str:
    return called(view.host, guessed=view.guessed)


def _move(one: Move, host: str) -> MoveLine:
    came = one.after == host
    other = one.before if came else one.after
    return MoveLine(one.at, one.gpu, "came from" if came else "went to", other, host_url(other))


def _said(sessions: Sequence[HostSession], slow: Sequence[HostSession]) -> str:
    return f"slow in {count(len(slow))} of {plural(len(sessions), 'session')}"


def _gpus(sessions: Sequence[HostSession], *, slow: bool = False) -> list[str]:
    names = names_of_gpus(sessions)
    found = {names[gpu_key(gpu)] for one in sessions for gpu in one.gpus if gpu["slow"] or not slow}
    return sorted(found, key=lambda gpu: (len(gpu), gpu))


def _cost(sessions: Sequence[HostSession]) -> float:
    return sum(one.cost for one in sessions)


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
            Fact("Cause", _causes(slow) or "none", "named by diagnosis"),
        ]
    if view.repairs:
        last = view.repairs[0]
        found.append(Fact("Last repair", outcome_words(last.judged), last.what))
    if view.last_seen is not None:
        found.append(Fact("Last seen", "", "in a session", moment=view.last_seen))
    return found


def _causes(slow: Sequence[HostSession]) -> str:
    found = sorted({one.cause for one in slow if one.cause})
    return listing([title_of(cause) for cause in found])


def _session(one: HostSession) -> SessionLine:
    named = [gpu["gpu"] for gpu in one.gpus if gpu["slow"]]
    return SessionLine(
        url=f"/sessions/{one.session}",
        number=one.number,
        job=one.job,
        job_url=f"/jobs/{quote(one.job)}",
        slowdown=times(one.slowdown),
        color=heat_color(one.slowdown),
        computing="" if one.computing is None else times(one.computing),
        cause="" if one.cause is None else title_of(one.cause),
        gpus=gpu_words(named),
        cost=hours(one.cost),
        received_at=one.received_at,
    )


def _sessions_title(sessions: Sequence[HostSession], slow: Sequence[HostSession]) -> str:
    if not sessions:
        return "No session"
    return f"Named by a cause in {count(len(slow))} of {plural(len(sessions), 'session')}"


def _jobs(sessions: Sequence[HostSession]) -> list[JobLine]:
    by_job: dict[str, list[HostSession]] = {}
    for one in sessions:
        by_job.setdefault(one.job, []).append(one)
    ranked = sorted(by_job.items(), key=lambda item: (-_cost(item[1]), item[0]))
    lines = []
    for job, own in ranked:
        slow = [one for one in own if one.cause]
        worst = max(one.slowdown for one in own)
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
    slow = len({one.job for one in sessions if one.cause})
    if len(jobs) == 1:
        return "It slowed its only job" if slow else "It did not slow its only job"
    return f"It slowed {count(slow) if slow else 'none'} of its {plural(len(jobs), 'job')}"


def _repair(one: Repair) -> RepairLine:
    judged = one.judged
    known = judged.before is not None and judged.after is not None
    marks = {Outcome.HELPED: "resolved", Outcome.NO_HELP: "warn", Outcome.WORSE: "warn"}
    return RepairLine(
        at=one.at,
        what=one.what if one.gpu is None else f"{named_gpus([one.gpu])}: {one.what}",
        by=one.by,
        outcome=outcome_words(judged),
        mark=marks.get(judged.outcome, ""),
        levels=f"{times(judged.before or 0)} → {times(judged.after or 0)}" if known else "",
    )


def _repairs_title(repairs: Sequence[Repair]) -> str:
    if not repairs:
        return "No repair is noted"
    judged = repairs[0].judged
    said = {
        Outcome.HELPED: "The last repair helped",
        Outcome.NO_HELP: "The last repair did not help",
        Outcome.NO_CHANGE: "The last repair changed nothing",
        Outcome.WORSE: "It became slow after the last repair",
        Outcome.OPEN: "The effect of the last repair is not known yet",
    }[judged.outcome]
    if judged.before is None or judged.after is None:
        return said
    return f"{said}: {times(judged.before)} → {times(judged.after)}"


def _drains(host: str, slow: Sequence[HostSession]) -> list[tuple[str, str]]:
    """Return commands that take a host out that is blamed, for people to copy."""
    at_fault = [one for one in slow if one.cause is not None and blames_machine(one.cause)]
    if len(at_fault) < BLAMED_FROM:
        return []
    return cordon_commands(host, f"Paceline: slow in {plural(len(at_fault), 'session')}")


def _incidents_title(incidents: int) -> str:
    return f"{plural(incidents, 'incident')} named it" if incidents else "No incident named it"


def _incident(one: HostIncident, now: datetime) -> IncidentLine:
    ended = one.resolved_at or now
    return IncidentLine(
        url=f"/incidents/{one.id}",
        job=one.job,
        cause=title_of(one.cause),
        state=STATES[one.state],
        fired_at=one.fired_at,
        lasted=age((ended - one.fired_at).total_seconds()),
    )


# ---- What the page of a host says of its latest probe ------------------------------------------


# Of a host, and, in a word, of a device.
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
    """The latest probe; `state` is what it says of the host as it is, None after a repair."""

    at: datetime
    state: StateLabel | None
    title: str
    note: str
    devices: Drawn


def probe_part(view: ProbeView | None, repairs: Sequence[Repair], csv: str) -> ProbePart | None:
    """Return what a probe says; None where the host was never probed."""
    if view is None:
        return None
    repaired = any(one.at > view.at for one in repairs)
    title = _title(view)
    return ProbePart(
        at=view.at,
        state=None if repaired else _STATES[view.outcome],
        title=f"{title}, before the last repair" if repaired else title,
        note=f"Against the median of other {_models(view)}; below {percent(SLOW_BELOW, 0)} and "
        "outside of what the others reach is slow",
        devices=drawn(_columns(view), view.devices, csv=f"{csv}/probes.csv"),
    )


def probes_csv(rows: Sequence[ProbeRow]) -> Table:
    """Return what probes found of each device of a host, the latest first."""
    return Table.of(ProbeRow, rows)


def _title(view: ProbeView) -> str:
    if view.outcome is ProbeOutcome.NO_PEERS:
        return f"Probed; {ENOUGH} or more other devices of its kind make a comparison"
    if view.outcome is ProbeOutcome.CLEARED:
        return f"Cleared by probe: {plural(len(view.devices), 'device')} as fast as their like"
    said = "Confirmed" if view.outcome is ProbeOutcome.CONFIRMED else "Unclear"
    return f"{said} by probe: {reason_of(view)}"


def _models(view: ProbeView) -> str:
    return ", ".join(sorted({device.model for device in view.devices}))


def _columns(view: ProbeView) -> tuple[Shown[JudgedDevice], ...]:
    measured = [one for one in Measure if any(one in device.measures for device in view.devices)]
    return (
        Shown("GPU", lambda one: one.index, title=lambda one: one.gpu or one.model),
        *(_column(measure) for measure in measured),
        Shown("Says", lambda one: html.state(_IN_A_WORD[one.outcome]), of_cells="nowrap"),
    )


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
