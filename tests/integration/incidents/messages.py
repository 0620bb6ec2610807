"""Messages of all sizes, from small to extremely large ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from app.analysis.report.session_verdict import SuspectedCause, VerdictFix, VerdictWorker
from app.incidents.batching import digest
from app.incidents.channels.kind import Note, Section
from app.incidents.grouping import Content, IncidentItem, Status
from app.incidents.lifecycle import Incident, fingerprint_of
from app.incidents.message import Message, make_message
from app.incidents.models.tables import IncidentState
from tests.support.alerting import facts

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULE = uuid.UUID(int=77)
NASTY = '<!channel> & "it\'s" *bold* _x_ `code` [a](http://b) @everyone \u202e 漢字 🚨 \\'


def incident(
    number: int, state: IncidentState = IncidentState.FIRING, *, text: str = "node-7"
) -> Incident:
    cause = SuspectedCause(
        "slow_worker", (text,), confidence=0.95, evidence=(text, f"{text} again")
    )
    found = facts(uuid.UUID(int=number), text, number, NOW - timedelta(minutes=5), 1.31, cause)
    return Incident(
        id=uuid.UUID(int=number),
        fingerprint=fingerprint_of("llm", "slow_worker", f"{text}{number}"),
        cause="slow_worker",
        where=text,
        state=state,
        severity=("info", "warning", "critical")[number % 3],
        rules=(RULE,),
        opened_at=NOW - timedelta(hours=3),
        fired_at=NOW - timedelta(hours=2),
        resolved_at=NOW if state is IncidentState.RESOLVED else None,
        why_resolved=text if state is IncidentState.RESOLVED else None,
        facts=replace(
            found,
            worst=tuple(VerdictWorker(dp, 1, text, 1.3) for dp in range(3)),
            fix=VerdictFix(text, 0.2, 8.0),
        ),
        value=1.31,
    )


def message(*incidents: Incident, job: str = "llm") -> Message:
    def item(found: Incident) -> IncidentItem:
        names = {
            IncidentState.RESOLVED: Status.RESOLVED,
            IncidentState.ACKNOWLEDGED: Status.ACKNOWLEDGED,
        }
        return IncidentItem(found.id, names.get(found.state, Status.FIRING), found.epoch)

    return make_message(
        id=uuid.UUID(int=5),
        number=12,
        at=NOW,
        job=job,
        receiver="hook",
        content=Content(
            present=tuple(item(i) for i in incidents if i.state is not IncidentState.RESOLVED),
            resolved=tuple(item(i) for i in incidents if i.state is IncidentState.RESOLVED),
        ),
        sent_before=set(),
        incidents={found.id: found for found in incidents},
        rule_names={RULE: "Slow job"},
        base_url="https://paceline.example/",
        repeat=timedelta(hours=4),
    )


def messages() -> Iterator[tuple[str, Message]]:
    yield "one", message(incident(1))
    yield "resolved", message(incident(1, IncidentState.RESOLVED))
    yield "acknowledged", message(incident(1, IncidentState.ACKNOWLEDGED))
    yield "mixed", message(incident(1), incident(2), incident(3, IncidentState.RESOLVED))
    yield "many", message(*(incident(number) for number in range(1, 61)))
    yield "nasty", message(incident(1, text=NASTY), job=NASTY)
    long = "x" * 190 + " " + "y" * 5000
    yield "long", message(*(incident(number, text=long) for number in range(1, 31)), job="j" * 200)
    wide = "漢字🚨" * 1000
    yield "wide", message(*(incident(number, text=wide) for number in range(1, 31)), job="漢" * 200)
    jobs = [message(incident(number), job=f"job-{number}") for number in range(1, 31)]
    yield "digest", digest(jobs[0], jobs)
    silent = replace(incident(1), cause="no_data", where="", facts=None)
    yield "no data", message(silent)
    low = replace(incident(1).facts, slowdown=None, causes=())  # type: ignore[type-var]  # it has facts
    yield (
        "low quality",
        message(replace(incident(1), cause="low_trace_quality", where="", facts=low)),
    )


def notes() -> Iterator[tuple[str, Note]]:
    """Return notes of all sizes, from typical to extremely large ones."""
    lines = ("llm: 120 GPU-hours, 12 % of its own", "vision: 30 GPU-hours")
    yield "week", note("Paceline, 9 to 16 Nov: 150 GPU-hours", ("Jobs that lost most", lines))
    yield "empty", note("Paceline, 9 to 16 Nov: no session has a verdict")
    yield "nasty", note(NASTY, (NASTY, (NASTY, NASTY)))
    many = tuple("漢字🚨 " * 40 for _ in range(200))
    yield "long", note("x" * 5000, ("y" * 500, many), ("z", many))


def note(title: str, *sections: tuple[str, tuple[str, ...]]) -> Note:
    return Note(
        id=uuid.UUID(int=6),
        at=NOW,
        title=title,
        sections=tuple(Section(heading, lines) for heading, lines in sections),
        link="https://paceline.example/report?from=2026-11-09T07%3A00Z&to=2026-11-16T07%3A00Z",
        receiver="hook",
    )
