"""The tools for assistants, one function each, and the table of all tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from app.hosts.costs import Show
from app.incidents.api_bodies import IncidentBody, IncidentListBody
from app.incidents.models.tables import IncidentState
from app.incidents.reads import EventRow
from app.jobs.api import JobBody, JobListBody
from app.jobs.current import Show as CurrentShow
from app.jobs.time_axis import JobAxis
from app.mcp.context import Answer, Api, Ctx, Value, api_of
from app.platform.database.states import PlanState
from app.sessions.api.read import SessionBody
from app.sessions.compare_steps import CauseChange, Difference
from app.sessions.models.reports import open_report
from app.sessions.questions import WrittenQuestion

_SECTIONS: Final = 6
_INDEX: Final = "/docs/search/search_index.json"
# Weight of a word in a heading, relative to a word in a section's text.
_IN_TITLE: Final = 5


class _Section(BaseModel):
    location: str
    title: str
    text: str


class _Index(BaseModel):
    docs: list[_Section]


async def search_docs(ctx: Ctx, words: Annotated[str, Field(min_length=1, max_length=200)]) -> str:
    """Search Paceline's documentation: sections that have most of the words, with their text."""
    api = api_of(ctx)
    index = _Index.model_validate_json(await api.page(_INDEX))
    query = set(re.findall(r"\w+", words.lower()))
    sections = sorted(
        ((score, section) for section in index.docs if (score := _score(section, query))),
        key=lambda scored: -scored[0],
    )[:_SECTIONS]
    rows: list[dict[str, Value]] = [
        {
            "title": section.title,
            "text": section.text,
            "link": f"{api.link('docs')}/{section.location}",
        }
        for _, section in sections
    ]
    return Answer({"sections": len(rows)}, rows).text()


def _score(section: _Section, query: set[str]) -> int:
    title, text = (
        set(re.findall(r"\w+", text_.lower())) for text_ in (section.title, section.text)
    )
    return _IN_TITLE * len(query & title) + len(query & text)


class _Host(BaseModel):
    host: str
    cost_gpu_hours: float
    blamed: bool
    slow_sessions: int
    slowdown_now: float
    gpus: list[str]
    last_seen: datetime


class _Hosts(BaseModel):
    hosts: list[_Host]
    total: int


