"""The page of incidents without any, with one, and with more than fit."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown, VerdictFix
from app.incidents.delivery_reads import DeliveryRow
from app.incidents.lifecycle import Incident, Silence
from app.incidents.models.facts import Facts
from app.incidents.models.tables import IncidentState
from app.incidents.pages.incident import IncidentsPage, first_of, incidents_page
from app.incidents.pages.list import IncidentsQuery
from app.incidents.pages.parts import actions, session_url, state_context
from app.incidents.reads import EventRow, IncidentFilter, IncidentRow, IncidentView
from app.incidents.views import PAGE, Choices, IncidentLife, Incidents, Lost, ResolvedIncident
from app.web.moments import plain
from tests.unit.incidents.pages.channels import NOW, channel, delivery, texts

RULE = uuid.UUID(int=1)


def facts(number: int, slowdown: float, **changes: Any) -> Facts:  # noqa: ANN401 - fields of Facts
    found = Facts(
        session=uuid.UUID(int=1000 + number),
        job="llm",
        attempt=1,
        number=number,
        received_at=NOW - timedelta(hours=1),
        labels={"owner": "Kim", "project": "vision"},
        slowdown=slowdown,
        slowdown_ci95=(slowdown - 0.01, slowdown + 0.01),
        waste=1 - 1 / slowdown,
        gpu_hours_lost=4.0,
        step_time_s=10.0,
        fix=VerdictFix("Replace node-7", 0.2, 8.0),
        headline=Slowdown(slowdown, None, 4.0, HeadlineKind.PUBLISHED),
        gpus=8,
    )
    return replace(found, **changes)


def incident(
    number: int = 1,
    state: IncidentState = IncidentState.FIRING,
    **changes: Any,  # noqa: ANN401 - fields of Incident
) -> Incident:
    found = Incident(
        id=uuid.UUID(int=number),
        fingerprint=str(number),
        cause="slow_worker",
        where="node-7",
        state=state,
        severity="warning",
        rules=(RULE,),
        opened_at=NOW - timedelta(hours=2),
        facts=facts(number, 1.25),
        fired_at=None if state is IncidentState.PENDING else NOW - timedelta(hours=1),
    )
    return replace(found, **changes)


def row(found: Incident, job: str = "llm") -> IncidentRow:
    return IncidentRow(job, found, {RULE: "Slow job"})


def listed(*rows: IncidentRow, **changes: Any) -> Incidents:  # noqa: ANN401 - fields of Incidents
    states = [row.incident.state for row in rows]
    found = Incidents(
        now=NOW,
        filtered=IncidentFilter(),
        number=1,
        size=PAGE,
        present=rows,
        counts={state: states.count(state) for state in set(states)},
        lost={},
        choices=Choices((), (), (), ()),
        over=(),
        over_count=0,
    )
    return replace(found, **changes)


def life(
    found: Incident, *events: EventRow, deliveries: tuple[DeliveryRow, ...] = (), at: datetime = NOW
) -> IncidentLife:
    view = IncidentView(row=row(found), events=events, now=at)
    return IncidentLife(view=view, deliveries=deliveries, sessions={})


def page_of(found: Incidents, **asked: str) -> IncidentsPage:
    return incidents_page(found, None, [channel()], {}, IncidentsQuery(**asked))


def test_says_that_nothing_is_open() -> None:
    page = page_of(listed())
    assert page.heading == "No incident is open"
    assert page.list_title == "Nothing to list"
    assert page.states == []
    assert first_of(listed()) is None


def test_one_that_fires_and_what_it_costs() -> None:
    fires = {IncidentState.FIRING: Lost(jobs=1, hourly=1.6, most=1.6, job="llm")}
    page = page_of(listed(row(incident()), lost=fires))
    assert page.title == "Incidents: 1 firing"
    assert page.heading.replace("\N{NO-BREAK SPACE}", " ") == (
        "1 incident fires and costs 1.6 GPU-hours each hour"
    )
    [line] = page.table.lines
    _, severity, state, job, slowdown, lost, fix, gain, *_ = texts(line)
    assert (severity, state, slowdown, lost) == ("warning", "Firing", "1.25×", "1.6")
    assert job == "llmSlow worker: node-7 · owner Kim, project vision"
    assert (fix, gain) == ("Replace node-7", "−20.0\N{NO-BREAK SPACE}%")


def test_the_list_is_in_the_order_that_was_asked_for_and_names_who_loses_most() -> None:
    rows = [
        row(incident(4, facts=facts(4, 1.9, labels={})), "dear"),
        row(incident(3, facts=facts(3, 1.1, labels={})), "cheap"),
        row(incident(6, facts=None), "no data"),
    ]
    fires = {IncidentState.FIRING: Lost(jobs=2, hourly=4.5, most=3.8, job="dear")}
    page = page_of(listed(*rows, lost=fires))
    jobs = [texts(line)[3].removesuffix("Slow worker: node-7") for line in page.table.lines]
    assert jobs == ["dear", "cheap", "no data"]
    assert first_of(listed(*rows)) == uuid.UUID(int=4)
    assert page.list_title.startswith("3 firing of 3 open; dear loses 84")
    assert not texts(page.table.lines[-1])[5]


def test_nothing_fires_where_all_is_acknowledged() -> None:
    acknowledged = incident(state=IncidentState.ACKNOWLEDGED, acknowledged_by="Kim")
    page = page_of(listed(row(acknowledged)))
    assert page.heading == "Nothing fires; 1\N{NO-BREAK SPACE}incident open"
    job = texts(page.table.lines[0])[3]
    assert job.endswith(" · by Kim · owner Kim, project vision")


def test_more_than_a_page_of_them() -> None:
    counts = {IncidentState.FIRING: 2 * PAGE + 30}
    rows = [row(incident(number), f"job-{number}") for number in range(1, PAGE + 1)]
    first = page_of(listed(*rows, counts=counts))
    assert len(first.table.lines) == PAGE
    assert f"; 1 to {PAGE} of {2 * PAGE + 30}" in first.list_note
    assert (first.previous_url, first.next_url) == ("", "/incidents?page=2")
    last = page_of(listed(*rows[:30], counts=counts, number=3), page="3")
    assert f"; {2 * PAGE + 1} to {2 * PAGE + 30} of {2 * PAGE + 30}" in last.list_note
    assert (last.previous_url, last.next_url) == ("/incidents?page=2", "")
    assert '?page=3"' in last.table.lines[0].drawn


def test_the_heading_contains_the_searched_words() -> None:
    page = page_of(listed(row(incident())), q="node-7")
    assert page.heading.replace("\N{NO-BREAK SPACE}", " ") == "1 matching incident fires"
    assert page.title == "Incidents: 1 found"
    assert page_of(listed(), q="node-9").heading == "No open incident matches"


def test_what_is_over_with_the_gain_that_was_measured() -> None:
    ended = incident(2, IncidentState.RESOLVED, resolved_at=NOW - timedelta(minutes=30))
    after = facts(9, 1.02, step_time_s=8.1)
    page = page_of(listed(over=[ResolvedIncident(row(ended), after)], over_count=44))
    assert page.over_title == "44\N{NO-BREAK SPACE}incidents ended in the last 7 days; the latest 1"
    [line] = page.over_table.lines
    assert texts(line) == [
        "Resolved",
        "llmSlow worker: node-7",
        "1.25× → 1.02×",
        "Replace node-7",
        "−20.0\N{NO-BREAK SPACE}%",
        "−19.0\N{NO-BREAK SPACE}%",
        "30\N{NO-BREAK SPACE}min",
    ]


def test_the_life_of_one_in_order_with_what_did_not_arrive() -> None:
    pending, firing = IncidentState.PENDING, IncidentState.FIRING
    opened = EventRow(NOW - timedelta(days=2), "opened", None, pending, None, None, None)
    fired = EventRow(NOW - timedelta(minutes=10), "fired", pending, firing, None, None, None)
    failed = delivery(
        "failed",
        id=uuid.UUID(int=8),
        channel="old",
        error="The receiver answered 410.",
        answer="gone",
    )
    found = life(incident(), opened, fired, deliveries=(delivery("delivered"), failed))
    chosen = incidents_page(
        listed(row(incident())), found, [channel()], {}, IncidentsQuery()
    ).chosen
    assert chosen is not None
    assert [(f"{moment.at:%-d %H:%M}", moment.text) for moment in chosen.events] == [
        ("18 09:30", "Pending"),
        ("20 09:20", "Firing"),
        ("20 09:22", "Sent to ops (200)"),
        ("20 09:22", "Not sent to old: The receiver answered 410: gone"),
    ]
    assert chosen.failing == "Not delivered to old"
    answers = [texts(line)[2] for line in chosen.deliveries.lines]
    assert [answer.endswith(" Send again") for answer in answers] == [False, True]
    assert chosen.rules == "Slow job"


def test_says_that_no_message_was_sent_where_there_is_no_channel() -> None:
    page = incidents_page(listed(row(incident())), life(incident()), [], {}, IncidentsQuery())
    assert page.chosen is not None
    assert page.chosen.failing == "No message was sent: there is no channel"
    assert page.channels_title == "There is no channel: no messages are sent"
    assert [text for _, text in page.states] == ["1 firing", "no channel: no messages are sent"]


@pytest.mark.parametrize(
    ("state", "may"),
    [
        (IncidentState.PENDING, (False, False, True)),
        (IncidentState.FIRING, (True, True, True)),
        (IncidentState.ACKNOWLEDGED, (False, True, True)),
        (IncidentState.SILENCED, (False, True, True)),
        (IncidentState.RESOLVED, (False, False, False)),
    ],
)
def test_offers_what_the_state_allows(state: IncidentState, may: tuple[bool, bool, bool]) -> None:
    found = actions(row(incident(state=state)), NOW)
    assert (found.can_acknowledge, found.can_silence, found.can_resolve) == may
    assert found.is_silenced is (state is IncidentState.SILENCED)


def test_a_silence_says_until_when_who_and_why() -> None:
    silence = Silence(NOW + timedelta(days=1), "node-7 is drained", "Kim")
    silenced = incident(state=IncidentState.SILENCED, silence=silence)
    assert plain(state_context(silenced, NOW)) == "until 21 Nov 09:30 UTC by Kim: node-7 is drained"


def test_leads_to_the_job_where_no_session_shows_it() -> None:
    assert session_url(incident(facts=None), "/jobs/llm") == "/jobs/llm"


def test_the_version_changes_with_a_state_and_not_with_time() -> None:
    before = page_of(listed(row(incident())))
    later = page_of(listed(row(incident()), now=NOW + timedelta(hours=1)))
    acknowledged = page_of(listed(row(incident(state=IncidentState.ACKNOWLEDGED))))
    assert before.version == later.version
    assert before.version != acknowledged.version
