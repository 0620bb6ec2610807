"""The server's metrics."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import delete, text

from app.installation.models import AnalysisDuration, count_duration
from tests.integration.api import bodies
from tests.integration.api.web.test_health import add_worker

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


OPERATIONS = Path(__file__).parents[4] / "docs/operations.md"
DELIVERIES = """
INSERT INTO alert_delivery (id, project_id, group_id, channel_id, number, generation, state,
    attempt, next_attempt_at, created_at)
SELECT gen_random_uuid(), 1, gen_random_uuid(), gen_random_uuid(), 1, 1, state, 1, now(),
    now() - age * interval '1 hour'
FROM (VALUES ('waiting', 0), ('failed', 0), ('failed', 23), ('failed', 25), ('delivered', 0))
    AS made (state, age)
"""
INCIDENTS = """
INSERT INTO alert_incident (id, project_id, group_id, fingerprint, state, opened_at, document)
SELECT gen_random_uuid(), 1, gen_random_uuid(), 'x', state, now(), '{}'
FROM (VALUES ('firing'), ('firing'), ('acknowledged'), ('resolved')) AS made (state)
"""


def test_bodies_rows_and_refusals_are_counted(installation: Installation) -> None:
    body = bodies.parquet()
    installation.post()
    installation.post()
    installation.post(b"certainly no trace")
    metric = installation.metric
    assert metric("paceline_ingest_bytes_total") == 2 * len(body) + 18
    assert metric("paceline_ingest_rows_total") == len(bodies.trace())
    assert metric("paceline_ingest_sessions_total", outcome="new") == 1
    assert metric("paceline_ingest_sessions_total", outcome="known") == 1
    assert metric("paceline_ingest_refusals_total", code="trace.unknown_format") == 1
    assert metric("paceline_ingest_refused_bytes_total") == 18


def test_the_database_is_queried_at_each_scrape(installation: Installation) -> None:
    metric = installation.metric
    assert metric("paceline_sessions", state="queued") == 0
    assert metric("paceline_oldest_queued_seconds") == 0
    installation.post()
    add_worker(installation, "analysis", seen_s_ago=50)
    assert metric("paceline_sessions", state="queued") == 1
    assert metric("paceline_tasks", state="queued") == 1
    assert metric("paceline_oldest_queued_seconds") > 0
    installation.analyze_all()
    assert metric("paceline_sessions", state="analyzed") == 1
    assert metric("paceline_tasks", state="queued") == 0
    assert metric("paceline_tasks", state="done") == 1
    assert metric("paceline_database_up") == 1
    [age] = [
        sample.value
        for family in text_string_to_metric_families(installation.client.get("/metrics").text)
        if family.name == "paceline_worker_heartbeat_age_seconds"
        for sample in family.samples
        if sample.labels["queues"] == "analysis" and sample.labels["host"] == "node-1"
    ]
    assert age >= 50


def test_the_documentation_names_every_metric_and_no_other(installation: Installation) -> None:
    text_of_metrics = installation.client.get("/metrics").text
    served = set(re.findall(r"^# TYPE (paceline_\w+) ", text_of_metrics, re.MULTILINE))
    documented = set(re.findall(r"`(paceline_\w+)[`{]", OPERATIONS.read_text()))

    assert {name for name in served if not name.endswith("_created")} == documented


def test_open_tasks_are_counted_by_kind_and_queue(installation: Installation) -> None:
    def tasks(state: str) -> float:
        return installation.metric(
            "paceline_open_tasks", kind="analyze_session", queue="analysis", state=state
        )

    assert (tasks("queued"), tasks("running")) == (0, 0)
    installation.post()
    assert (tasks("queued"), tasks("running")) == (1, 0)
    with installation.container.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE task_run SET state = 'running', claim_token = id, lease_until = now()"
                " WHERE state = 'queued'"
            )
        )
    assert (tasks("queued"), tasks("running")) == (0, 1)
    assert (
        installation.metric("paceline_open_tasks", kind="deliver_alert", queue="io", state="queued")
        == 0
    )


def test_the_time_that_analyses_take_is_a_histogram(installation: Installation) -> None:
    metric = installation.metric
    name = "paceline_analysis_duration_seconds"
    assert metric(f"{name}_count") == metric(f"{name}_sum") == 0
    installation.post()
    installation.analyze_all()
    assert metric(f"{name}_count") == metric(f"{name}_bucket", le="+Inf") == 1
    assert metric(f"{name}_sum") > 0
    # A duration counts in the bucket of its limit and in all larger ones.
    with installation.container.everywhere().uow() as tx:
        tx.session.execute(delete(AnalysisDuration))
        for duration_s in (0.2, 0.5, 40.0, 40.0, 5000.0):
            count_duration(tx, duration_s)
    found = [metric(f"{name}_bucket", le=limit) for limit in ("0.5", "1.0", "30.0", "60.0", "+Inf")]
    assert found == [2, 2, 2, 4, 5]
    assert metric(f"{name}_count") == 5
    assert metric(f"{name}_sum") == pytest.approx(5080.7)


def test_deliveries_and_incidents_are_counted_by_state(installation: Installation) -> None:
    metric = installation.metric
    assert metric("paceline_deliveries", state="waiting") == 0
    assert metric("paceline_failed_deliveries") == 0
    assert metric("paceline_incidents", state="firing") == 0
    with installation.container.engine.begin() as connection:
        # Disables foreign keys: this test needs no groups and channels.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(DELIVERIES))
        connection.execute(text(INCIDENTS))
    assert metric("paceline_deliveries", state="waiting") == 1
    assert metric("paceline_deliveries", state="sending") == 0
    # The failed delivery of the day before does not count.
    assert metric("paceline_failed_deliveries") == 2
    assert metric("paceline_incidents", state="firing") == 2
    assert metric("paceline_incidents", state="acknowledged") == 1
    assert metric("paceline_incidents", state="pending") == 0


def test_the_free_bytes_of_the_spool_are_those_of_its_disk(installation: Installation) -> None:
    usage = shutil.disk_usage(installation.container.settings.data_dir.parent)

    assert 0 < installation.metric("paceline_spool_free_bytes") <= usage.total


def test_requests_are_counted_by_route_and_not_by_address(installation: Installation) -> None:
    for number in range(20):
        installation.client.get(f"/nowhere/{number}")
        installation.client.get(f"/api/v1/sessions/00000000-0000-4000-8000-{number:012}")
    count = "paceline_http_requests_total"
    metric = installation.metric
    assert metric(count, method="GET", route="unmatched", status="404") == 20
    route = "/api/v1/sessions/{session}"
    assert metric(count, method="GET", route=route, status="404") == 20
    timed = "paceline_http_request_duration_seconds_count"
    assert metric(timed, method="GET", route=route) == 20


def test_a_refused_host_is_counted(installation: Installation) -> None:
    installation.client.get("/", headers={"Host": "rebound.example"})
    assert (
        installation.metric(
            "paceline_http_requests_total", method="GET", route="unmatched", status="421"
        )
        == 1
    )
