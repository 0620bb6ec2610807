"""Rules as the API has them, and what one would have done."""

from __future__ import annotations

import uuid
from datetime import datetime

from pydantic import BaseModel

from app.alerts.channels.note import Note as SummaryNote
from app.alerts.rules import (
    Audience,
    Condition,
    Count,
    Escalation,
    Rule,
    Selector,
    Severity,
    ShortText,
)
from app.api.frame.answers import ReadBody
from app.services.alerts.rules import Preview


class RuleBody(BaseModel):
    """A rule."""

    name: ShortText
    condition: Condition
    selector: Selector = Selector()
    enabled: bool = True
    consecutive: Count = 2
    clear_sessions: Count = 2
    severity: Severity = "warning"
    audience: Audience = "on_call"
    channels: tuple[uuid.UUID, ...] = ()
    escalation: Escalation | None = None

    def rule(self, rule_id: uuid.UUID) -> Rule:
        """Return the rule under an id."""
        return Rule(id=rule_id, **{name: getattr(self, name) for name in type(self).model_fields})


class StoredRuleBody(RuleBody, ReadBody):
    """A rule and its id."""

    id: uuid.UUID


class RuleListBody(BaseModel):
    """All rules by name."""

    rules: list[StoredRuleBody]


class OutcomeBody(ReadBody):
    """The outcome of an incident."""

    cause: str
    where: str
    severity: Severity
    fired_at: datetime | None
    resolved_at: datetime | None
    value: float | None


class PreviewIncidentBody(OutcomeBody):
    """An incident that would have been."""

    job: str


class SummarySectionBody(ReadBody):
    """Lines under a heading."""

    heading: str
    lines: tuple[str, ...]


class SummaryBody(ReadBody):
    """What a weekly rule would send of the last seven days."""

    title: str
    sections: tuple[SummarySectionBody, ...]
    link: str


class PreviewBody(BaseModel):
    """What a rule would have done since then."""

    since: datetime
    jobs: int
    sessions: int
    complete: bool
    incidents: list[PreviewIncidentBody]
    summary: SummaryBody | None = None


def preview_body(found: Preview, note: SummaryNote | None = None) -> PreviewBody:
    """Return a preview as the API has it; `note` is what a weekly rule would send."""
    return PreviewBody(
        since=found.since,
        jobs=found.jobs,
        sessions=found.sessions,
        complete=found.complete,
        incidents=[
            PreviewIncidentBody(job=item.job, **dict(OutcomeBody.model_validate(item.incident)))
            for item in found.incidents
        ],
        summary=None if note is None else SummaryBody.model_validate(note),
    )
