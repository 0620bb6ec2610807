"""A notice requests a session, which confirms, explains or clears it; the incident then ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text, update

from app.analysis.synthesis.injections.computations import SlowWorker, StageImbalance
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace
from app.incidents.models.tables import AlertGroup
from app.incidents.sweep import sweep_alerts
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.pulse.advance import advance_pulses
from tests.integration.api.pulse.sending import DIALS, STEPS_A_BODY, bodies, slow_for
from tests.support.sessions import store
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.analysis.synthesis.injections.base import Injection
    from tests.integration.api.conftest import Installation

NOW = timedelta(0)
SENT = "/api/v1/jobs/llm/attempts/1/pulse"
# The steps in which rank 13 is slow, the step by which it is noticed, and that by which it has
# ended.
SLOW, NOTICED, OVER = slice(100, 160), 140, 200


class Job:
    """A job of two hosts that sends its pulse, a body of a few steps for each host."""

    def __init__(
        self, installation: Installation, slow: slice = SLOW, each: int = STEPS_A_BODY
    ) -> None:
        self.installation = installation
        self._each, self._bodies = each, bodies(slow_for(slow), each)
        self.step = 0
        self.asked: list[tuple[int, dict[str, Any]]] = []

    def send(self, until: int) -> None:
        """Send and process the bodies up to a step."""
        while self.step < until:
            for host in range(2):
                answer = self.installation.client.post(SENT, content=next(self._bodies))
                assert answer.status_code == 202, answer.text
                if answer.json()["record"]:
                    self.asked.append((host, answer.json()["record"]))
            self.step += self._each
            while advance_pulses(self.installation.container, NOW):
                pass

    def record(self, trace: Trace) -> None:
        """Send and analyze a session."""
        container = self.installation.container
        stored = store(container, trace, job="llm")
        assert execute(container, LeaseKeeper(container), stored.run)


@cache
def trace(*slow: Injection) -> Trace:
    """Return a session of the job, with its hosts."""
    made = synthesize(JobModel(Sizes(dp=8, pp=2), microbatches=8, steps=12), slow, seed=1).trace
    return replace(made, meta=replace(made.meta, hosts=slow_for(SLOW).hosts))


def incidents(installation: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = installation.client.get("/api/v1/incidents").json()["incidents"]
    return found


def look(installation: Installation, statement: str = "SELECT 1") -> None:
    """Run the sweeper over all jobs."""
    container = installation.container
    with container.engine.begin() as connection:
        connection.execute(text(statement))
    with container.everywhere().uow() as tx:
        tx.session.execute(update(AlertGroup).values(look_at=tx.now))
    sweep_alerts(container)


def test_a_session_confirms_a_notice_and_its_end_ends_the_incident(
    installation: Installation,
) -> None:
    job = Job(installation)
    job.send(NOTICED)
    (incident,) = incidents(installation)
    assert (incident["cause"], incident["where"]) == ("slow_rank", "node-001")
    assert (incident["state"], incident["fired_at"]) == ("pending", None)
    # The request is sent once, to the host of rank 0 only.
    ((host, record),) = job.asked
    assert (host, record["steps"], record["by"]) == (0, 50, "notice")
    assert "ank 13" in record["reason"]

    job.record(trace(SlowWorker((5, 1), 1.6)))
    (incident,) = incidents(installation)
    assert (incident["cause"], incident["state"]) == ("slow_rank", "firing")
    notice = incident["notice"]
    assert (notice["outcome"], notice["cause"], notice["session"]) == (
        "confirmed",
        "slow_worker",
        1,
    )
    assert incident["facts"]["fix"] is not None
    page = installation.client.get(f"/incidents/{incident['id']}").text
    assert "Session 1 confirms it: slow worker" in page
    assert installation.client.get(f"/incidents/{incident['id']}/evidence").status_code == 200

    job.send(OVER)
    (incident,) = incidents(installation)
    assert incident["state"] == "resolved"
    assert "predicted \N{MINUS SIGN}" in incident["why_resolved"]
    notice = incident["notice"]
    # 60 steps of 16 ranks, each 0.36 s longer.
    assert notice["gpu_hours"] == pytest.approx(60 * 16 * 0.36 / 3600, rel=0.15)
    assert notice["after_s"] == pytest.approx(notice["baseline_s"], rel=0.02)
    assert notice["step_s"] == pytest.approx(notice["baseline_s"] * 1.4, rel=0.05)
    # The session that confirms the notice makes no second incident.
    look(installation)
    assert len(incidents(installation)) == 1
    assert [found for _, found in job.asked] == [record]


def test_the_gain_of_its_end_is_shown_with_it(installation: Installation) -> None:
    """The step time after the end is still unknown: too few steps have ended since."""
    job = Job(installation, each=3)
    job.send(NOTICED)
    look(installation, "UPDATE pulse_notice SET fires_at = now()")
    ended: list[dict[str, Any]] = []
    while not ended:
        job.send(job.step + 3)
        listed = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()["notices"]
        ended = [one for one in listed if one["cleared_step"] is not None]
    assert [one["state"] for one in incidents(installation)] == ["firing"]
    job.send(ended[0]["cleared_step"] + 12)
    (incident,) = incidents(installation)
    assert incident["state"] == "resolved"
    assert "a step takes \N{MINUS SIGN}2" in incident["why_resolved"]
    assert incident["notice"]["after_s"] == pytest.approx(
        incident["notice"]["baseline_s"], rel=0.05
    )


def test_a_session_without_it_clears_a_notice_without_a_message(
    installation: Installation,
) -> None:
    job = Job(installation, slice(100, 200))
    job.send(NOTICED)
    healthy = trace()
    scale = 0.86e9 / (healthy.start_ns.max() - healthy.start_ns.min()) * 12
    job.record(
        replace(
            healthy,
            start_ns=(healthy.start_ns * scale).astype("int64"),
            duration_ns=(healthy.duration_ns * scale).astype("int64"),
        )
    )
    (notice,) = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()["notices"]
    assert (notice["outcome"], notice["cleared_at"]) == ("cleared", None)
    # The notice ended before any message was sent.
    assert incidents(installation) == []
    job.send(OVER)
    assert incidents(installation) == []


def test_a_session_with_another_cause_explains_it(installation: Installation) -> None:
    job = Job(installation)
    job.send(NOTICED)
    job.record(trace(StageImbalance()))
    (incident,) = incidents(installation)
    assert (incident["state"], incident["notice"]["outcome"]) == ("firing", "explained")
    assert incident["notice"]["cause"] == "stage_imbalance"


def test_without_a_session_it_fires_by_itself_and_says_so(installation: Installation) -> None:
    job = Job(installation)
    job.send(NOTICED)
    look(installation)
    assert incidents(installation)[0]["state"] == "pending"
    look(installation, "UPDATE pulse_notice SET fires_at = now()")
    (incident,) = incidents(installation)
    assert (incident["state"], incident["notice"]["outcome"]) == ("firing", "unconfirmed")
    assert "No session confirmed it" in installation.client.get(f"/incidents/{incident['id']}").text


@pytest.mark.slow
def test_a_session_that_does_not_come_is_requested_again_a_few_times(
    installation: Installation,
) -> None:
    job = Job(installation, slice(100, 200))
    job.send(NOTICED)
    for _ in range(4):
        look(installation, "UPDATE recording_request SET handed_at = now() - interval '1 hour'")
        job.send(job.step + STEPS_A_BODY)
    assert [host for host, _ in job.asked] == [0, 0, 0]


def test_one_session_an_hour_is_asked_for_by_notices_and_a_person_asks_without_that(
    installation: Installation,
) -> None:
    job = Job(installation, slice(100, 130))
    job.send(150)
    look(installation, "UPDATE pulse_notice SET request_id = NULL")
    assert len(job.asked) == 1
    asking = "/api/v1/jobs/llm/recordings"
    look(installation, "UPDATE recording_request SET until = now()")
    answer = installation.client.post(asking, json={"steps": 20, "by": "ann"})
    assert answer.status_code == 202, answer.text
    assert installation.client.post(asking, json={}).json()["id"] == answer.json()["id"]
    job.send(160)
    assert [(record["steps"], record["by"]) for _, record in job.asked] == [
        (50, "notice"),
        (20, "person"),
    ]
    listed = installation.client.get(asking).json()["requests"]
    assert [(one["asked_by"], one["handed"]) for one in listed] == [("ann", 1), (None, 1)]
    assert installation.client.post("/api/v1/jobs/none/recordings", json={}).status_code == 404


WORK = """
from datetime import timedelta
from app.bootstrap import build
from app.pulse.advance import advance_pulses
from app.platform.settings import Settings
container = build(Settings())
while advance_pulses(container, timedelta(0)):
    pass