async def hosts(
    ctx: Ctx,
    words: Annotated[str, Field(max_length=200, description="In a host, a job or a cause")] = "",
    show: Annotated[Show, Field(description="Only blamed or repaired ones")] = Show.ALL,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """List hosts, the one that cost most GPU-hours first, with the GPUs that causes name."""
    api = api_of(ctx)
    listed = await api.get(_Hosts, "hosts", q=words, show=show, limit=limit)
    rows: list[dict[str, Value]] = [
        {**host.model_dump(), "link": api.link("hosts", host.host)} for host in listed.hosts
    ]
    return Answer({"hosts": listed.total}, rows, api.link("hosts")).text()


# Maximum of events of an incident's history in an answer, the latest.
_EVENTS: Final = 8
_COMMENTS: Final = 4


class _Comment(BaseModel):
    at: datetime
    author: str
    words: str


class _Incident(IncidentBody):
    """An incident in an answer of the API, with comments without ids."""

    events: list[EventRow]
    comments: list[_Comment]


async def list_incidents(
    ctx: Ctx,
    state: Annotated[IncidentState | None, Field(description="Default: every state")] = None,
    job: Annotated[str | None, Field(max_length=200, description="Only of this job")] = None,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """List incidents, firing ones first: cause, where, since when, severity."""
    api = api_of(ctx)
    listed = await api.get(IncidentListBody, "incidents", state=state, job=job, limit=limit)
    rows = [_row(api, incident) for incident in listed.incidents]
    return Answer({"incidents": len(rows)}, rows, api.link("incidents")).text()


async def get_incident(ctx: Ctx, incident: UUID) -> str:
    """Read an incident: what its latest session said, its history and its comments."""
    api = api_of(ctx)
    read = await api.get(_Incident, "incidents", str(incident))
    events: list[dict[str, Value]] = [
        {"event": event.event, "at": event.at, "by": event.actor, "note": event.note}
        for event in read.events[-_EVENTS:]
    ]
    comments: list[dict[str, Value]] = [
        {"comment": comment.words, "at": comment.at, "by": comment.author}
        for comment in read.comments[-_COMMENTS:]
    ]
    facts: dict[str, Value] = {
        **_row(api, read),
        "why_resolved": read.why_resolved,
        "acknowledged_by": read.acknowledged_by,
        "assignee": read.assignee,
        "silenced_until": read.silenced_until,
        "what_its_session_said": read.facts,
    }
    return Answer(facts, [*events, *comments], api.link("incidents", str(incident))).text()


async def acknowledge(
    ctx: Ctx,
    incident: UUID,
    note: Annotated[str | None, Field(max_length=500)] = None,
) -> str:
    """Acknowledge an incident, so that it is not repeated and does not escalate."""
    api = api_of(ctx)
    # If users sign in, the server takes the name from the token instead.
    body = {"by": "assistant", "note": note}
    acknowledged = await api.post(_Incident, body, "incidents", str(incident), "ack")
    return Answer(_row(api, acknowledged), link=api.link("incidents", str(incident))).text()


def _row(api: Api, incident: IncidentBody) -> dict[str, Value]:
    return {
        "id": incident.id,
        "job": incident.job,
        "cause": incident.cause,
        "where": incident.where,
        "state": incident.state,
        "severity": incident.severity,
        "opened_at": incident.opened_at,
        "resolved_at": incident.resolved_at,
        "link": api.link("incidents", str(incident.id)),
    }


# Maximum of sessions of a job in an answer, the latest.
_SESSIONS: Final = 12
_CHANGES: Final = 6

JobName = Annotated[str, Field(min_length=1, max_length=200, description="Name of a job")]


async def list_jobs(
    ctx: Ctx,
    words: Annotated[str, Field(max_length=200, description="In a name, label or cause")] = "",
    show: Annotated[
        CurrentShow, Field(description="`slow`, or `none`: without a verdict")
    ] = CurrentShow.ALL,
    limit: Annotated[int, Field(ge=1, le=50)] = 10,
) -> str:
    """List jobs, the one that loses most GPU-hours first, with the verdict of each."""
    api = api_of(ctx)
    listed = await api.get(JobListBody, "jobs", q=words, show=show, limit=limit)
    rows = [_job_row(api, job) for job in listed.jobs]
    return Answer({"jobs": listed.total}, rows, api.link()).text()


async def get_job(ctx: Ctx, job: JobName) -> str:
    """Read a job over time: its latest sessions, and the changes that lasted."""
    api = api_of(ctx)
    axis = await api.get(JobAxis, "jobs", job, "history")
    sessions: list[dict[str, Value]] = [
        {
            "session": point.number,
            "id": point.id,
            "received_at": point.received_at,
            "slowdown": point.slowdown,
            "step_time_s": point.step_time_s,
            "gpu_hours_lost_an_hour": point.gpu_hours_lost_per_hour,
            "cause": point.cause,
        }
        for point in axis.points[-_SESSIONS:]
    ]
    changes: list[Value] = [
        {
            "of": change.measure,
            "at": change.at,
            "before": change.before,
            "after": change.after,
            "cause": change.cause,
            "mark": change.mark,
        }
        for change in axis.changes[:_CHANGES]
    ]
    facts: dict[str, Value] = {"job": job, "sessions": len(axis.points), "changes": changes}
    return Answer(facts, sessions[::-1], api.link("jobs", job)).text()


def _job_row(api: Api, job: JobBody) -> dict[str, Value]:
    verdict, urgent = job.told, job.incident
    headline = verdict.headline
    return {
        "job": job.name,
        "verdict": verdict.reason if headline is None else headline.sentence,
        "slowdown": None if headline is None else headline.slowdown,
        "gpu_hours_lost_an_hour": None if headline is None else headline.gpu_hours_lost_per_hour,
        "state": verdict.state,
        "session": verdict.id,
        "received_at": verdict.received_at,
        "incident": None if urgent is None else urgent.id,
        "labels": job.labels or None,
        "finished": job.finished or None,
        "link": api.link("jobs", job.name),
    }


_TIME_LIMIT_S: Final = 30
_POLL_S: Final = 0.5
# Number of polls for a plan, because a worker may have to compute other plans first.
_POLLS: Final = 180


class _Submitted(BaseModel):
    plan: UUID


class _Change(BaseModel):
    code: str
    message: str


class _Plan(BaseModel):
    state: PlanState
    reason: str | None
    gap: float | None
    iteration_ms: float | None
    faults: list[_Change]


async def plan(
    ctx: Ctx,
    specification: Annotated[
        str,
        Field(
            max_length=60_000, description="YAML or JSON: model, devices, batch; see search_docs"
        ),
    ],
) -> str:
    """Search the pipeline template that executes fastest on a cluster; takes up to a minute."""
    api = api_of(ctx)
    body = {"spec": specification, "time_limit_s": _TIME_LIMIT_S}
    submitted = await api.post(_Submitted, body, "plans")
    for _ in range(_POLLS):
        answered = await api.get(_Plan, "plans", str(submitted.plan))
        if answered.state not in PlanState.UNDERWAY:
            break
        await asyncio.sleep(_POLL_S)
    else:
        message = f"the plan still waits for a worker: {api.link('plans', str(submitted.plan))}"
        raise ToolError(message)
    facts: dict[str, Value] = {
        "state": answered.state,
        "iteration_time_ms": answered.iteration_ms,
        "gap": answered.gap,
        "reason": answered.reason,
    }
    changes: list[dict[str, Value]] = [
        {"code": fault.code, "what_would_help": fault.message} for fault in answered.faults
    ]
    return Answer(facts, changes, api.link("plans", str(submitted.plan))).text()


# Maximum number of fixes of a report in an answer.
_FIXES: Final = 5
_SENTENCES: Final = 3

SessionId = Annotated[UUID, Field(description="Id of a session, as lists and links have it")]


class _Session(SessionBody):
    meta: dict[str, Any]
    has_report: bool


class _Answered(BaseModel):
    step_time_s: float
    simulated_step_time_s: float
    gain: float
    slowdown: float


class _Comparison(BaseModel):
    step_times: Difference | None
    causes: list[CauseChange]


async def get_session(ctx: Ctx, session: SessionId) -> str:
    """Read a session: state, sizes, the sentence of its verdict, and why there is none."""
    api = api_of(ctx)
    read = await api.get(_Session, "sessions", str(session))
    headline = read.headline
    facts: dict[str, Value] = {
        "job": read.job,
        "session": read.session,
        "state": read.state,
        "received_at": read.received_at,
        "sizes": read.sizes.model_dump(),
        "steps": read.steps,
        "verdict": None if headline is None else headline.sentence,
        "slowdown": None if headline is None else headline.slowdown,
        "gpu_hours_lost_an_hour": None if headline is None else headline.gpu_hours_lost_per_hour,
        "reason": read.reason,
        "reason_code": read.reason_code,
        "labels": read.meta.get("labels"),
        "has_report": read.has_report,
    }
    return Answer(facts, link=api.link("sessions", str(session))).text()


async def explain_verdict(ctx: Ctx, session: SessionId) -> str:
    """Explain a session's verdict: its causes with place, share and evidence, and fixes by gain."""
    api = api_of(ctx)
    report = open_report(await api.text("sessions", str(session), "report"))
    verdict = report.verdict
    causes: list[dict[str, Value]] = [
        {
            "cause": cause.cause,
            "share_of_lost_time": cause.contribution,
            "cost_s_a_step": cause.cost_s,
            "confidence": cause.confidence,
            "evidence": list(cause.evidence[:_SENTENCES]),
        }
        for cause in report.causes
    ]
    fixes: list[dict[str, Value]] = [
        {
            "fix": fix.title,
            "predicted_gain": fix.predicted_gain,
            "at_most": fix.at_most or None,
            "how_replayed": fix.detail,
        }
        for fix in report.recommendations[:_FIXES]
    ]
    facts: dict[str, Value] = {
        "verdict": verdict.sentence,
        "slowdown": report.headline.slowdown,
        "gpu_hours_lost_an_hour": report.gpu_hours_lost_per_hour,
        "replay_differs_by": report.fidelity.discrepancy,
    }
    return Answer(facts, [*causes, *fixes], api.link("sessions", str(session))).text()


async def what_if(ctx: Ctx, session: SessionId, question: WrittenQuestion) -> str:
    """Replay a session with changed durations: the step time, and the gain as a share of a step.

    Every operation takes its `base` duration, `recorded` or `ideal`, unless one of `changes`
    selects it: then `duration` (`recorded`, `ideal` or `peers`) times `scale`.
    """
    api = api_of(ctx)
    body = question.model_dump(mode="json", exclude_unset=True, by_alias=True)
    answered = await api.post(_Answered, body, "sessions", str(session), "what-if")
    return Answer(answered.model_dump(), link=api.link("sessions", str(session))).text()


async def compare(ctx: Ctx, before: SessionId, after: SessionId) -> str:
    """Hold two sessions side by side: step times with a test, and causes that came or went."""
    api = api_of(ctx)
    comparison = await api.get(_Comparison, "sessions", str(before), "compare", str(after))
    times = comparison.step_times
    facts: dict[str, Value] = {}
    if times is not None:
        facts = {
            "step_time_before_s": times.before_s,
            "step_time_after_s": times.after_s,
            "change": times.change,
            "p": times.p,
        }
    causes: list[dict[str, Value]] = [
        {
            "cause": cause.cause,
            "share_before": cause.before,
            "share_after": cause.after,
            "change": cause.change,
        }
        for cause in comparison.causes
    ]
    return Answer(facts, causes, f"{api.link('compare')}?a={before}&b={after}").text()


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, whose name, arguments and description are those of its function."""

    function: Callable[..., Awaitable[str]]
    title: str
    # Whether the tool only reads, so that it changes nothing that users see.
    reads: bool = True


TOOLS: Final = (
    Tool(list_incidents, "Incidents"),
    Tool(get_incident, "An incident"),
    Tool(list_jobs, "Jobs"),
    Tool(get_job, "A job over time"),
    Tool(get_session, "A session"),
    Tool(explain_verdict, "Why a session is slow, and what would help"),
    Tool(what_if, "What a session's step would take"),
    Tool(compare, "What changed between two sessions"),
    Tool(hosts, "Hosts by what they cost"),
    Tool(plan, "A pipeline template for a cluster"),
    Tool(search_docs, "Search the documentation"),
    Tool(acknowledge, "Acknowledge an incident", reads=False),
)
