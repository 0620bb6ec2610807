"""The page to print of an incident, for those who repair the machine."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.alerts.grouping import Status
from app.alerts.lines import lines_of
from app.alerts.message import Alert
from app.alerts.states import IncidentState
from app.analysis.diagnosis.causes.registry import blames_machine
from app.dashboard.alerts.incident_life import ChosenIncident, chosen_incident
from app.dashboard.ui.moments import plain

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence
    from datetime import datetime

    from app.services.alerts.triage.evidence import Evidence


@dataclass(frozen=True, slots=True)
class EvidencePage:
    """The page; `picture` is the address of the heatmap with the picture in it."""

    id: uuid.UUID
    now: datetime
    title: str
    one: ChosenIncident
    summary: str
    fields: Sequence[tuple[str, str]]
    evidence: Sequence[str]
    host: str
    commands: Sequence[tuple[str, str]]
    no_commands: str
    picture: str
    zip_url: str
    incident_url: str


def evidence_page(found: Evidence) -> EvidencePage:
    """Return the page to print."""
    view = found.life.view
    incident, one = view.row.incident, chosen_incident(found.life, [])
    over = incident.state is IncidentState.RESOLVED
    lines = lines_of(
        Alert(
            incident=incident.id,
            fingerprint=incident.fingerprint,
            # What was measured stands here also when it is over.
            status=Status.FIRING,
            severity=incident.severity,
            cause=incident.cause,
            where=incident.where,
            rules=tuple(view.row.rules.values()),
            since=incident.fired_at or incident.opened_at,
            resolved_at=incident.resolved_at,
            why_resolved=incident.why_resolved,
            value=incident.value,
            facts=incident.facts,
            hang=incident.hang,
            notice=incident.notice,
            view_url="",
            incident_url="",
        ),
        incident.resolved_at or view.now,
    )
    return EvidencePage(
        id=incident.id,
        now=view.now,
        title=f"Evidence: {one.title}",
        one=one,
        summary=lines.summary if not over else f"Over: {lines.summary}",
        fields=lines.fields,
        evidence=lines.evidence,
        host=found.host,
        commands=found.commands,
        no_commands=_no_commands(found),
        picture=""
        if found.picture is None
        else f"data:image/png;base64,{base64.b64encode(found.picture).decode()}",
        zip_url=f"/incidents/{incident.id}/evidence.zip",
        incident_url=f"/incidents/{incident.id}",
    )


def evidence_text(page: EvidencePage) -> str:
    """Return what the page says as plain text."""
    parts = [page.title, "", page.summary]
    parts += [f"{name}: {value}" for name, value in page.fields]
    parts += [f"- {sentence}" for sentence in page.evidence]
    if page.one.inside:
        parts += ["", page.one.inside_title]
        parts += [f"- {job.job}: {job.slowdown}" for job in page.one.inside]
    if page.commands:
        parts += ["", *(f"{scheduler}: {command}" for scheduler, command in page.commands)]
    parts += ["", "Times are UTC"]
    parts += [f"{moment.at:%Y-%m-%d %H:%M} {plain(moment.text)}" for moment in page.one.events]
    parts += [f"{said.at:%Y-%m-%d %H:%M} {said.author}: {said.words}" for said in page.one.comments]
    return "\n".join(parts) + "\n"


def _no_commands(found: Evidence) -> str:
    if found.commands:
        return ""
    if found.guessed:
        return (
            "The host's name is a guess, as it is that of a container: there is no command. "
            "Let the job say its node"
        )
    if found.host:
        return "The host's name is not a valid name of one node: there is no command"
    if not blames_machine(found.life.view.row.incident.found):
        return "No host is at fault: there is no command"
    return "Its sessions name no host: there is no command"
