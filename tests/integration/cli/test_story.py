"""The demo's story on its pages and in its API."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.synthesis.fleet_history import (
    BAD_HOST,
    DIVIDED,
    GPUS_PER_HOST,
    LAUNCHING,
    host_name,
    runs,
)
from app.analysis.synthesis.scenarios import SCENARIOS
from app.platform.database.states import SessionState
from tests.support.html import parse
from tests.support.nightly import by_night

if TYPE_CHECKING:
    import httpx

# By day, tests/e2e/test_demo.py walks over the demo's pages.
pytestmark = [pytest.mark.slow, by_night]

WEEK = timedelta(days=7)


def page(told: httpx.Client, path: str) -> str:
    answer = told.get(path)
    assert answer.status_code == 200, path
    return " ".join(parse(answer.text).text.replace("\u00a0", " ").split())


def listed(told: httpx.Client, path: str, name: str) -> list[dict[str, Any]]:
    """Return all of a list of the API."""
    found: list[dict[str, Any]] = told.get(path, params={"limit": 200}).json()[name]
    return found


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_each_session_is_there_once_and_analyzed_also_after_a_restart(told: httpx.Client) -> None:
    for run in runs():
        planned = list(run.sessions())
        sessions = told.get(f"/api/v1/sessions?job={run.name}&limit=200").json()["sessions"]
        assert sorted(one["session"] for one in sessions) == list(range(1, len(planned) + 1))
        assert {one["state"] for one in sessions} <= set(SessionState.REPORTED)
        received = sorted(datetime.fromisoformat(one["received_at"]) for one in sessions)
        hours = [(received[-1] - at).total_seconds() / 3600 for at in received]
        assert hours == pytest.approx([one.at_h - planned[-1].at_h for one in planned], abs=0.01)


def test_counts_of_fleet_hosts_and_report_agree(told: httpx.Client) -> None:
    going = [run for run in runs() if not run.to_h]
    gpus = sum(run.phases[-1].job.sizes.world for run in going)
    assert f"{gpus:,} GPUs" in page(told, "/?since=1d")
    measured = re.search(r"([\d,]+) hosts measured in .*?, ([\d,]+) GPUs", page(told, "/hosts"))
    assert measured is not None
    hosts = {host for run in runs() for session in run.sessions() for host in session.hosts}
    assert number(measured[1]) * GPUS_PER_HOST == number(measured[2])
    assert number(measured[1]) <= len(hosts)
    report = told.get("/api/v1/fleet/report").json()
    assert report["coverage"]["jobs"] == len(runs())
    # The fleet uses no more GPU-hours than its cluster has.
    assert 0 < report["costs"]["used_gpu_hours"] <= gpus * WEEK.total_seconds() / 3600
    before, now = report["trend"][-2:]
    assert before["used_gpu_hours"] > 0
    assert now["used_gpu_hours"] == pytest.approx(report["costs"]["used_gpu_hours"])


def test_a_host_is_slow_in_two_jobs_until_it_is_repaired(told: httpx.Client) -> None:
    host = host_name(BAD_HOST)
    words = page(told, f"/hosts/{host}")
    assert "2 of its 3 jobs" in words
    assert "The last repair helped" in words
    assert "2 incidents named it" in words


def test_a_deployment_slows_a_job_until_it_is_rolled_back(told: httpx.Client) -> None:
    words = page(told, "/jobs/dense-70b?since=14d")
    assert "garbage collection; last event before it: Deployment: image 25.11" in words
    assert "Rolled back to image 25.10" in words
    assert "1.01× the ideal step time" in words


def test_incidents_opened_were_acknowledged_and_ended_in_the_past(told: httpx.Client) -> None:
    now = datetime.now(UTC)
    incidents = listed(told, "/api/v1/incidents", "incidents")
    resolved = [one for one in incidents if one["state"] == "resolved"]
    assert {one["job"] for one in resolved} >= {"dense-70b", "dense-72b", DIVIDED}
    for one in resolved:
        opened, ended = (datetime.fromisoformat(one[key]) for key in ("opened_at", "resolved_at"))
        assert now - 15 * timedelta(days=1) < opened < ended < now
    for one in incidents:
        events = told.get(f"/api/v1/incidents/{one['id']}").json()["events"]
        times = [datetime.fromisoformat(event["at"]) for event in events]
        assert times == sorted(times)
        assert times[0] == datetime.fromisoformat(one["opened_at"])
    states = Counter(one["state"] for one in incidents)
    assert states.keys() >= {"firing", "acknowledged", "silenced", "resolved"}


def test_fixes_were_applied_and_most_brought_what_they_promised(told: httpx.Client) -> None:
    found = told.get("/api/v1/fixes").json()
    assert {fix["source"] for fix in found["fixes"]} == {"person", "metadata"}
    assert found["calibration"]["measured"] == len(found["fixes"]) >= 4
    assert found["calibration"]["met"] >= 3
    assert found["calibration"]["median_error"] < 0.05


def test_two_jobs_have_finished(told: httpx.Client) -> None:
    words = page(told, "/?since=30d&q=dense-24b") + page(told, "/")
    assert "Finished" in words
    for job in (DIVIDED, LAUNCHING):
        open_ones = [
            one
            for one in listed(told, "/api/v1/incidents", "incidents")
            if one["job"] == job and one["state"] != "resolved"
        ]
        assert open_ones == []


def test_every_cause_that_is_synthesized_is_named_now_or_was(told: httpx.Client) -> None:
    report = told.get("/api/v1/fleet/report").json()
    wanted = {
        injection.cause for scenario in SCENARIOS.values() for injection in scenario.faults(4)
    }
    named = {cause["name"] for cause in report["causes"]}
    assert wanted & set(KINDS) <= named


def test_a_plan_is_there_and_a_tensor_parallel_group_reports(told: httpx.Client) -> None:
    [plan] = listed(told, "/api/v1/plans", "plans")
    assert plan["state"] == "planned"
    words = page(told, "/jobs/dense-52b/tensor")
    assert "1 of 2 tensor-parallel groups has a straggler" in words


def test_jobs_have_teams_and_owners(told: httpx.Client) -> None:
    words = page(told, "/?owner=applied")
    assert "multimodal-7b" in words
    assert "dense-180b" not in words
