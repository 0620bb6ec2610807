"""Page of a host: heading, facts, sessions, jobs, repairs, incidents, and its latest probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from markupsafe import Markup

from app.analysis.diagnosis.causes.registry import blames_machine, title_of
from app.analysis.trace.rank_metadata import node_label
from app.analysis.wording import hours
from app.hosts.costs import BLAMED_FROM
from app.hosts.detail import (
    HostIncident,
    HostJob,
    HostSession,
    HostView,
    cost_of,
    gpus_in,
    jobs_of,
)
from app.hosts.pages.gpu_map import GpuMap, gpu_map
from app.hosts.pages.list import (
    SLOWDOWN,
    gpu_words,
    named_gpus,
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
    ProbeView,
    reason_of,
)
from app.hosts.repairs import Outcome, Repair
from app.incidents.held_machines import cordon_commands
from app.incidents.pages.parts import STATES
from app.web import html
from app.web.format import age, count, exact_time, listing, percent, plural, times
from app.web.links import Address, actions_url, host_url, job_url
from app.web.moments import ago, when
from app.web.parts import Fact, StateLabel
from app.web.tables import Drawn, Shown, drawn
from app.web.time_ranges import Range, RangeChoices, range_choices

GUESSED: Final = (
    "It is the name of a container or pod: its jobs do not say on which node they run, so no "
    "command is offered and a restart may be another host here"
)
# Number of sessions that the page lists; the CSV file has all.
LISTED: Final = 20


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
    csv_of_gpus: str
    map: GpuMap | None
    sessions: Drawn
    sessions_title: str
    sessions_note: str
    jobs: Drawn
    jobs_title: str
    repairs: Drawn
    repairs_title: str
    gpus: Sequence[str]
    incidents: Drawn
    incidents_title: str
    # schedulers, each with its command that takes the host out of service
    drains: Sequence[tuple[str, str]]
    # why the page has no such command, if the host's name is a guess; else ""
    guessed: str
    moves: Drawn
    moves_title: str
    # address of the page of actions on this host
    actions_url: str


def host_page(view: HostView, about: Range, address: Address) -> HostPage:
    """Return the page of a host."""
    sessions = view.sessions
    slow = [item for item in sessions if item.cause]
    jobs = jobs_of(sessions)
    firing = any(STATES[item.state].glyph == "firing" for item in view.incidents)
    query = address.but()[len(address.path) :]
    listed = min(LISTED, len(view.sessions))
    note = "" if listed == view.seen else f"; the latest {listed} of {count(view.seen)}"

    def csv(name: str, query: str = query) -> str:
        return f"{host_url(view.host)}/{name}.csv{query}"

    return HostPage(
        now=view.now,
        host=view.host,
        title=f"{_name(view)}: slow in {count(len(slow))} of {plural(len(sessions), 'session')}",
        heading=_heading(view, slow, about),
        state=state_of(firing=firing, slow=bool(sessions and sessions[0].cause)),
        counted=f"{plural(view.seen, 'session')} in {about.words}",
        facts=_facts(view, slow, jobs),
        range=range_choices(about, with_all=True),
        csv_of_gpus=csv("gpus"),
        map=gpu_map(view, about),
        sessions=drawn(
            _session_columns(view.now), sessions[:LISTED], csv=csv("sessions"), classes="fleet"
        ),
        sessions_title=f"Named by a cause in {count(len(slow))} of "
        f"{plural(len(sessions), 'session')}"
        if sessions
        else "No session",
        sessions_note=f"{SLOWDOWN}{note}",
        jobs=drawn(_JOBS, jobs, csv=csv("jobs")),
        jobs_title=_jobs_title(jobs),
        repairs=drawn(
            (
                Shown("When", lambda repair: when(repair.at, view.now), of_cells="nowrap"),
                Shown("What", _work, of_cells="grow"),
                Shown("Helped", _effect, classes="num"),
            ),
            view.repairs,
            csv=csv("repairs", ""),
            classes="plain repairs",
        ),
        repairs_title=_repairs_title(view.repairs),
        gpus=gpus_in(sessions),
        incidents=drawn(
            (
                Shown("State", lambda incident: html.state(STATES[incident.state])),
                Shown("Job and cause", _job_and_cause, of_cells="grow"),
                Shown(
                    "Open for",
                    lambda incident: age(
                        ((incident.resolved_at or view.now) - incident.fired_at).total_seconds()
                    ),
                    classes="num",
                    title=lambda incident: f"Fired {exact_time(incident.fired_at)}",
                ),
            ),
            view.incidents,
            csv=csv("incidents"),
        ),
        incidents_title=f"{plural(len(view.incidents), 'incident')} named it"
        if view.incidents
        else "No incident named it",
        drains=[] if view.guessed else _drains(view.host, _since_repair(view, slow)),
        guessed=GUESSED if view.guessed else "",
        moves=drawn(
            (
                Shown("When", lambda move: when(move.at, view.now), of_cells="nowrap"),
                Shown("GPU", lambda move: move.gpu, of_cells="grow gpu"),
                Shown("Host", lambda move: _way(move, view.host)),
            ),
            view.moves,
            csv=csv("moves"),
        ),
        moves_title=f"{plural(len(view.moves), 'GPU')} moved" if view.moves else "",
        actions_url=actions_url(view.host),
    )


def _name(view: HostView) -> str:
    return node_label(view.host, guessed=view.guessed)


def _way(move: Move, host: str) -> Markup:
    came = move.after == host
    other = move.before if came else move.after
    link = html.element("a", other, class_="within", href=host_url(other))
    return html.join(("came from " if came else "went to ", link))


def _heading(view: HostView, slow: Sequence[HostSession], about: Range) -> str:
    host, sessions = _name(view), view.sessions
    if not sessions:
        return f"No session named {host} in {about.words}"
    if not slow:
        return f"{host}: {_without_blame(sessions)}"
    named = gpus_in(slow, slow=True)
    who = f"{host}: {named_gpus(named)}" if named else host
    text = f"{who} slow in {count(len(slow))} of {plural(len(sessions), 'session')}"
    if len(slow) < BLAMED_FROM:
        return f"{text}: not blamed: a second slow session would blame it"
    jobs = len({session.job for session in slow})
    of_jobs = f", in {plural(jobs, 'job')}" if jobs > 1 else ""
    return f"{text}{of_jobs}, which cost {hours(cost_of(slow))} GPU-hours in {about.words}"


def _without_blame(sessions: Sequence[HostSession]) -> str:
    """Return why a host is not blamed: no cause named it, or only causes of the job's own."""
    named = [item.other_cause for item in sessions if item.other_cause]
    if not named:
        return f"no cause named it in {plural(len(sessions), 'session')}"
    causes = listing([title_of(cause).lower() for cause in dict.fromkeys(named)])
    of = f"{count(len(named))} of {plural(len(sessions), 'session')}"
    return f"{causes} named it in {of}; the job causes that, not the machine"


