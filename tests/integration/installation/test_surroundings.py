"""`paceline doctor` on misconfigured servers: each problem has a remedy."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from app.installation.overview import surroundings
from app.run.http import listen
from benchmarks.support.receiver import Got, PostServer, Reply
from tests.support.served import served

if TYPE_CHECKING:
    from app.installation.readiness import Part
    from app.platform.container import Container
    from tests.support.redis import RedisServer


def found(container: Container, *, options: str = "", **changes: object) -> dict[str, Part]:
    """Return the findings by part, with options of PostgreSQL for the session."""
    settings = container.settings.model_copy(update={"port": 0, **changes})
    url = container.engine.url
    connect = {"options": options} if options else {}
    engine = create_engine(url, connect_args=connect)
    try:
        return {part.name: part for part in surroundings(settings, engine)}
    finally:
        engine.dispose()


def test_correct_surroundings_are_ready(container: Container, redis_server: RedisServer) -> None:
    parts = found(container, broker_url=redis_server.url)
    assert [part for part in parts.values() if not part.ready] == []
    assert {"database version", "database rights", "broker memory", "clock of the broker"} <= set(
        parts
    )


def test_a_database_that_may_only_be_read_is_named(container: Container) -> None:
    part = found(container, options="-c default_transaction_read_only=on")["database rights"]
    assert not part.ready
    assert "may only read here: name the primary in PACELINE_DATABASE_URL" in part.detail


def test_a_role_without_rights_is_named(container: Container) -> None:
    role = f"reader_{container.engine.url.database}"
    with container.engine.begin() as connection:
        connection.execute(text(f'CREATE ROLE "{role}"'))
        connection.execute(text(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"'))
    part = found(container, options=f"-c role={role}")["database rights"]
    assert not part.ready
    assert f"{role} may not write into the tables" in part.detail


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy is allkeys-lru, which throws"),
        ("maxmemory", "2mb", "maxmemory is 2 MiB: give it 64 MiB at least"),
    ],
)
def test_a_redis_that_loses_messages_is_named(
    container: Container, redis_server: RedisServer, setting: str, value: str, said: str
) -> None:
    with contextlib.closing(redis_server.client()) as client:
        client.config_set(setting, value)
    part = found(container, broker_url=redis_server.url)["broker memory"]
    assert not part.ready
    assert said in part.detail


def test_an_unreachable_redis_is_reported(container: Container) -> None:
    part = found(container, broker_url="redis://127.0.0.1:9/0")["broker memory"]
    assert not part.ready


def test_the_port_is_free_or_ours_or_taken(container: Container) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = f"port {port}"
    assert found(container, port=port)[name].detail == "free: no server runs here"
    listener = listen(container.settings.model_copy(update={"port": port}))
    with served(container, listener):
        assert found(container, port=port)[name].detail == "a server of Paceline answers"

    class Other(PostServer):
        def take(self, got: Got) -> Reply:  # noqa: ARG002 - whatever comes
            return Reply()

    with Other() as other:
        part = found(container, port=other.port)[f"port {other.port}"]
    assert (part.ready, part.detail) == (
        False,
        "another program answers there: choose PACELINE_PORT anew",
    )


def test_telemetry_that_cannot_be_sent_is_named(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(name.startswith("OTLP") for name in found(container))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert found(container)["OTLP traces"].ready
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    part = found(container)["OTLP metrics"]
    assert (part.ready, part.detail[:35]) == (False, "OTEL_EXPORTER_OTLP_PROTOCOL is grpc")
