"""Incidents: listed, read, and acknowledged where that is allowed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import BaseModel, Field

from app.alerts.states import IncidentState
from app.api.alerts.bodies.incidents import IncidentBody, IncidentListBody
from app.mcp.answers import Answer, Value
from app.mcp.asking import Api, Ctx, api_of
from app.services.alerts.incident_reads import EventRow

# Of a long history the latest.
_EVENTS: Final = 8
_COMMENTS: Final = 4


class _Comment(BaseModel):
    at: datetime
    author: str
    words: str


class _Incident(IncidentBody):
    """An incident as the API gives it, whose comments have no id."""

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
    found = await api.get(IncidentListBody, "incidents", state=state, job=job, limit=limit)
    rows = [_row(api, incident) for incident in found.incidents]
    return Answer({"incidents": len(rows)}, rows, api.link("incidents")).text()


async def get_incident(ctx: Ctx, incident: UUID) -> str:
    """Read an incident: what its latest session said, its history and its comments."""
    api = api_of(ctx)
    found = await api.get(_Incident, "incidents", str(incident))
    events: list[dict[str, Value]] = [
        {"event": event.event, "at": event.at, "by": event.actor, "note": event.note}
        for event in found.events[-_EVENTS:]
    ]
    comments: list[dict[str, Value]] = [
        {"comment": comment.words, "at": comment.at, "by": comment.author}
        for comment in found.comments[-_COMMENTS:]
    ]
    facts: dict[str, Value] = {
        **_row(api, found),
        "why_resolved": found.why_resolved,
        "acknowledged_by": found.acknowledged_by,
        "assignee": found.assignee,
        "silenced_until": found.silenced_until,
        "what_its_session_said": found.facts,
    }
    return Answer(facts, [*events, *comments], api.link("incidents", str(incident))).text()


async def acknowledge(
    ctx: Ctx,
    incident: UUID,
    note: Annotated[str | None, Field(max_length=500)] = None,
) -> str:
    """Acknowledge an incident, so that it is not repeated and does not escalate."""
    api = api_of(ctx)
    # Where people sign in, the server names who did it by the token.
    body = {"by": "assistant", "note": note}
    found = await api.post(_Incident, body, "incidents", str(incident), "ack")
    return Answer(_row(api, found), link=api.link("incidents", str(incident))).text()


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