def _facts(view: HostView, slow: Sequence[HostSession], jobs: Sequence[HostJob]) -> list[Fact]:
    sessions = view.sessions
    facts = []
    if sessions:
        latest, worst = sessions[0], max(session.slowdown for session in sessions)
        named = (cause for item in sessions for cause in (item.cause, item.other_cause))
        causes = sorted({cause for cause in named if cause})
        facts = [
            Fact(
                "Slowdown now",
                times(latest.slowdown),
                f"at most {times(worst)}",
                SLOWDOWN,
            ),
            Fact(
                "Computing now",
                "none" if latest.computing is None else times(latest.computing),
                "against peers of its stage",
            ),
            Fact("GPU-hours lost", hours(cost_of(slow)), "while each verdict stood"),
            Fact(
                "Slow in",
                f"{count(len(slow))} of {count(len(sessions))}",
                f"sessions of {plural(len(jobs), 'job')}",
            ),
            Fact(
                "Cause",
                listing([title_of(cause) for cause in causes]) or "none",
                "named by diagnosis",
            ),
        ]
    if view.repairs:
        last = view.repairs[0]
        facts.append(Fact("Last repair", outcome_words(last.judged), last.what))
    if view.last_seen is not None:
        facts.append(Fact("Last seen", "", "in a session", moment=view.last_seen))
    return facts


