"""Slow, disconnected and too many senders."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
from sqlalchemy import text

from app.platform.settings import MIB
from tests.integration.api import bodies
from tests.integration.api.outage import away
from tests.integration.api.sessions.test_refusals import NOTHING, refused, spooled_files
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.integration.api.conftest import Install, Installation

SPOOLED = "paceline_ingest_spooled_bytes"
WAITING = "paceline_ingest_waiting"


@contextlib.contextmanager
def half_a_body(
    installation: Installation, announced: int = 1_000_000, sent: int = 4000
) -> Iterator[socket.socket]:
    """Yield a connection that has sent the head and a part of the body of a request."""
    address = urlsplit(installation.url)
    before = installation.metric(SPOOLED)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(
            b"POST /api/v1/jobs/slow/sessions?dp=3&pp=2 HTTP/1.1\r\n"
            b"Host: localhost\r\n"
            + f"Content-Length: {announced}\r\n\r\n".encode()
            + b"PAR1" * (sent // 4)
        )
        wait_for(lambda: installation.metric(SPOOLED) >= before + sent, "spooled body")
        yield connection


@contextlib.contextmanager
def blocked_stores(installation: Installation) -> Iterator[None]:
    """Block the storing of sessions while the context lasts."""
    with installation.container.engine.begin() as connection:
        connection.execute(text("LOCK TABLE job IN EXCLUSIVE MODE"))
        yield


def test_a_sender_that_falls_silent_is_let_go(install: Install) -> None:
    # Long enough for `half_a_body` to find the body before the server gives up.
    with install(ingest_idle_timeout_s=2.0) as installation, half_a_body(installation) as sender:
        head, _, problem = sender.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head.lower()
        assert b'"code":"body.timeout"' in problem
        assert installation.rows() == NOTHING
        assert spooled_files(installation) == []
        assert installation.metric(SPOOLED) == 0


def test_a_sender_that_is_gone_leaves_nothing(installation: Installation) -> None:
    assert installation.metric("paceline_ingest_cut_total") == 0
    with half_a_body(installation):
        pass
    wait_for(lambda: installation.metric(SPOOLED) == 0, "end of the spooled body")
    assert installation.rows() == NOTHING
    assert spooled_files(installation) == []
    assert installation.metric("paceline_ingest_cut_total") == 1
    # The unread body is counted as cut, and the server logs no error.
    assert (
        installation.metric(
            "paceline_http_requests_total",
            method="POST",
            route="/api/v1/jobs/{job}/sessions",
            status="499",
        )
        == 1
    )
    assert installation.post().status_code == 202


def test_a_sender_that_is_gone_within_a_large_body_leaves_nothing(
    installation: Installation,
) -> None:
    with half_a_body(installation, 64_000_000) as sender:
        sender.sendall(b"x" * 8_000_000)
    wait_for(lambda: installation.metric(SPOOLED) == 0, "end of the spooled body")
    assert installation.rows() == NOTHING
    assert spooled_files(installation) == []


def test_bodies_over_the_budget_are_put_off(install: Install) -> None:
    with (
        install(ingest_budget_bytes=3_000_000) as installation,
        half_a_body(installation, 3_000_000, 2_996_000),
    ):
        answer = installation.post()
        assert answer.status_code == 429
        assert answer.json()["code"] == "busy"
        assert int(answer.headers["retry-after"]) > 0
        assert installation.rows() == NOTHING


def test_bodies_that_are_only_announced_take_no_room(install: Install) -> None:
    with (
        install(ingest_budget_bytes=3_000_000) as installation,
        contextlib.ExitStack() as senders,
    ):
        for _ in range(8):
            senders.enter_context(half_a_body(installation, 512 * MIB, 400))
        assert installation.metric(SPOOLED) == 8 * 400
        assert installation.post().status_code == 202


def test_room_in_the_budget_comes_back(install: Install) -> None:
    with install(ingest_budget_bytes=3_000_000) as installation:
        with half_a_body(installation, 3_000_000, 2_996_000):
            assert installation.post().status_code == 429
        wait_for(lambda: installation.metric(SPOOLED) == 0, "end of the spooled body")
        assert installation.post().status_code == 202


def test_senders_are_put_off_while_many_bodies_wait(install: Install) -> None:
    with install(ingest_concurrency=1, ingest_queue=2) as installation:
        answers: list[httpx.Response] = []

        def post(number: int) -> None:
            answers.append(installation.post(params=bodies.SIZES | {"run_id": str(number)}))

        with blocked_stores(installation):
            senders = [threading.Thread(target=post, args=(number,)) for number in range(3)]
            for sender in senders:
                sender.start()
            wait_for(lambda: installation.metric(WAITING) == 2, "two bodies that wait")
            put_off = installation.post(params=bodies.SIZES | {"run_id": "late"})
            assert put_off.status_code == 429
            assert put_off.json()["code"] == "busy"
            assert int(put_off.headers["retry-after"]) > 0
            # The sender tries again on the same connection.
            assert put_off.headers.get("connection") != "close"
        for sender in senders:
            sender.join()
        assert [answer.status_code for answer in answers] == [202] * 3
        assert installation.rows()["session"] == 3
        assert installation.post(params=bodies.SIZES | {"run_id": "late"}).status_code == 202


def test_pages_are_answered_while_every_store_is_busy(install: Install) -> None:
    with install(ingest_concurrency=2, ingest_queue=64) as installation:
        with blocked_stores(installation):
            senders = [threading.Thread(target=installation.post) for _ in range(40)]
            for sender in senders:
                sender.start()
            wait_for(lambda: installation.metric(WAITING) == 38, "38 bodies that wait")
            assert installation.client.get("/api/v1/sessions").json() == {"sessions": []}
        for sender in senders:
            sender.join()
        assert installation.rows()["session"] == 1


def test_a_full_disk_is_reported(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "/dev/full"

    def on_a_full_disk(**_options: object) -> object:
        return open(full, "wb", buffering=0)  # noqa: PTH123 - a device; closed by the spool

    monkeypatch.setattr("app.sessions.api.spool.tempfile.TemporaryFile", on_a_full_disk)
    # This route writes even small bodies to a file.
    answer = installation.client.post("/api/v1/folders", content=b"{}\n")
    refused(installation, answer, 507, "storage.full")


def test_an_unreachable_database_is_reported(installation: Installation) -> None:
    assert installation.post(params=bodies.SIZES | {"run_id": "before"}).status_code == 202
    with away(installation.container.engine):
        answer = installation.post()
        assert answer.status_code == 503
        assert answer.json()["code"] == "database.unavailable"
        assert int(answer.headers["retry-after"]) > 0
        assert spooled_files(installation) == []
    assert installation.post().status_code == 202
