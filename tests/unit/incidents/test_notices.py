"""Incidents of notices: pending until a session judges the notice, ended by the pulse."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.pulse.notices import NoticeKind
from app.analysis.report.session_verdict import BlamedGpu, Slowdown, SuspectedCause, VerdictFix
from app.incidents.conditions import (
    JOB_FINISHED,
    PART_OF_ANOTHER,
    UNHEARD,
    evaluate,
    judge_notice,
    next_look,
)
from app.incidents.grouping import IncidentChange, JobState
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import Facts, NoticeFacts, Outcome
from app.incidents.models.rules import DEFAULT_RULES, HANG_RULE, NOTICE_RULE, Noticed, Rule
from app.incidents.models.tables import IncidentState

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SESSION = uuid.UUID(int=12)
NOTICE = NoticeFacts(
    attempt=1,
    number=0,
    kind=NoticeKind.SLOW_RANK,
    ranks=(37,),
    hosts=("node-017",),
    factor=1.31,
    from_step=800,
    noticed_at=NOW,
    fires_at=NOW + 6 * MINUTE,
    cleared_at=None,
    heard_at=NOW,
    sentence="Rank 37 (node-017): computing takes 1.31× as long as that of the peers",
    asked=True,
    baseline_s=1.0,
    step_s=1.3,
    gpu_hours=2.0,
    job_ranks=64,
)
SLOW_WORKER = SuspectedCause(
    "slow_worker", ("node-017",), 0.95, 0.2, gpus=(BlamedGpu(37, None, None),)
)
FACTS = Facts(
    SESSION,
    "llm",
    1,
    12,
    NOW,
    step_time_s=1.3,
    causes=(SLOW_WORKER,),
    fix=VerdictFix("Replace the worker", 0.23, 1.0),
    headline=Slowdown(1.3, None, 0.5, HeadlineKind.PUBLISHED),
    gpus=64,
)


def changes(
    notices: Sequence[NoticeFacts],
    incidents: Sequence[Incident] = (),
    *,
    now: datetime = NOW,
    rules: Sequence[Rule] = (NOTICE_RULE, HANG_RULE),
    history: Sequence[Facts] = (),
    finished_at: datetime | None = None,
) -> list[IncidentChange]:
    job = JobState(
        "llm", {}, history, [], finished_at, incidents, {}, {}, hang=None, notices=notices
    )
    return evaluate(job, rules, now, uuid.uuid4)


def pending() -> Incident:
    (change,) = changes([NOTICE])
    assert not change.notifies
    return change.incident


def test_a_notice_is_pending_and_fires_with_what_a_session_says() -> None:
    incident = pending()
    assert (incident.state, incident.cause, incident.where) == ("pending", "slow_rank", "node-017")
    assert changes([NOTICE], [incident]) == []

    said = replace(
        NOTICE, outcome=Outcome.CONFIRMED, session=12, session_id=SESSION, cause="slow_worker"
    )
    rules = (*DEFAULT_RULES, NOTICE_RULE)
    # Rules of sessions that blame the same rank join this incident.
    (change,) = changes([said], [incident], rules=rules, history=[FACTS])
    assert (change.event, change.incident.state) == ("fired", "firing")
    assert change.incident.facts == FACTS
    assert len(change.incident.rules) > 1

    over = replace(said, cleared_at=NOW + 9 * MINUTE, after_s=1.01)
    (change,) = changes([over], [change.incident], now=NOW + 9 * MINUTE, rules=rules)
    assert change.incident.state is IncidentState.RESOLVED
    assert change.incident.why_resolved == (
        "the pulse is as before, after 2.0 GPU-hours; predicted −23.0\xa0%, "
        "since 03:09 UTC a step takes −22.3\xa0%"
    )


def firing(notice: NoticeFacts) -> Incident:
    (change,) = changes([notice], [pending()])
    assert change.incident.state is IncidentState.FIRING
    return change.incident


def test_what_has_fired_is_over_when_steps_say_what_its_end_brought() -> None:
    said = replace(NOTICE, outcome=Outcome.CONFIRMED)
    incident, ended = firing(said), NOW + 9 * MINUTE
    over = replace(said, cleared_at=ended, heard_at=ended)
    assert changes([over], [incident], now=ended) == []
    job = JobState("llm", {}, [], [], None, [incident], {}, {}, hang=None, notices=[over])
    # Without further steps, some seconds suffice instead.
    assert next_look(job, [NOTICE_RULE], ended) == ended + timedelta(seconds=30)
    (change,) = changes([over], [incident], now=ended + timedelta(seconds=30))
    assert change.incident.why_resolved == "the pulse is as before, after 2.0 GPU-hours"
    (change,) = changes([replace(over, after_s=1.0)], [incident], now=ended)
    assert "a step takes \N{MINUS SIGN}23.1" in (change.incident.why_resolved or "")


@pytest.mark.parametrize(
    "changed",
    [{"step_s": None}, {"heard_at": NOW}, {"kind": NoticeKind.HANG}],
    ids=["without steps", "of an earlier attempt", "of what stood still"],
)
def test_what_cannot_be_measured_is_not_waited_for(changed: dict[str, Any]) -> None:
    ended = NOW + 9 * MINUTE
    over = replace(NOTICE, cleared_at=ended, heard_at=ended)
    assert over.measured_at == ended + timedelta(seconds=30)
    assert replace(over, step_s=20.0).measured_at == ended + timedelta(seconds=200)
    assert replace(over, step_s=600.0).measured_at == ended + timedelta(minutes=5)
    assert replace(over, **changed).measured_at is None


@pytest.mark.parametrize("outcome", [Outcome.UNCONFIRMED, Outcome.EXPLAINED])
def test_it_fires_by_itself_or_explained(outcome: Outcome) -> None:
    (change,) = changes([replace(NOTICE, outcome=outcome)], [pending()])
    assert (change.event, change.incident.state) == ("fired", "firing")


def test_rules_choose_kinds_and_may_fire_at_once() -> None:
    at_once = replace(NOTICE_RULE, condition=Noticed(kinds=(NoticeKind.SLOW_RANK,), at_once=True))
    (change,) = changes([NOTICE], rules=[at_once])
    assert change.incident.state is IncidentState.FIRING
    drift = replace(NOTICE_RULE, condition=Noticed(kinds=(NoticeKind.DRIFT,)))
    assert changes([NOTICE], rules=[drift]) == []


@pytest.mark.parametrize("kind", [NoticeKind.HANG, NoticeKind.SILENT])
def test_a_standstill_fires_at_once_as_one_critical_incident(kind: NoticeKind) -> None:
    (change,) = changes([replace(NOTICE, kind=kind, factor=None)])
    incident = change.incident
    assert (incident.state, incident.cause, incident.where) == ("firing", "hang", "")
    assert incident.severity == "critical"


def test_what_is_cleared_gone_finished_or_unheard_is_over() -> None:
    incident = pending()

    def why(found: list[IncidentChange]) -> str | None:
        (change,) = found
        assert change.incident.state is IncidentState.RESOLVED
        return change.incident.why_resolved

    cleared = replace(NOTICE, outcome=Outcome.CLEARED, session=12)
    assert why(changes([cleared], [incident])) == "session 12 is as fast as before"
    assert changes([cleared]) == []
    assert why(changes([], [incident])) == PART_OF_ANOTHER
    assert why(changes([NOTICE], [incident], finished_at=NOW)) == JOB_FINISHED
    assert changes([NOTICE], finished_at=NOW) == []
    assert why(changes([NOTICE], [incident], now=NOTICE.unheard_at)) == UNHEARD


def test_another_notice_of_the_same_place_is_the_same_incident_while_both_last() -> None:
    incident = pending()
    other = replace(NOTICE, number=2, noticed_at=NOW + MINUTE)
    assert changes([NOTICE, other], [incident]) == []
    over = replace(NOTICE, cleared_at=NOW + MINUTE)
    (change,) = changes([over, other], [incident], now=NOW + MINUTE)
    assert change.incident.id == incident.id
    assert change.incident.notice == other


def test_time_is_looked_at_when_it_would_fire() -> None:
    job = JobState("llm", {}, [], [], None, [pending()], {}, {}, notices=[NOTICE])
    assert next_look(job, [NOTICE_RULE], NOW) == NOTICE.fires_at


def test_a_session_judges() -> None:
    assert judge_notice(NOTICE, FACTS) == (Outcome.CONFIRMED, "slow_worker")
    other = replace(SLOW_WORKER, where=("node-002",), gpus=())
    assert judge_notice(NOTICE, replace(FACTS, causes=(other,))) == (
        Outcome.EXPLAINED,
        "slow_worker",
    )
    job = replace(NOTICE, kind=NoticeKind.SLOW_JOB, ranks=(), hosts=())
    assert judge_notice(job, replace(FACTS, causes=(other,))) == (Outcome.CONFIRMED, "slow_worker")

    none = Slowdown(1.0, None, 0.0, HeadlineKind.PUBLISHED)
    healthy = replace(FACTS, causes=(), headline=none)
    assert judge_notice(NOTICE, healthy) == (Outcome.CONFIRMED, "")
    assert judge_notice(NOTICE, replace(healthy, step_time_s=1.02)) == (Outcome.CLEARED, "")
    # Causes without a cost explain no notice.
    assert judge_notice(NOTICE, replace(healthy, step_time_s=1.02, causes=(other,))) == (
        Outcome.CLEARED,
        "",
    )
    assert judge_notice(NOTICE, replace(FACTS, headline=None)) is None