"""


@pytest.mark.slow
def test_a_worker_killed_where_it_opens_the_incident_loses_and_doubles_nothing(
    installation: Installation,
) -> None:
    for body in _until(NOTICED):
        assert installation.client.post(SENT, content=body).status_code == 202
    settings = installation.container.settings
    environment = {
        **os.environ,
        "PACELINE_DATABASE_URL": str(settings.database_url),
        "PACELINE_DATA_DIR": str(settings.data_dir),
    }
    engine = installation.container.engine
    with engine.begin() as connection:
        # The worker has written notices, request and rule when it waits for this lock.
        connection.execute(text("LOCK TABLE alert_incident IN EXCLUSIVE MODE"))
        with subprocess.Popen([sys.executable, "-c", WORK], env=environment) as worker:  # noqa: S603

            def waits() -> bool:
                with engine.connect() as looking:
                    return bool(
                        looking.execute(
                            text(
                                "SELECT count(*) FROM pg_stat_activity WHERE"
                                " wait_event_type = 'Lock' AND query LIKE 'INSERT INTO alert_inc%'"
                            )
                        ).scalar_one()
                    )

            wait_for(waits, "a worker that opens an incident")
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait(LIMIT_S)
    assert incidents(installation) == []
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM pulse_notice")).scalar_one() == 0
        assert connection.execute(text("SELECT count(*) FROM recording_request")).scalar_one() == 0
        connection.execute(text("UPDATE pulse_state SET lease_until = now() - interval '1 s'"))
    while advance_pulses(installation.container, NOW):
        pass
    assert [one["state"] for one in incidents(installation)] == ["pending"]
    assert len(installation.client.get("/api/v1/jobs/llm/recordings").json()["requests"]) == 1


def _until(step: int) -> Iterator[bytes]:
    sent = bodies(slow_for(SLOW))
    for _ in range(2 * step // STEPS_A_BODY):
        yield next(sent)
    assert DIALS.steps > step
