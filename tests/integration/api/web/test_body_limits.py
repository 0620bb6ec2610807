"""No route reads more than its limit."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from app.web.bodies import MAX_BODY_BYTES, MAX_COMMAS
from tests.integration.api import bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

INGEST = {
    "/api/v1/folders",
    "/api/v1/jobs/{job}/folders/{folder}/file",
    "/api/v1/jobs/{job}/hangs",
    "/api/v1/jobs/{job}/sessions",
    "/api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks/{producer}/{n}",
    "/api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks",
    "/api/v1/jobs/{job}/attempts/{attempt}/pulse",
}
ANY_ID = "00000000-0000-0000-0000-000000000000"


def routes_with_bodies(client: httpx.Client) -> Iterator[tuple[str, str]]:
    paths: dict[str, dict[str, Any]] = client.get("/api/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            if "requestBody" in operation and path not in INGEST:
                yield method, re.sub(r"{[^}]*}", ANY_ID, path)


def test_every_route_but_those_of_traces_refuses_a_large_body_unread(client: httpx.Client) -> None:
    routes = list(routes_with_bodies(client))
    assert len(routes) > 5
    for method, path in routes:
        answer = client.request(method, path, content=b"[" + b" " * MAX_BODY_BYTES + b"]")
        assert (answer.status_code, answer.json()["code"]) == (413, "body.too_large"), path
        assert answer.headers["content-type"] == "application/problem+json"


def test_every_route_but_those_of_traces_refuses_too_many_values(client: httpx.Client) -> None:
    """Each of them could be a fault, which costs far more than its two bytes."""
    body = "[" + "1," * MAX_COMMAS + "1,1]"
    assert len(body) < MAX_BODY_BYTES
    for method, path in routes_with_bodies(client):
        answer = client.request(
            method, path, content=body, headers={"Content-Type": "application/json"}
        )
        refused = answer.status_code, answer.json()["code"]
        assert refused == (413, "body.too_many_values"), (method, path)


def test_a_body_of_unknown_length_is_refused_while_it_is_read(client: httpx.Client) -> None:
    pieces = iter([b" " * (MAX_BODY_BYTES // 2)] * 3)
    answer = client.post("/api/v1/plans", content=pieces)
    assert (answer.status_code, answer.json()["code"]) == (413, "body.too_large")


def test_a_body_below_the_limit_is_read(client: httpx.Client) -> None:
    text = json.dumps({"padding": " " * (MAX_BODY_BYTES - 100)})
    answer = client.post("/api/v1/alert-rules", content=text)
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("- " * 300_000, "spec.too_large"),
        ("[" * 200_000, "spec.malformed"),
        ("a: &a [x]\nb: [*a, *a]", "spec.malformed"),
    ],
    ids=["long", "deep", "aliases"],
)
def test_yaml_comes_in_by_its_one_door(client: httpx.Client, spec: str, code: str) -> None:
    answer = client.post("/api/v1/plans", json={"spec": spec})
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


def test_yaml_next_to_a_trace_is_received_alike(client: httpx.Client) -> None:
    answer = client.post(
        "/api/v1/jobs/job/sessions",
        files={"meta": (None, "- " * 300_000), "trace": ("t", bodies.parquet())},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "metadata.too_large"), answer.text
