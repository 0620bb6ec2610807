"""The list of jobs of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.integration.api import bodies

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def listed(installation: Installation, **asked: str) -> dict[str, Any]:
    answer = installation.client.get("/api/v1/jobs", params=asked)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_jobs_are_listed_with_the_session_that_represents_them(installation: Installation) -> None:
    installation.post(job="first")
    installation.analyze_all()
    installation.post(job="first", params=bodies.SIZES | {"trial_name": "again"})
    installation.post(job="second")
    found = listed(installation, sort="job")
    assert (found["total"], found["page"]) == (2, 1)
    first, second = found["jobs"]
    assert (first["name"], second["name"]) == ("first", "second")
    assert first["told"]["state"] == "analyzed"
    assert first["told"]["headline"]["sentence"]
    assert first["latest_session"] != first["told"]["id"]
    assert second["told"]["state"] == "queued"
    assert second["latest_session"] == second["told"]["id"]


def test_jobs_are_found_by_words_and_paged(installation: Installation) -> None:
    for name in ("llama-70b", "llama-8b", "mixtral"):
        installation.post(job=name)
    assert [job["name"] for job in listed(installation, q="llama", sort="job")["jobs"]] == [
        "llama-70b",
        "llama-8b",
    ]
    second = listed(installation, sort="job", limit="2", page="2")
    assert [job["name"] for job in second["jobs"]] == ["mixtral"]
    assert second["total"] == 3
    for wrong in ({"sort": "colour"}, {"show": "loud"}, {"q": "\0"}, {"limit": "0"}):
        assert installation.client.get("/api/v1/jobs", params=wrong).status_code == 422
