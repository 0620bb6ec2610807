"""Search by words for jobs, sessions, hosts and incidents of the own project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.hosts.build import HOUR, session
from tests.support.alerting import Alerting
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def found(installation: Installation, words: str) -> list[tuple[str, str]]:
    answer = installation.client.get("/api/v1/search", params={"q": words})
    assert answer.status_code == 200, answer.text
    return [(one["kind"], one["name"]) for one in answer.json()["found"]]


@pytest.fixture
def served(installation: Installation) -> Installation:
    """Return a server with a firing job, a job of two sessions, and many jobs of similar names."""
    Alerting(installation.container).slow("dense_34b", host="node-7")
    session(installation.container, {"node-7": 1.6}, ago=HOUR, job="dense_34b")
    for _ in range(2):
        store(installation.container, small_trace(), job="vision-7b")
    for number in range(9):
        store(installation.container, small_trace(), job=f"sweep-{number:03}")
    return installation


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", []),
        ("dense", [("incident", "dense_34b: Slow worker: node-7"), ("job", "dense_34b")]),
        ("34B DENSE", [("incident", "dense_34b: Slow worker: node-7"), ("job", "dense_34b")]),
        ("slow worker", [("incident", "dense_34b: Slow worker: node-7")]),
        ("node-7", [("incident", "dense_34b: Slow worker: node-7"), ("host", "node-7")]),
        ("vision", [("job", "vision-7b")]),
        ("session 2 vision", [("session", "vision-7b, session 2")]),
        ("dense%34b", []),
        ("no such thing", []),
    ],
)
def test_words_find_what_they_name(
    served: Installation, words: str, expected: list[tuple[str, str]]
) -> None:
    assert found(served, words) == expected


def test_a_handful_of_each_kind_and_an_id_alone(served: Installation) -> None:
    assert found(served, "sweep") == [("job", f"sweep-{number:03}") for number in range(6)]
    [second] = served.client.get("/api/v1/search", params={"q": "2 vision"}).json()["found"]
    session_id = second["path"].rpartition("/")[2]
    answer = served.client.get("/api/v1/search", params={"q": session_id}).json()
    told = [(one["kind"], one["path"]) for one in answer["found"]]
    assert told == [("session", second["path"])]
    for wrong in ("x" * 201, "a\x00b"):
        assert served.client.get("/api/v1/search", params={"q": wrong}).status_code == 422
