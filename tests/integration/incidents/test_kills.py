"""A worker that is killed while it sends a digest and a weekly summary: both are sent again.

The receiver may get them twice, with the same id and text, because a worker may be killed after the
receiver's answer and before it stores that answer. Nothing is lost, and no text changes.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.models.tables import AlertChannel, AlertRule
from app.incidents.rule_store import save_rule
from app.incidents.sweep import sweep_alerts
from app.installation.sweep import sweep
from app.jobs.models import WeeklySummary
from app.jobs.weekly import send_due
from benchmarks.support.receiver import Got, Reply
from tests.integration.jobs.weekly.test_send import WEEKLY
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.settings import Settings

JOBS = 5


@pytest.fixture
def alerting(settings: Settings) -> Iterator[Alerting]:
    """Return an installation with short leases, so that another worker soon takes over."""
    soon = {"lease_s": 6.0, "lease_renew_s": 1.0, "republish_after_s": 0.5}
    receivers = {"alert_allowed_networks": LOOPBACK, "alert_attempt_limit_s": 5.0}
    container = build(settings.model_copy(update=soon | receivers))
    yield Alerting(container)
    container.close()


def _storm_and_week(alerting: Alerting, receiver: Receiver) -> None:
    """Make a digest and a weekly summary due."""
    alerting.channel(receiver)
    save_rule(alerting.container, WEEKLY, new=True)
    with alerting.container.uow() as tx:
        for table in (AlertRule, AlertChannel):
            tx.session.execute(update(table).values(created_at=tx.now - timedelta(days=100)))
    for number in range(JOBS):
        cause = SuspectedCause("slow_worker", (f"node-{number}",), confidence=0.95)
        for _ in range(2):
            alerting.session(1.3, cause, job=f"job-{number}")
    alerting.time_passes(timedelta(minutes=1))


def _weeks(alerting: Alerting) -> list[tuple[str, int]]:
    with alerting.container.everywhere().reading() as tx:
        found = tx.session.execute(select(WeeklySummary.state, WeeklySummary.attempt)).all()
    return [(str(state), attempt) for state, attempt in found]


def test_a_killed_worker_s_message_is_sent_again_under_its_id(
    alerting: Alerting, tmp_path: Path
) -> None:
    both, killed = threading.Barrier(2), threading.Event()

    def killing(_: Got) -> Reply:
        # The worker is killed after the receiver got both and before it answers.
        if not killed.is_set():
            if both.wait(60) == 0:
                first.kill()
                killed.set()
            killed.wait(60)
        return Reply()

    with Receiver(killing) as receiver:
        _storm_and_week(alerting, receiver)
        with WorkerProcess(alerting.container, tmp_path / "first.log", queue="io") as first:
            first.wait_until_ready()
            sweep_alerts(alerting.container)
            send_due(alerting.container)
            wait_for(killed.is_set, "the kill")
        assert len(receiver.got) == 2
        assert set(alerting.states()) == {"sending"}
        assert _weeks(alerting) == [("sending", 1)]

        def done() -> bool:
            sweep(alerting.container)
            return set(alerting.states()) == {"delivered"} and _weeks(alerting) == [
                ("delivered", 2)
            ]

        with WorkerProcess(alerting.container, tmp_path / "second.log", queue="io") as second:
            second.wait_until_ready()
            wait_for(done, "what the killed worker was sending")
        # Further passes send nothing more.
        alerting.work()
        by_id: dict[str, list[bytes]] = {}
        for got in receiver.got:
            by_id.setdefault(got.headers["webhook-id"], []).append(got.body)
    assert [len(bodies) for bodies in by_id.values()] == [2, 2]
    assert all(first_ == again for first_, again in by_id.values())
    assert len(alerting.deliveries()) == JOBS
    assert len({one.digest_id for one in alerting.deliveries()}) == 1
