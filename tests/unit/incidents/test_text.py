"""The text of a message, before a channel formats it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown, SuspectedCause, VerdictFix, VerdictWorker
from app.incidents.grouping import Status
from app.incidents.message import Alert, Message
from app.incidents.models.facts import Facts
from app.incidents.text import lines_of, plain_text
from tests.unit.incidents.builders import SHARES, START

FACTS = Facts(
    session=uuid.UUID(int=1),
    job="llm",
    attempt=1,
    number=14,
    received_at=START - timedelta(minutes=4),
    slowdown=1.294,
    slowdown_ci95=(1.293, 1.296),
    gpu_hours_lost=18.43,
    discrepancy=0.083,
    causes=(
        SuspectedCause("slow_worker", ("node-7",), 0.94, 0.8, ("Forward 1.70× its stage's peers",)),
    ),
    worst=(
        VerdictWorker(6, 3, "node-7", 1.3),
        VerdictWorker(2, 7, None, 1.06),
        VerdictWorker(7, 7, "node-9", 1.001),
    ),
    worst_step=643,
    fix=VerdictFix("Replace node-7", 0.229, 5.8),
    headline=Slowdown(1.341, (1.337, 1.345), 20.62, HeadlineKind.CAUSES),
)
ALERT = Alert(
    incident=uuid.UUID(int=2),
    fingerprint="f",
    status=Status.FIRING,
    severity="warning",
    cause="slow_worker",
    where="node-7",
    rules=("Slow job",),
    since=START - timedelta(minutes=34),
    resolved_at=None,
    why_resolved=None,
    value=1.294,
    facts=FACTS,
    view_url="https://paceline.example/sessions/1?step=643&dp=6&pp=3",
    incident_url="https://paceline.example/incidents/2",
)


def _words(alert: Alert) -> str:
    message = Message(
        id=uuid.UUID(int=3),
        number=1,
        at=START,
        job="llm",
        receiver="hook",
        alerts=(alert,),
        base_url="https://paceline.example/",
        repeat=timedelta(hours=4),
    )
    return plain_text(message).replace("\N{NO-BREAK SPACE}", " ")


def test_it_says_how_slow_who_why_what_to_do_and_where_to_look() -> None:
    assert _words(ALERT) == (
        "[FIRING] llm: Slow worker: node-7\n"
        "\n"
        "Slow worker: node-7. The job is 1.34× slower than without its causes.\n"
        "  Slowdown: 1.341 (95 %: 1.337–1.345) against the job without its causes\n"
        "  Published S: 1.294 (95 %: 1.293–1.296)\n"
        "  GPU-hours lost: 20.6 in this session\n"
        "  Confidence: 94 %\n"
        "  Worst workers: node-7 (DP 6, PP 3) 1.30×; (DP 2, PP 7) 1.06×\n"
        "  Best fix: Replace node-7 (predicted gain 22.9 %)\n"
        f"  Session: 14, received {FACTS.received_at:%Y-%m-%d %H:%M} UTC\n"
        f"  Since: {ALERT.since:%Y-%m-%d %H:%M} UTC (34 min)\n"
        "  Rule: Slow job\n"
        "  · Forward 1.70× its stage's peers\n"
        "  Open: https://paceline.example/sessions/1?step=643&dp=6&pp=3\n"
        "  Acknowledge: https://paceline.example/incidents/2\n"
    )


def _fields(headline: Slowdown) -> dict[str, str]:
    alert = replace(ALERT, facts=replace(FACTS, headline=headline))
    return {name: text.replace("\N{NO-BREAK SPACE}", " ") for name, text in _lines(alert)}


def _lines(alert: Alert) -> Sequence[tuple[str, str]]:
    return lines_of(alert, START).fields


def test_s_is_not_said_next_to_a_slowdown_that_says_the_same() -> None:
    fields = _fields(Slowdown(1.301, None, 18.7, HeadlineKind.CAUSES))
    assert fields["Slowdown"] == "1.301 against the job without its causes"
    assert "Published S" not in fields


def test_where_the_headline_is_s_it_is_called_s() -> None:
    headline = Slowdown(1.294, (1.293, 1.296), 18.43, HeadlineKind.PUBLISHED)
    fields = _fields(headline)
    assert fields["Slowdown S"] == "1.294 (95 %: 1.293–1.296)"
    assert fields["GPU-hours lost"] == "18.4 in this session"
    assert "Slowdown" not in fields
    alert = replace(ALERT, facts=replace(FACTS, headline=headline))
    assert lines_of(alert, START).summary.endswith("The job is 1.29× slower than ideal.")


def test_a_regression_names_its_baseline() -> None:
    fields = dict(lines_of(replace(ALERT, cause="regression", value=0.062), START).fields)
    assert fields["Against baseline"] == "steps take 6.2\N{NO-BREAK SPACE}% longer"


def test_a_loss_of_all_workers_is_in_the_text_without_a_slowdown() -> None:
    alert = replace(ALERT, cause="time_between_steps", where="", value=0.28)
    said = lines_of(alert, START).summary
    assert said == "Time is lost between steps: 28\N{NO-BREAK SPACE}% of the time."


@pytest.mark.parametrize(
    ("lost", "said"), [(0.28, "28\N{NO-BREAK SPACE}% of the time is lost"), (0.04, None)]
)
def test_the_text_of_a_straggler_contains_the_loss_between_steps(
    lost: float, said: str | None
) -> None:
    shares = replace(SHARES, between_steps_above=lost)
    fields = dict(lines_of(replace(ALERT, facts=replace(FACTS, shares=shares)), START).fields)
    assert fields.get("Between steps") == said


def test_low_quality_says_how_low_and_nothing_of_a_slowdown() -> None:
    facts = replace(
        FACTS, slowdown=None, gpu_hours_lost=None, causes=(), worst=(), fix=None, headline=None
    )
    alert = replace(ALERT, cause="low_trace_quality", where="", value=0.083, facts=facts)
    lines = lines_of(alert, START)
    assert lines.summary == "Trace quality too low for a verdict"
    assert dict(lines.fields)["Discrepancy"] == "8.3\N{NO-BREAK SPACE}%"
    assert "slower" not in _words(alert)


def test_no_data_says_since_when() -> None:
    lines = lines_of(replace(ALERT, cause="no_data", where=""), START)
    assert (lines.summary, lines.fields[0][0]) == ("No data", "No session since")


def test_the_text_of_a_resolved_incident_does_not_offer_acknowledging() -> None:
    over = replace(ALERT, status=Status.RESOLVED, resolved_at=START, why_resolved="a session came")
    words = _words(over)
    assert words.startswith("[RESOLVED] llm")
    assert "over after 34 min" in words
    assert "Because: a session came" in words
    assert "Acknowledge" not in words
