"""Deliveries by a real worker process."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

from app.incidents.sweep import sweep_alerts
from tests.support.alerting import Alerting
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.redis import RedisServer
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess


def _deliver(alerting: Alerting, receiver: Receiver, log: Path) -> None:
    alerting.channel(receiver)
    alerting.slow()
    alerting.time_passes(timedelta(minutes=1))
    with WorkerProcess(alerting.container, log, queue="io") as worker:
        worker.wait_until_ready()
        sweep_alerts(alerting.container)
        wait_for(lambda: alerting.states() == ["delivered"], "delivery")
    assert len(receiver.got) == 1


def test_a_worker_of_the_queue_io_delivers(
    alerting: Alerting, receiver: Receiver, tmp_path: Path
) -> None:
    _deliver(alerting, receiver, tmp_path / "worker.log")


def test_a_worker_of_the_queue_io_delivers_with_redis(
    alerting: Alerting, receiver: Receiver, tmp_path: Path, redis_server: RedisServer
) -> None:
    settings = alerting.container.settings.model_copy(update={"broker_url": redis_server.url})
    with closing(build(settings)) as container:
        _deliver(Alerting(container), receiver, tmp_path / "worker.log")
