"""The demo's live job: slow, noticed, recorded on request, confirmed, recovered, resolved."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from app.cli.demo.live import JOB, LiveJob, Tempo
from app.cli.demo.run import LIVE_JOB
from app.cli.server import Server
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.pulse.advance import advance_pulses
from tests.support.nightly import by_night
from tests.support.served import client_of, served
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container

QUICK = Tempo(step_s=0.02, quiet_steps=128, slow_steps=1_000, hold_steps=40, every_s=0.2)


@pytest.fixture
def url(container: Container) -> Iterator[str]:
    """Yield the address of a server without workers."""
    with served(container) as address:
        yield address


@by_night
def test_the_live_job_is_noticed_recorded_and_well_again(url: str, container: Container) -> None:
    keeper = LeaseKeeper(container)
    published: list[Any] = []
    with Server(url) as server, client_of(url) as client:
        job = LiveJob(server, QUICK, time.time_ns())

        def incident() -> dict[str, Any]:
            found = client.get("/api/v1/incidents").json()["incidents"]
            assert len(found) <= 1, found
            return found[0] if found else {"state": "none"}

        def resolved() -> bool:
            time.sleep(QUICK.every_s)
            job.advance(time.time_ns())
            while advance_pulses(container, timedelta(0)):
                pass
            if job.session and not published:
                runs = client.get(f"/api/v1/sessions/{job.session}").json()
                published.append(runs)
                analyze_all(container, keeper)
            return bool(incident()["state"] == "resolved")

        wait_for(resolved, "the end of the incident")
        found = incident()
        assert (found["job"], found["cause"], found["where"]) == (JOB, "slow_rank", "node-991")
        assert (found["notice"]["outcome"], found["notice"]["cause"]) == (
            "confirmed",
            "slow_worker",
        )
        assert found["facts"]["fix"]["gain"] > 0
        page = client.get(f"/jobs/{LIVE_JOB}")
        assert page.status_code == 200
        assert "no rank is slow any more" in page.text


def analyze_all(container: Container, keeper: LeaseKeeper) -> None:
    with container.engine.connect() as connection:
        runs = connection.exec_driver_sql("SELECT id FROM task_run WHERE state = 'queued'")
        queued = list(runs.scalars())
    assert queued
    for run in queued:
        assert execute(container, keeper, run)
