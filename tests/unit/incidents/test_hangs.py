"""Incidents of hangs: they fire at once, and end with their cost."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from app.incidents.conditions import evaluate, next_look
from app.incidents.grouping import IncidentChange, JobState
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import HANG_LOST_AFTER, HangFacts
from app.incidents.models.rules import HANG_RULE, Rule
from app.incidents.models.tables import IncidentState

NOW = datetime(2026, 11, 27, 2, tzinfo=UTC)
RULES = [HANG_RULE]
HANG = HangFacts(
    id=uuid.UUID(int=7),
    since=NOW - timedelta(minutes=6),
    created_at=NOW,
    changed_at=NOW,
    over_at=None,
    ranks=16,
    waiting=14,
    confidence=0.95,
    sentence="14 ranks wait for ranks 9 and 14.",
    culprits="9 (node-104 GPU 1), 14 (node-105 GPU 6)",
    remedy="Read the stack.",
)


def changes(
    hang: HangFacts | None,
    incidents: Sequence[Incident] = (),
    now: datetime = NOW,
    rules: Sequence[Rule] = RULES,
    settled: datetime | None = None,
) -> list[IncidentChange]:
    since = {} if settled is None else {RULES[0].id: settled}
    job = JobState("moe", {}, [], [], None, incidents, {}, since, hang)
    return evaluate(job, rules, now, uuid.uuid4)


def fired() -> Incident:
    (change,) = changes(HANG)
    return change.incident


def test_a_hang_fires_at_once_and_is_one_incident_until_it_is_over() -> None:
    incident = fired()
    assert (incident.state, incident.cause, incident.severity) == ("firing", "hang", "critical")
    assert incident.hang == HANG

    another = replace(HANG, id=uuid.UUID(int=8), created_at=NOW + timedelta(minutes=1))
    (change,) = changes(another, [incident], NOW + timedelta(minutes=1))
    assert (change.incident.id, change.event) == (incident.id, "held")
    assert change.incident.hang == another


def test_it_ends_with_how_long_it_lasted_and_what_it_cost() -> None:
    later = NOW + timedelta(minutes=24)
    (change,) = changes(replace(HANG, over_at=later), [fired()], later)
    assert change.incident.state is IncidentState.RESOLVED
    assert change.incident.why_resolved == (
        "the job went on or ended, after 30 min and 8.0 GPU-hours"
    )


def test_one_that_is_not_heard_of_ends_after_a_day() -> None:
    incident = fired()
    job = JobState("moe", {}, [], [], None, [incident], {}, {}, HANG)
    at = next_look(job, RULES, NOW)
    assert at is not None
    assert changes(HANG, [incident], at - timedelta(minutes=1)) == []
    (change,) = changes(HANG, [incident], at)
    assert change.incident.why_resolved == "nothing was heard of the hang for a day"


def test_what_is_settled_past_unsure_or_over_fires_nothing() -> None:
    assert changes(None) == []
    assert changes(HANG, settled=NOW) == []
    assert changes(replace(HANG, since=NOW - HANG_LOST_AFTER - timedelta(minutes=1))) == []
    assert changes(replace(HANG, confidence=0.4)) == []
    assert changes(replace(HANG, over_at=NOW)) == []
    assert changes(HANG, rules=[]) == []
