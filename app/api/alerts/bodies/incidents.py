"""Incidents as the API has them, made from what services return."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from app.alerts.facts import HangFacts
from app.alerts.notices.facts import NoticeFacts
from app.alerts.rules import Severity
from app.alerts.states import IncidentState
from app.services.alerts.incident_reads import (
    Comment,
    EventRow,
    IncidentRow,
    IncidentView,
    InsideRow,
)


class IncidentBody(BaseModel):
    """An incident; `rules` are names by id, `facts` what its latest session said."""

    id: uuid.UUID
    job: str
    fingerprint: str
    cause: str
    where: str
    state: IncidentState
    severity: Severity
    rules: dict[uuid.UUID, str]
    value: float | None
    opened_at: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    escalated_at: datetime | None
    acknowledged_by: str | None
    silenced_until: datetime | None
    silence_reason: str | None
    silenced_by: str | None
    why_resolved: str | None
    resolved_by: str | None
    assignee: str | None
    inside: list[InsideRow] = Field(
        description="Other incidents on the same machine that it speaks for."
    )
    lead: uuid.UUID | None = Field(
        description="The incident on the same machine that speaks for it; channels hear of that."
    )
    facts: dict[str, Any] | None
    hang: HangFacts | None = Field(description="The hang that it is about.")
    notice: NoticeFacts | None = Field(
        description="What was noticed in the pulse, that it is about; as of its last transition."
    )


class IncidentDetailBody(IncidentBody):
    """An incident with its history, the oldest event first, and its latest 100 comments."""

    events: list[EventRow]
    comments: list[Comment]


class IncidentListBody(BaseModel):
    """Incidents, firing ones first."""

    incidents: list[IncidentBody]


def incident_values(row: IncidentRow) -> dict[str, Any]:
    """Return what the body of an incident is made of."""
    incident = row.incident
    silence = incident.silence
    same: Mapping[str, Any] = {
        name: getattr(incident, name)
        for name in IncidentBody.model_fields
        if hasattr(incident, name) and name not in ("rules", "facts")
    }
    return {
        **same,
        "job": row.job,
        "assignee": row.assignee,
        "inside": row.inside,
        "lead": row.lead,
        "rules": dict(row.rules),
        "silenced_until": silence.until if silence else None,
        "silence_reason": silence.reason if silence else None,
        "silenced_by": silence.by if silence else None,
        "facts": asdict(incident.facts) if incident.facts else None,
    }


def incident_detail_body(view: IncidentView) -> IncidentDetailBody:
    """Return an incident with its history as the API has it."""
    return IncidentDetailBody(
        **incident_values(view.row),
        events=list(view.events),
        comments=list(view.comments),
    )
