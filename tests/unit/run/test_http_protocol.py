"""Limits on the cost of a connection, on real sockets."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI, Response

from app.platform.settings import Settings
from app.run.http import HttpServer, Peers, listen
from app.web.addresses import peer_of
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 16 * 1024 * 1024


def application(settings: Settings) -> FastAPI:
    app = FastAPI()
    app.state.settings = settings

    @app.get("/")
    def root() -> str:
        return "answer"

    @app.post("/")
    def unread() -> str:
        return "answer"

    @app.get("/large")
    def large() -> Response:
        return Response(bytes(LARGE))

    return app


@contextlib.contextmanager
def serving(**changes: float) -> Iterator[tuple[str, int]]:
    settings = Settings(port=0).model_copy(update=changes)
    listener = listen(settings)
    address: tuple[str, int] = listener.getsockname()
    server = HttpServer(application(settings), listener)
    server.start(lambda: False)
    try:
        yield address
    finally:
        server.stop()


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=LIMIT_S)


def answer(connection: socket.socket) -> bytes:
    """Return the next complete answer, by its Content-Length."""
    head, _, body = _until(connection, b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def _until(connection: socket.socket, end: bytes) -> tuple[bytes, bytes, bytes]:
    data = b""
    while end not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data.partition(end)


def rest(connection: socket.socket) -> bytes:
    """Return the bytes until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            data += piece
    return data


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_half_sent_heads_are_let_go_and_hold_no_descriptor() -> None:
    with serving(header_timeout_s=0.5) as address, contextlib.ExitStack() as senders:
        before = open_files()
        connections = [senders.enter_context(connect(address)) for _ in range(100)]
        for connection in connections:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: local")
        with connect(address) as other:
            other.sendall(GET)
            assert answer(other).endswith(b'"answer"')
        for connection in connections:
            said = rest(connection)
            assert said.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"head.timeout"' in said
        # Only the test's ends of the connections are still open.
        wait_for(lambda: open_files() <= before + len(connections), "end of the connections")


def test_bytes_that_drip_do_not_keep_a_head_open() -> None:
    with serving(header_timeout_s=0.5) as address, connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.settimeout(0.02)
        said = b""
        sent = 0
        while not said:
            assert sent < LIMIT_S / 0.02
            with contextlib.suppress(TimeoutError):
                connection.sendall(b"x")
                sent += 1
                said = connection.recv(65536)
        assert said.startswith(b"HTTP/1.1 408 ")


def test_a_connection_without_a_byte_is_let_go() -> None:
    with serving(header_timeout_s=0.1) as address, connect(address) as connection:
        assert rest(connection) == b""


def test_the_head_of_a_later_request_has_its_time_too() -> None:
    with serving(header_timeout_s=0.2) as address, connect(address) as connection:
        connection.sendall(GET)
        assert answer(connection).endswith(b'"answer"')
        connection.sendall(GET[:10])
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_is_not_read_does_not_hold_its_connection() -> None:
    with serving(header_timeout_s=0.2) as address, connect(address) as connection:
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx"
        )
        assert answer(connection).endswith(b'"answer"')
        assert rest(connection) == b""


def test_a_body_that_is_not_read_may_end_and_the_connection_goes_on() -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert answer(connection).endswith(b'"answer"')
        connection.sendall(bytes(1_000_000) + GET)
        assert answer(connection).endswith(b'"answer"')


def test_an_answer_that_is_not_read_is_given_up() -> None:
    with serving(unread_timeout_s=0.2) as address:
        before = open_files()
        with connect(address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # Both ends belong to this process; the kernel continues to send buffered bytes.
            wait_for(lambda: open_files() >= before + 2, "connection")
            wait_for(lambda: open_files() <= before + 1, "end of the connection")


def test_a_peer_has_a_limit_of_connections_and_gets_them_back() -> None:
    with serving(max_connections_per_peer=3) as address:
        with contextlib.ExitStack() as senders:
            for _ in range(3):
                connection = senders.enter_context(connect(address))
                connection.sendall(GET)
                assert answer(connection).endswith(b'"answer"')
            with connect(address) as fourth:
                refusal = rest(fourth)
            assert refusal.startswith(b"HTTP/1.1 429 ")
            assert b'"code":"connections.too_many"' in refusal
            assert b"retry-after: " in refusal.lower()

        def answered() -> bool:
            with connect(address) as again, contextlib.suppress(OSError):
                again.sendall(GET)
                return again.recv(65536).startswith(b"HTTP/1.1 200 ")
            return False

        wait_for(answered, "place for another connection")


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_a_customer(host: str, peer: str) -> None:
    assert peer_of(host) == peer


def test_a_peer_without_connections_is_forgotten() -> None:
    peers = Peers()
    assert [peers.enter("a"), peers.enter("a"), peers.enter("b")] == [1, 2, 1]
    for peer in ("a", "b", "a"):
        peers.leave(peer)
    assert peers.connections == Counter()
