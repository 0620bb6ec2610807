"""What the server counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.api import bodies
from tests.integration.api.frame.test_health import add_worker

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


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


def test_the_database_is_asked_at_each_scrape(installation: Installation) -> None:
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
