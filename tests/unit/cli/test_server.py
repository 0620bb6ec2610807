"""What the commands believe of a server's answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.cli.server import Body, Server, ServerError
from tests.support.hostile_server import HostileServer, hostile_server

# Answers that are complete at once: a command waits for a slow server, and a user can end it.
REFUSED = (
    ("closed", "server.unreachable"),
    ("reset", "server.unreachable"),
    ("no_http", "server.unreachable"),
    ("endless_headers", "server.unreachable"),
    ("endless_typed", "server.not_paceline"),
    ("redirect", "server.not_paceline"),
    ("typed_deep", "server.not_paceline"),
    ("typed_list", "server.not_paceline"),
    ("typed_html", "server.not_paceline"),
    ("typed_without_fields", "server.not_paceline"),
    ("problem_without_fields", "server.not_paceline"),
)


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with hostile_server() as server:
        yield server


@pytest.mark.parametrize(("kind", "code"), REFUSED)
def test_an_answer_that_is_none_is_an_error_with_a_code(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, kind: str, code: str
) -> None:
    monkeypatch.setattr("app.cli.server.MOST_ANSWER_BYTES", 1 << 20)
    with Server(server.url(kind)) as api, pytest.raises(ServerError) as caught:
        api.send("job", lambda: Body(b"trace", "application/x-ndjson"), None, print)
    assert caught.value.stable_code == code


def test_a_slow_answer_has_a_time_for_all_of_it(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.server.ANSWER_S", 0.1)
    with Server(server.url("drip_body")) as api, pytest.raises(ServerError, match=r"or 0 s"):
        api.get("/api/v1/sessions")