def _session_columns(now: datetime) -> tuple[Shown[HostSession], ...]:
    return (
        Shown(
            "Session",
            lambda item: (
                html.link(f"/sessions/{item.session}", item.number) + html.narrow(item.job)
            ),
        ),
        Shown(
            "Job",
            lambda item: html.link(job_url(item.job), item.job),
            classes="opt",
            of_cells="grow",
        ),
        Shown("Slowdown", lambda item: html.slowdown(item.slowdown), classes="num"),
        Shown(
            "Computing",
            lambda item: "" if item.computing is None else times(item.computing),
            classes="num opt",
        ),
        Shown("Cause", _cause),
        Shown(
            "GPUs",
            lambda item: gpu_words([gpu["gpu"] for gpu in item.gpus if gpu["slow"]]),
            classes="opt",
        ),
        Shown("GPU-hours", lambda item: hours(item.cost_gpu_hours), classes="num opt"),
        Shown("Received", lambda item: ago(item.received_at, now), classes="num"),
    )


def _cause(item: HostSession) -> str | Markup:
    if item.cause is not None:
        return title_of(item.cause)
    if item.other_cause is None:
        return ""
    return html.join((title_of(item.other_cause), " ", html.note("of the job, not the machine")))


_JOBS: Final[tuple[Shown[HostJob], ...]] = (
    Shown("Job", lambda item: html.link(job_url(item.job), item.job), of_cells="grow"),
    Shown("GPUs", lambda item: gpu_words(item.gpus) or "none"),
    Shown("Most", lambda item: html.slowdown(item.slowdown_worst), classes="num"),
    Shown(
        "Sessions",
        lambda item: f"{count(item.slow_sessions)} of {count(item.sessions)}",
        classes="num",
    ),
    Shown("Lost", lambda item: hours(item.cost_gpu_hours), classes="num"),
)


def _jobs_title(jobs: Sequence[HostJob]) -> str:
    slow = sum(job.slow_sessions > 0 for job in jobs)
    if len(jobs) == 1:
        return "It slowed its only job" if slow else "It did not slow its only job"
    return f"It slowed {count(slow) if slow else 'none'} of its {plural(len(jobs), 'job')}"


def _work(repair: Repair) -> Markup:
    what = repair.what if repair.gpu is None else f"{named_gpus([repair.gpu])}: {repair.what}"
    return html.join((what, html.element("span", repair.by, class_="note by")))


def _effect(repair: Repair) -> Markup:
    marks = {Outcome.HELPED: "resolved", Outcome.NO_HELP: "warn", Outcome.WORSE: "warn"}
    words, mark = outcome_words(repair.judged), marks.get(repair.outcome)
    before, after = repair.slowdown_before, repair.slowdown_after
    levels = "" if before is None or after is None else f"{times(before)} → {times(after)}"
    return html.join(
        (
            html.glyph(mark, words) if mark else words,
            html.element("span", levels, class_="note by") if levels else "",
        )
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


def _since_repair(view: HostView, slow: Sequence[HostSession]) -> list[HostSession]:
    """Return the slow sessions after the last repair of the whole host; all without a repair."""
    repaired_at = next((repair.at for repair in view.repairs if repair.gpu is None), None)
    return [item for item in slow if repaired_at is None or item.received_at > repaired_at]


def _drains(host: str, slow: Sequence[HostSession]) -> list[tuple[str, str]]:
    """Return the commands that take a blamed host out of service, for users to copy."""
    at_fault = [
        session for session in slow if session.cause is not None and blames_machine(session.cause)
    ]
    if len(at_fault) < BLAMED_FROM:
        return []
    return cordon_commands(host, f"Paceline: slow in {plural(len(at_fault), 'session')}")


def _job_and_cause(incident: HostIncident) -> Markup:
    job = html.element("a", incident.job, class_="within", href=f"/incidents/{incident.id}")
    return html.join((job, " ", html.note(title_of(incident.cause))))


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
