"""Reading sessions: lists, states, reports, heatmaps and timelines."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import text

from app.analysis.report.charts import step_timeline
from app.platform.database.states import SessionState
from app.sessions.read import heatmap, report_document
from app.sessions.replays import stored_trace
from tests.integration.api import bodies
from tests.support.reads import read

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation

SESSIONS = "/api/v1/sessions"


@pytest.fixture
def analyzed(installation: Installation) -> str:
    session: str = installation.post().json()["session"]
    installation.analyze_all()
    return session


def ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200
    return [session["session"] for session in answer.json()["sessions"]]


def test_sessions_are_listed_newest_first_and_by_job_and_state(installation: Installation) -> None:
    client = installation.client
    assert ids(client.get(SESSIONS)) == []
    for number in range(3):
        installation.post(params=bodies.SIZES | {"run_id": str(number)})
    installation.post(job="other")
    assert ids(client.get(SESSIONS)) == [1, 3, 2, 1]
    assert ids(client.get(SESSIONS, params={"limit": 2})) == [1, 3]
    assert ids(client.get(SESSIONS, params={"job": "job"})) == [3, 2, 1]
    assert ids(client.get(SESSIONS, params={"job": "unknown"})) == []
    assert ids(client.get(SESSIONS, params={"state": "analyzed"})) == []
    assert ids(client.get(SESSIONS, params={"state": "queued", "job": "other"})) == [1]


def test_a_session_that_waits_says_its_place_in_the_queue(installation: Installation) -> None:
    sessions = [
        installation.post(params=bodies.SIZES | {"run_id": str(number)}).json()["session"]
        for number in range(3)
    ]
    for place, session in enumerate(sessions, start=1):
        found = installation.client.get(f"{SESSIONS}/{session}").json()
        assert found["work"]["position"] == place
        assert found["work"]["state"] == found["state"] == "queued"
        assert not found["has_report"]


def test_a_session_without_a_report_says_why(installation: Installation) -> None:
    session = installation.post().json()["session"]
    answer = installation.client.get(f"{SESSIONS}/{session}/report")
    assert (answer.status_code, answer.json()["code"]) == (404, "report.not_ready")
    with installation.container.engine.begin() as connection:
        connection.execute(text("UPDATE session SET state = 'failed', reason = 'It broke.'"))
    answer = installation.client.get(f"{SESSIONS}/{session}/report")
    assert (answer.status_code, answer.json()["code"]) == (404, "report.none")
    assert "It broke." in answer.json()["detail"]


def test_an_analyzed_session_has_its_verdict_in_lists_and_its_report(
    installation: Installation, analyzed: str
) -> None:
    report = installation.client.get(f"{SESSIONS}/{analyzed}/report").json()
    assert report["schema"] == "paceline.report/1"
    assert (report["job"], report["session"]) == ("job", analyzed)
    [listed] = installation.client.get(SESSIONS).json()["sessions"]
    assert listed["id"] == analyzed
    assert listed["state"] == "analyzed"
    assert listed["slowdown"] == report["slowdown"]
    assert listed["slowdown_ci95"] == report["slowdown_ci95"]
    assert listed["headline"]["sentence"] == report["verdict"]["sentence"]
    for name in ("slowdown", "ci95", "kind"):
        assert listed["headline"][name] == report["headline"][name]
    hourly = listed["sizes"]["world"] * (1 - 1 / report["headline"]["slowdown"])
    assert listed["headline"]["gpu_hours_lost_per_hour"] == pytest.approx(hourly)
    found = installation.client.get(f"{SESSIONS}/{analyzed}").json()
    assert found["has_report"]
    assert found["work"]["state"] == "done"
    assert found["work"]["position"] is None


def test_a_heatmap_holds_the_slowdown_of_each_worker(
    installation: Installation, analyzed: str
) -> None:
    container, client = installation.container, installation.client
    key = uuid.UUID(analyzed)
    steps = read(container, report_document, key).steps.analyzed
    for step in (steps[0], steps[-1], None):
        answer = client.get(
            f"{SESSIONS}/{analyzed}/heatmaps", params={} if step is None else {"step": step}
        )
        assert answer.status_code == 200
        assert answer.headers["x-shape"] == "3,2"
        values = np.frombuffer(answer.content, "<u2").reshape(3, 2) / 10_000
        exact = read(container, heatmap, key, step)
        assert np.abs(values - exact).max() <= 0.5e-4 + 1e-6
        assert (values >= 0.5).all()
    mean = np.mean([read(container, heatmap, key, step) for step in steps], axis=0)
    np.testing.assert_allclose(read(container, heatmap, key), mean, rtol=1e-6)


def test_a_step_that_was_not_analyzed_has_no_heatmap(
    installation: Installation, analyzed: str
) -> None:
    answer = installation.client.get(f"{SESSIONS}/{analyzed}/heatmaps", params={"step": 10**6})
    assert (answer.status_code, answer.json()["code"]) == (404, "step_not_analyzed")


def test_a_filter_takes_every_state(installation: Installation, analyzed: str) -> None:
    def found(state: str) -> list[str]:
        answer = installation.client.get(SESSIONS, params={"state": state})
        assert answer.status_code == 200
        return [session["id"] for session in answer.json()["sessions"]]

    assert {state: found(state) for state in SessionState} == {
        state: [analyzed] if state is SessionState.ANALYZED else [] for state in SessionState
    }
    refused = installation.client.get(SESSIONS, params={"state": "lost"})
    assert refused.status_code == 422
    assert [fault["column"] for fault in refused.json()["faults"]] == ["state"]


def test_a_timeline_is_a_chrome_trace_or_columns(installation: Installation, analyzed: str) -> None:
    container, client = installation.container, installation.client
    key = uuid.UUID(analyzed)
    step = read(container, report_document, key).steps.analyzed[0]
    address = f"{SESSIONS}/{analyzed}/timeline"
    trace = client.get(address, params={"step": step}).json()
    drawn = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {"ts", "dur", "pid", "tid", "name"} <= drawn[0].keys()

    lanes = client.get(address, params={"step": step, "format": "lanes"}).json()
    exact = step_timeline(read(container, stored_trace, key).unpack(), step)
    recorded = lanes["recorded"]
    assert len({len(column) for column in recorded.values()}) == 1
    assert recorded["dp"] == exact.recorded.dp.tolist()
    np.testing.assert_allclose(recorded["end_ns"], exact.recorded.end_ns, atol=0.5)
    assert len(drawn) == len(recorded["dp"]) + len(lanes["ideal"]["dp"])
    assert lanes["recorded_s"] >= lanes["ideal_s"] > 0

    some = client.get(address, params={"step": step, "format": "lanes", "dp": [0, 2]}).json()
    assert set(some["recorded"]["dp"]) == {0, 2}


@pytest.mark.parametrize(
    ("params", "code"),
    [({"step": 10**6}, "step_not_analyzed"), ({"step": None, "dp": 3}, "dp_rank_unknown")],
)
def test_a_timeline_of_an_unknown_session_is_a_problem(
    installation: Installation, analyzed: str, params: dict[str, int | None], code: str
) -> None:
    steps = read(installation.container, report_document, uuid.UUID(analyzed)).steps.analyzed
    answer = installation.client.get(
        f"{SESSIONS}/{analyzed}/timeline",
        params={name: steps[0] if value is None else value for name, value in params.items()},
    )
    assert (answer.status_code, answer.json()["code"]) == (404, code)


def test_hosts_are_named_in_the_chrome_trace(installation: Installation) -> None:
    answer = installation.client.post(
        "/api/v1/jobs/job/sessions",
        files={
            "meta": (None, bodies.META + "hosts: {0: node-017, 5: node-099}\n"),
            "trace": ("t", bodies.parquet(), bodies.PARQUET),
        },
    )
    session = answer.json()["session"]
    step = int(bodies.trace().step[0])
    trace = installation.client.get(f"{SESSIONS}/{session}/timeline", params={"step": step}).text
    assert "node-017" in trace
    assert "node-099" in trace
