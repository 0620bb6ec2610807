"""The weekly summary: sent once for each rule, channel and week, in spite of killed workers."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import select, update

from app.errors import InvalidRuleError
from app.incidents.models.rules import Rule, Selector, Weekly
from app.incidents.models.tables import AlertChannel, AlertRule
from app.incidents.rule_store import preview, save_rule
from app.installation.sweep import sweep
from app.jobs.models import WeeklySummary
from app.jobs.weekly import preview_note, send_due
from app.platform.database.task_runs import TaskRun
from app.platform.tasks.runs import claim
from benchmarks.support.receiver import Reply
from tests.integration.jobs.fleet_report.build import DAY, session
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.project import build
from tests.support.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from app.platform.container import Container
    from app.platform.settings import Settings

WEEKLY: Final = Rule(id=uuid.UUID(int=7), name="Every week", condition=Weekly())


@pytest.fixture
def container(settings: Settings) -> Iterator[Container]:
    built = build(settings.model_copy(update={"alert_allowed_networks": LOOPBACK}))
    yield built
    built.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def old(container: Container) -> None:
    """Move the times at which rules and channels were added to long ago."""
    with container.uow() as tx:
        tx.session.execute(update(AlertRule).values(created_at=tx.now - 100 * DAY))
        tx.session.execute(update(AlertChannel).values(created_at=tx.now - 100 * DAY))


def ready(container: Container, receiver: Receiver) -> Alerting:
    alerting = Alerting(container)
    alerting.channel(receiver)
    save_rule(container, WEEKLY, new=True)
    old(container)
    return alerting


def work(container: Container, alerting: Alerting) -> None:
    send_due(container)
    alerting.work()


def summaries(container: Container) -> list[WeeklySummary]:
    with container.everywhere().reading() as tx:
        return list(tx.session.execute(select(WeeklySummary)).scalars())


def notes(receiver: Receiver) -> list[dict[str, object]]:
    return [got.json for got in receiver.got if b'"kind":"note"' in got.body]


def test_each_channel_gets_one_message_a_week(container: Container, receiver: Receiver) -> None:
    due = Weekly().due(_now(container))
    session(container, 1.5, ago=_now(container) - due + timedelta(hours=2), gpus=64)
    alerting = ready(container, receiver)
    for _ in range(3):
        work(container, alerting)
    [told] = notes(receiver)
    assert "stragglers cost" in str(told["title"])
    [row] = summaries(container)
    assert (row.state, row.attempt, row.until) == ("delivered", 1, due)
    with container.uow() as tx:
        tx.session.execute(update(WeeklySummary).values(week=row.week - timedelta(days=7)))
    work(container, alerting)
    assert len(notes(receiver)) == 2, "the next week is told as well"


def test_two_sweepers_at_once_make_it_once(container: Container, receiver: Receiver) -> None:
    alerting = ready(container, receiver)
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(lambda _: send_due(container), range(8)))
    assert sum(started) == 1
    alerting.work()
    assert len(notes(receiver)) == 1


def test_a_killed_worker_s_summary_is_sent_by_the_next_one_under_the_same_id(
    container: Container, receiver: Receiver
) -> None:
    alerting = ready(container, receiver)
    send_due(container)
    with container.uow() as tx:
        run = tx.session.execute(select(TaskRun.id)).scalar_one()
    # A killed worker leaves the task claimed.
    assert claim(container, run) is not None
    work(container, alerting)
    assert notes(receiver) == []
    with container.uow() as tx:
        tx.session.execute(update(TaskRun).values(lease_until=tx.now - timedelta(milliseconds=1)))
    # The lease must be short: an expired lease may not be older than the database server.
    short = container.settings.model_copy(update={"lease_s": 0.1})
    sweep(replace(container, settings=short))
    work(container, alerting)
    [row] = summaries(container)
    [told] = notes(receiver)
    assert told["id"] == str(row.id)
    assert row.state == "delivered"


def test_a_failed_message_is_sent_again_with_the_same_words(container: Container) -> None:
    replies = iter((Reply(503, b"later"), Reply(200, b"ok")))
    with Receiver(lambda _: next(replies)) as receiver:
        alerting = ready(container, receiver)
        work(container, alerting)
        [row] = summaries(container)
        assert (row.state, row.attempt) == ("waiting", 1)
        with container.uow() as tx:
            tx.session.execute(update(WeeklySummary).values(next_attempt_at=tx.now))
        work(container, alerting)
        first, second = notes(receiver)
    assert first == second
    assert [row.state for row in summaries(container)] == ["delivered"]


def test_a_week_before_the_rule_makes_no_message(container: Container, receiver: Receiver) -> None:
    alerting = Alerting(container)
    alerting.channel(receiver)
    save_rule(container, WEEKLY, new=True)
    work(container, alerting)
    assert summaries(container) == []


def test_pagers_get_no_summary(container: Container, receiver: Receiver) -> None:
    alerting = ready(container, receiver)
    alerting.channel(receiver, "pager", kind="alertmanager")
    old(container)
    work(container, alerting)
    assert len(summaries(container)) == 1


def test_a_weekly_rule_makes_no_incident_and_selects_no_jobs(
    container: Container, receiver: Receiver
) -> None:
    alerting = ready(container, receiver)
    alerting.slow()
    alerting.pass_and_work()
    assert all(WEEKLY.id not in incident.rules for incident in alerting.incidents())
    assert preview(container, WEEKLY).incidents == ()
    some = Rule(
        id=uuid.uuid4(), name="Some", condition=Weekly(), selector=Selector(jobs=("llama-*",))
    )
    with pytest.raises(InvalidRuleError):
        save_rule(container, some, new=True)


def test_a_preview_shows_the_message(container: Container) -> None:
    session(container, 1.5, ago=9 * DAY, gpus=64)
    session(container, 1.25, ago=DAY, gpus=64, job="costly")
    with container.reading() as tx:
        note = preview_note(tx, container.settings)
    words = {section.heading: " ".join(section.lines) for section in note.sections}
    assert "down from" in words["Cost"]
    assert "costly" in words["Jobs that lost most"]
    assert "Slow worker" in words["Causes"]
    assert words["Incidents"] == "0 opened, 0 resolved"
    assert "1 job was silent" in words["Coverage"]


def _now(container: Container) -> datetime:
    with container.reading() as tx:
        return tx.now
