"""A job over time, in the API and on its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.pages.test_job_page import page, sessions

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container


def test_a_job_over_time_has_its_sessions_marks_and_lasting_changes(
    container: Container, client: httpx.Client
) -> None:
    ids = sessions(container, [1.01, 1.02, 1.01, "discarded", 1.38, 1.37, 1.38])
    client.post("/api/v1/jobs/llm/attempts", json={"run_id": "first", "restart": 0})
    noted = {"text": "image <7>", "kind": "deployment", "by": "ann"}
    assert client.post("/api/v1/jobs/llm/notes", json=noted).status_code == 201
    found = client.get("/api/v1/jobs/llm/history").json()
    assert [point["slowdown"] for point in found["points"]] == [
        *(1.01, 1.02, 1.01, None, 1.38, 1.37, 1.38)
    ]
    assert found["points"][4]["gpu_hours_lost_per_hour"] == 4 * (1 - 1 / 1.38)
    assert [mark["kind"] for mark in found["marks"]] == ["deployment", "attempt"]
    [change] = found["changes"]
    assert (change["number"], change["session"]) == (5, str(ids[4]))
    assert (change["before"], change["after"]) == (1.01, 1.38)
    none = client.get("/api/v1/jobs/llm/history", params={"to": "2020-01-01T00:00:00Z"}).json()
    assert none == {"points": [], "marks": [], "changes": []}
    shown = page(client, "/jobs/llm")
    assert "session 5: 1.01× → 1.38×" in shown.text
    assert "image <7>" in shown.one("table", "marks").text
    text = client.get("/jobs/llm/sessions.csv").text
    assert text.startswith("session,attempt,received_at,slowdown")
    assert len(text.splitlines()) == 8
    assert "deployment,image <7>,ann" in client.get("/jobs/llm/marks.csv").text
    assert client.get("/jobs/none/marks.csv").status_code == 404
    assert client.get("/api/v1/jobs/none/history").status_code == 404
