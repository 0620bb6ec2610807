"""The times at which a group is sent, and the messages for each channel."""

from __future__ import annotations

import uuid
from datetime import timedelta

from app.incidents.grouping import (
    Audience,
    Content,
    DeliveryStyle,
    IncidentItem,
    Sent,
    Status,
    Timing,
    content_for,
    is_due,
    next_flush,
    visible,
)
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import NO_DATA_CAUSE
from app.incidents.models.tables import IncidentState
from tests.unit.incidents.builders import START

TIMING = Timing()
LONG_AGO = START - timedelta(days=365)


def incident(
    number: int, state: IncidentState = IncidentState.FIRING, cause: str = "slow_worker"
) -> Incident:
    return Incident(
        id=uuid.UUID(int=number),
        fingerprint=str(number),
        cause=cause,
        where="",
        state=state,
        severity="warning",
        rules=(),
        opened_at=START,
        fired_at=None if state is IncidentState.PENDING else START,
    )


def firing(number: int, epoch: int = 0) -> IncidentItem:
    return IncidentItem(uuid.UUID(int=number), Status.FIRING, epoch)


def audience(*sent: Sent, style: DeliveryStyle | None = None) -> Audience:
    return Audience(style or DeliveryStyle(), sent)


def sent(*present: IncidentItem, delivered: bool = True, counts: bool = True) -> Sent:
    return Sent(START, Content(present=present), delivered, counts)


def due(incidents: list[Incident], to: Audience, after: timedelta = timedelta(0)) -> bool:
    return is_due(content_for(incidents, to), incidents, to, TIMING, START + after)


def test_a_quiet_group_waits_and_a_lively_one_keeps_its_interval() -> None:
    assert next_flush(TIMING, START, None, None) == START + TIMING.group_wait
    just_now = START - timedelta(minutes=1)
    assert next_flush(TIMING, START, just_now, None) == just_now + TIMING.group_interval
    assert next_flush(TIMING, START, LONG_AGO, None) == START + TIMING.group_wait


def test_another_transition_does_not_delay_a_due_message() -> None:
    soon = START + timedelta(seconds=3)
    assert next_flush(TIMING, START, None, soon) == soon


def test_an_incident_that_ends_unsent_makes_no_message() -> None:
    content = content_for([incident(1, IncidentState.RESOLVED)], audience())
    assert content == Content()
    assert not due([incident(1, IncidentState.RESOLVED)], audience())


def test_pending_and_silenced_incidents_make_no_message() -> None:
    assert not due(
        [incident(1, IncidentState.PENDING), incident(2, IncidentState.SILENCED)], audience()
    )


def test_a_new_incident_is_news_and_the_same_one_is_not() -> None:
    assert due([incident(1)], audience())
    assert not due([incident(1)], audience(sent(firing(1))))
    assert due([incident(1), incident(2)], audience(sent(firing(1))))


def test_the_end_of_a_sent_incident_is_sent_once() -> None:
    over = [incident(1, IncidentState.RESOLVED)]
    told = audience(sent(firing(1)))
    content = content_for(over, told)
    assert [item.incident.int for item in content.resolved] == [1]
    assert due(over, told)
    assert not due(over, audience(sent(firing(1)), Sent(START, content, delivered=True)))


def test_the_end_is_sent_for_every_incident_that_may_have_been_sent() -> None:
    tried = audience(sent(firing(1), delivered=False, counts=False))
    assert due([incident(1, IncidentState.RESOLVED)], tried)


def test_a_refused_message_is_not_tried_again_at_every_look_but_in_time() -> None:
    refused = audience(sent(firing(1), delivered=False))
    assert not due([incident(1)], refused, TIMING.group_interval)
    assert due([incident(1)], refused, TIMING.repeat_interval)


def test_firing_incidents_are_repeated_but_not_acknowledged_ones() -> None:
    told = audience(sent(firing(1)))
    assert not due([incident(1)], told, TIMING.repeat_interval - timedelta(seconds=1))
    assert due([incident(1)], told, TIMING.repeat_interval)
    acknowledged = [incident(1, IncidentState.ACKNOWLEDGED)]
    assert not due(acknowledged, told, TIMING.repeat_interval)
    forgetful = audience(sent(firing(1)), style=DeliveryStyle(refreshes=True))
    assert due(acknowledged, forgetful, TIMING.repeat_interval)


def test_an_acknowledgement_is_news_where_it_is_shown() -> None:
    acknowledged = [incident(1, IncidentState.ACKNOWLEDGED)]
    assert not due(acknowledged, audience(sent(firing(1))))
    assert due(acknowledged, audience(sent(firing(1)), style=DeliveryStyle(acknowledgements=True)))


def test_missing_data_hides_no_firing_incident() -> None:
    silent = incident(2, cause=NO_DATA_CAUSE)
    assert visible([incident(1), silent]) == [incident(1), silent]
    content = content_for([incident(1), silent], audience(sent(firing(1))))
    assert [item.incident.int for item in content.present] == [1, 2]
    assert (content.resolved, content.withheld) == ((), ())


def test_the_end_of_a_withheld_incident_is_sent() -> None:
    withheld = content_for(
        [incident(1, IncidentState.SILENCED), incident(2)], audience(sent(firing(1), firing(2)))
    )
    later = audience(Sent(START, withheld, delivered=True))
    over = content_for([incident(1, IncidentState.RESOLVED), incident(2)], later)
    assert [item.incident.int for item in over.resolved] == [1]


def test_a_channel_that_is_enabled_again_gets_everything() -> None:
    assert due([incident(1)], audience(sent(firing(1), counts=False)))
