"""The table of an incident's states, tested completely."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from app.errors import ConflictError
from app.incidents.lifecycle import (
    INCIDENT,
    TRANSITIONS,
    Incident,
    Silence,
    Trigger,
    acknowledge,
    can,
    clear,
    confirm,
    end_silence,
    escalate,
    fingerprint_of,
    reopen,
    silence,
    unacknowledge,
)
from app.incidents.models.tables import IncidentState
from tests.unit.incidents.builders import START, session

LATER = START + timedelta(hours=1)
ORDER = Silence(until=LATER, reason="maintenance", by="ann")


def incident(state: IncidentState, **changes: object) -> Incident:
    values: dict[str, object] = {
        "id": uuid.UUID(int=1),
        "fingerprint": fingerprint_of("llm", "slow_worker", "node-7"),
        "cause": "slow_worker",
        "where": "node-7",
        "state": state,
        "severity": "warning",
        "rules": (uuid.UUID(int=9),),
        "opened_at": START,
        "fired_at": None if state is IncidentState.PENDING else START,
    }
    return Incident(**(values | changes))  # type: ignore[arg-type]  # fields by name


MOVES: dict[Trigger, Callable[[Incident], Incident]] = {
    Trigger.CONFIRM: lambda found: confirm(found, LATER),
    Trigger.CLEAR: lambda found: clear(found, LATER, "over"),
    Trigger.ACKNOWLEDGE: lambda found: acknowledge(found, "ann"),
    Trigger.SILENCE: lambda found: silence(found, ORDER),
    Trigger.SILENCE_END: end_silence,
    Trigger.UNACKNOWLEDGE: unacknowledge,
    Trigger.REOPEN: lambda found: reopen(replace(found, resolved_by="ann"), LATER),
    Trigger.ESCALATE: lambda found: escalate(found, LATER),
}

# A copy of the table, so that a change must be made twice.
EXPECTED = {
    "pending": {"confirm": "firing", "clear": "resolved"},
    "firing": {
        "clear": "resolved",
        "acknowledge": "acknowledged",
        "silence": "silenced",
        "escalate": "firing",
    },
    "acknowledged": {
        "clear": "resolved",
        "silence": "silenced",
        "escalate": "firing",
        "unacknowledge": "firing",
    },
    "silenced": {"clear": "resolved", "silence": "silenced", "silence_end": "firing"},
    "resolved": {"reopen": "firing"},
}


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(IncidentState, Trigger)))
def test_every_trigger_in_every_state(state: IncidentState, trigger: Trigger) -> None:
    expected = EXPECTED[state].get(trigger)
    assert can(state, trigger) == (expected is not None)
    if expected is None:
        with pytest.raises(ConflictError) as refused:
            MOVES[trigger](incident(state))
        assert refused.value.stable_code == "incident.wrong_state"
    else:
        assert MOVES[trigger](incident(state)).state == expected


def test_the_table_has_nothing_that_no_test_expects() -> None:
    assert len(TRANSITIONS) == sum(len(row) for row in EXPECTED.values())


def test_a_reopened_incident_has_its_earlier_state() -> None:
    firing = incident(IncidentState.FIRING)
    pending = incident(IncidentState.PENDING)
    for before in (firing, pending, acknowledge(firing, "ann"), silence(firing, ORDER)):
        over = clear(before, START, "drained", by="ann")
        assert reopen(over, START) == before
    over = clear(silence(firing, ORDER), START, "drained", by="ann")
    assert reopen(over, LATER).state is IncidentState.FIRING


def test_an_incident_that_its_rules_ended_is_not_reopened() -> None:
    over = clear(incident(IncidentState.FIRING), START, "its condition no longer holds")
    with pytest.raises(ConflictError) as refused:
        reopen(over, LATER)
    assert refused.value.stable_code == "incident.ended_by_itself"


def test_an_escalation_takes_an_acknowledgement_back_and_is_news() -> None:
    escalated = escalate(acknowledge(incident(IncidentState.FIRING), "ann"), LATER)
    assert escalated.acknowledged_by is None
    assert escalated.severity == "critical"
    assert (escalated.escalated_at, escalated.epoch) == (LATER, 1)


def test_what_comes_back_within_a_silence_is_silenced_from_the_beginning() -> None:
    pending = incident(IncidentState.PENDING, silence=ORDER)
    assert confirm(pending, START).state is IncidentState.SILENCED
    assert confirm(pending, LATER).state is IncidentState.FIRING


def test_the_end_of_a_silence_is_news() -> None:
    assert end_silence(silence(incident(IncidentState.FIRING), ORDER)).epoch == 1


def test_an_end_says_why_and_by_whom() -> None:
    ended = clear(incident(IncidentState.FIRING), LATER, "host replaced", by="ann")
    assert (ended.resolved_at, ended.why_resolved, ended.resolved_by) == (
        LATER,
        "host replaced",
        "ann",
    )


def test_fingerprints_keep_their_parts_apart() -> None:
    parts = [("a", "b", "c"), ("a", "bc", ""), ("ab", "c", ""), ("a", "b", "d"), ("x", "b", "c")]
    assert len({fingerprint_of(*part) for part in parts}) == len(parts)


def test_an_incident_survives_being_stored() -> None:
    stored = silence(incident(IncidentState.FIRING, facts=session(3, 1.2)), ORDER)
    assert INCIDENT.validate_json(INCIDENT.dump_json(stored)) == stored
