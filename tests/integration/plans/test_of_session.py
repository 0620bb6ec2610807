"""The plan of the whole job of a stored session, over HTTP."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tests.support.plans import Asked, do, open_run
from tests.support.sessions import store
from tests.support.whole_jobs import whole_job_trace

if TYPE_CHECKING:
    import httpx

    from app.analysis.trace.model import Trace
    from app.platform.container import Container


def analyzed(container: Container, trace: Trace) -> uuid.UUID:
    stored = store(container, trace)
    assert do(container, Asked(stored.session, stored.run))
    return stored.session


def test_a_sessions_job_is_planned_and_held_against_the_job_as_it_runs(
    container: Container, client: httpx.Client
) -> None:
    session = analyzed(container, whole_job_trace())
    asking = f"/api/v1/plans/of-session/{session}"
    response = client.post(asking)
    assert response.status_code == 202, response.text
    plan = response.json()["plan"]
    again = client.post(asking)
    assert (again.status_code, again.json()["plan"]) == (200, plan)
    assert do(container, Asked(uuid.UUID(plan), open_run(container, uuid.UUID(plan))))
    found = client.get(f"/api/v1/plans/{plan}").json()
    assert found["state"] == "planned"
    runs = found["plan"]["as_it_runs"]
    assert (runs["session"], runs["tp"], runs["pp"], runs["dp"]) == (str(session), 4, 2, 4)
    assert found["plan"]["comparison"]["same_sizes"]["parallelism"]["dp"] == 4
    page = client.get(f"/plans/{plan}", headers={"Accept": "text/html"}).text
    for shown in ("As it runs, measured", "The same sizes, the best cut", "Best as measured"):
        assert shown in page
    assert f"/sessions/{session}" in page
    rows = client.get(f"/plans/{plan}/running.csv").text.splitlines()
    assert [row.split(",")[0] for row in rows] == ["way", "as_it_runs", "same_sizes", "plan"]
    assert f'href="/plans/{plan}"' in client.get(f"/sessions/{session}").text


def test_a_job_and_its_incident_offer_the_plan_of_the_whole_job(
    container: Container, client: httpx.Client
) -> None:
    session = analyzed(container, whole_job_trace())
    job = client.get(f"/api/v1/sessions/{session}").json()["job"]
    incident = client.get("/api/v1/incidents").json()["incidents"][0]["id"]
    pages = (f"/sessions/{session}", f"/jobs/{job}", f"/incidents/{incident}")
    for page in pages:
        assert f'data-plan-job="{session}"' in client.get(page).text, page
    plan = client.post(f"/api/v1/plans/of-session/{session}").json()["plan"]
    for page in pages:
        assert "The whole job is being planned" in client.get(page).text, page
    assert do(container, Asked(uuid.UUID(plan), open_run(container, uuid.UUID(plan))))
    for page in pages:
        shown = client.get(page).text
        assert "Planned as a whole, the job would take" in shown, page
        assert f'href="/plans/{plan}"' in shown, page
        assert "data-plan-job" not in shown, page


def test_what_the_metadata_of_a_session_lack_is_named(
    container: Container, client: httpx.Client
) -> None:
    session = analyzed(container, whole_job_trace(seq_length=None, gpu_type=None))
    response = client.post(f"/api/v1/plans/of-session/{session}")
    assert (response.status_code, response.json()["code"]) == (422, "plan.metadata_missing")
    assert {one["column"] for one in response.json()["faults"]} == {"seq_length", "gpu_type"}
    page = client.get(f"/sessions/{session}").text
    assert "the metadata lack seq_length and gpu_type" in page
    assert "data-plan-job" not in page
    unknown = client.post(f"/api/v1/plans/of-session/{uuid.uuid4()}")
    assert unknown.status_code == 404


def test_a_session_without_a_verdict_is_not_planned(
    container: Container, client: httpx.Client
) -> None:
    stored = store(container, whole_job_trace())
    response = client.post(f"/api/v1/plans/of-session/{stored.session}")
    assert (response.status_code, response.json()["code"]) == (409, "plan.not_measured")
