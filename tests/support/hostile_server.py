"""A server that answers every request in one of many broken or hostile ways.

The first segment of a path names the kind of answer: ``http://127.0.0.1:PORT/endless_headers`` is
the address of a server all of whose answers have endless headers. An endless answer ends only once
the client has closed the connection, so that a client without a limit never returns.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

Respond = Callable[[socket.socket], None]

MANY: Final = 60_000_000
TWENTY_DIGITS: Final = 10**19 + 7
_DRIP_S: Final = 0.005
_PIECE: Final = b"x" * (1 << 16)
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
# A valid answer to every request of the client: each reads the fields that it needs.
VALID: Final[dict[str, Any]] = {
    "attempt": 3,
    "session": "01",
    "url": "/sessions/01",
    "chunks": [{"status": 202, "code": "", "detail": ""}] * 2,
    "pulse_s": 0.05,
    "record": None,
    "files": True,
    "sentence": "no outlier",
    "plan_version": 3,
    "expires_step": 90,
    "plan": {
        "version": 3,
        "attempt": 1,
        "world_size": 2,
        "columns": 16,
        "method": "zero",
        "apply": True,
        "expires_step": 50,
        "ranks": [{"rank": 1, "resized_columns": 4, "to": {"0": 1}}],
    },
    "version": 3,
    "world_size": 2,
    "columns": 16,
    "method": "zero",
    "ranks": [],
    "sessions": [
        {"session": 3, "headline": {"slowdown": 1.5, "gpu_hours_lost": 2, "sentence": "slow"}}
    ],
    "incidents": [{"state": "firing"}],
}


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> Respond:
    """Return a response with this body."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def document(**fields: object) -> Respond:
    """Return a valid answer but for some fields."""
    return answer(json.dumps(VALID | fields).encode())


def _everywhere(value: object, of: Any = None) -> Any:  # noqa: ANN401 - JSON
    """Return the valid answer with each scalar replaced by `value`."""
    of = VALID if of is None else of
    if isinstance(of, dict):
        return {key: _everywhere(value, "" if part is None else part) for key, part in of.items()}
    return [_everywhere(value, part) for part in of] if isinstance(of, list) and of else value


def every_scalar(value: object) -> Respond:
    """Return an answer of the valid structure whose scalars are all of one value."""
    return answer(json.dumps(_everywhere(value)).encode())


def every_field(value: str) -> Respond:
    """Return an answer each of whose fields is the same JSON text."""
    return answer(("{" + ",".join(f'"{name}":{value}' for name in VALID) + "}").encode())


def endless(head: bytes, piece: bytes, pause_s: float = 0.0) -> Respond:
    """Return a response of a head, and of pieces that only end with the connection."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)
            time.sleep(pause_s)

    return respond


def then_silence(head: bytes) -> Respond:
    """Return a response that stops and keeps the connection open."""

    def respond(connection: socket.socket) -> None:
        connection.sendall(head)
        # Returns at the client's end of the connection.
        while connection.recv(1 << 16):
            pass

    return respond


def then_close(content: bytes) -> Respond:
    """Return a response that ends with the connection."""
    return lambda connection: connection.sendall(content)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _chunked(content: bytes) -> bytes:
    return _OK + b"Transfer-Encoding: chunked\r\n\r\n" + content


_UNTIL_CLOSED: Final = _OK + b"\r\n"
_RECORD: Final = {"reason": "slow", "by": "person"}

KINDS: Final[dict[str, Respond]] = {
    # The connection
    "valid": document(),
    "closed": lambda _: None,
    "reset": _reset,
    "silence": then_silence(b""),
    "silence_after_status": then_silence(b"HTTP/1.1 200 OK\r\n"),
    "silence_in_body": then_silence(_OK + b'Content-Length: 100\r\n\r\n{"att'),
    "no_http": then_close(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"),
    "endless_no_http": endless(b"", b"\x00" * 4096),
    # Slow answers
    "drip_status": endless(b"HTTP/1.1 200 O", b"K", _DRIP_S),
    "drip_headers": endless(_OK, b"a: b\r\n", _DRIP_S),
    "drip_header": endless(_OK + b"a: ", b"b", _DRIP_S),
    "drip_body": endless(_OK + b"Content-Length: 1000000\r\n\r\n", b" ", _DRIP_S),
    "drip_chunks": endless(_chunked(b""), b"1\r\n \r\n", _DRIP_S),
    "drip_continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", _DRIP_S),
    "drip_refusal": endless(b"HTTP/1.1 503 Busy\r\n\r\n", b" ", _DRIP_S),
    # Endless answers
    "endless_status": endless(b"HTTP/1.1 200 ", _PIECE),
    "endless_headers": endless(_OK, b"a: b\r\n" * 1000),
    "endless_header": endless(_OK + b"a: ", _PIECE),
    "endless_continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "endless_continue_headers": endless(b"HTTP/1.1 100 Continue\r\n", b"a: b\r\n" * 1000),
    "endless_body": endless(_UNTIL_CLOSED, _PIECE),
    "endless_json": endless(_UNTIL_CLOSED + b'{"attempt":3,"a":[', b"0," * 1000),
    "endless_chunks": endless(_chunked(b""), b"10000\r\n" + _PIECE + b"\r\n"),
    "endless_chunk_size": endless(_chunked(b""), b"0" * 4096),
    "endless_trailers": endless(_chunked(b"2\r\n{}\r\n0\r\n"), b"a: b\r\n" * 1000),
    "endless_refusal": endless(b"HTTP/1.1 422 No\r\n\r\n", _PIECE),
    # Framing
    "length_too_large": answer(b"{}", headers="Content-Length: 9000000000\r\n"),
    "length_too_small": then_close(_OK + b'Content-Length: 3\r\n\r\n{"attempt": 3}'),
    "length_negative": then_close(_OK + b"Content-Length: -5\r\n\r\n{}"),
    "length_of_4000_digits": then_silence(_OK + b"Content-Length: " + b"9" * 4000 + b"\r\n\r\n{"),
    "length_and_chunks": then_close(
        _OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "chunk_no_number": then_close(_chunked(b"zz\r\n{}\r\n0\r\n\r\n")),
    "chunk_negative": endless(_chunked(b"-1\r\n"), _PIECE),
    "chunk_huge": endless(_chunked(b"ffffffffffffffff\r\n"), _PIECE),
    "chunk_of_60000_digits": endless(_chunked(b"f" * 60_000 + b"\r\n"), _PIECE),
    "status_102": answer(b"{}", "102 Processing"),
    "status_999": answer(b"{}", "999 Unknown"),
    "no_content_with_body": answer(json.dumps(VALID).encode(), "204 No Content"),
    "gzip_bomb": answer(gzip.compress(bytes(1 << 24)), headers="Content-Encoding: gzip\r\n"),
    "redirect": answer(b"", "307 Elsewhere", "Location: /redirect/again\r\n"),
    # JSON
    "empty": answer(b""),
    "no_json": answer(b"<html>welcome</html>"),
    "no_object": answer(b"[1]"),
    "number": answer(b"1"),
    "no_utf_8": answer(b'{"session": "\xff\xfe"}'),
    "utf_16": answer(json.dumps(VALID).encode("utf-16")),
    "deep_lists": answer(b"[" * 500_000),
    "deep_objects": answer(b'{"a":' * 150_000),
    "deep_fields": every_field("[" * 5000 + "]" * 5000),
    "escapes": answer(b'{"a":"' + b'\\"' * 500_000),
    "many_lists": answer(b'{"a":[' + b"[]," * 300_000 + b"[]]}"),
    "many_keys": answer(json.dumps(dict.fromkeys(map(str, range(80_000)), 0)).encode()),
    "repeated_keys": answer(b'{"attempt": 1, "attempt": 2, "pulse_s": 5, "pulse_s": 5}'),
    "nan": every_field("NaN"),
    "infinity": every_field("Infinity"),
    "minus_infinity": every_field("-Infinity"),
    "overflow": every_field("1e999"),
    "integer_of_20_digits": every_scalar(TWENTY_DIGITS),
    "integer_of_40000_digits": every_field("9" * 40_000),
    # Of the content types that the commands require
    "endless_typed": endless(_OK + b"\r\n", _PIECE),
    "typed_deep": then_close(_OK + b"\r\n" + b"[" * 200_000),
    "typed_list": then_close(_OK + b"\r\n[1]"),
    "typed_html": then_close(_OK + b"\r\n<html>"),
    "typed_without_fields": then_close(_OK + b"\r\n{}"),
    "problem_without_fields": then_close(
        b"HTTP/1.1 422 No\r\nContent-Type: application/problem+json\r\n\r\n{}"
    ),
    # Types and ranges
    "nulls": every_field("null"),
    "trues": every_field("true"),
    "negatives": every_scalar(-1),
    "zeros": every_scalar(0),
    "60_million": every_scalar(MANY),
    "fractions": every_scalar(0.5),
    "texts": every_scalar("9" * 300),
    "lists": every_field("[]"),
    "lists_of_lists": every_field("[[]]"),
    "objects": every_field("{}"),
    "objects_of_objects": every_field('{"steps":{},"headline":{}}'),
    "surrogates": every_scalar("\ud800\x1b[2J\n\x00"),
    "long_texts": every_scalar("x" * 20_000),
    "no_address": document(url="http://["),
    "record_60_million": document(record={"steps": MANY, **_RECORD}),
    "record_20_digits": document(record={"steps": TWENTY_DIGITS, **_RECORD}),
    "record_often": document(record={"steps": 10_000, **_RECORD}, pulse_s=0.0),
    "pulse_never": document(pulse_s=1e300),
    "attempt_of_19_digits": document(attempt=(1 << 63) - 1),
    # Refusals
    "refused_in_html": answer(b"<html>" + b"x" * 100_000, "401 Unauthorized"),
    "refused_at_length": answer(
        json.dumps({"detail": "\x1b[2J" + "x" * 100_000, "code": "y" * 100_000}).encode(),
        "422 Unprocessable",
    ),
    "refused_with_types": answer(b'{"detail": [1], "code": {"a": 1}, "title": 3}', "400 Bad"),
    "busy_for_20_digits": answer(b"{}", "503 Busy", f"Retry-After: {TWENTY_DIGITS}\r\n"),
    "busy_for_60000_digits": answer(b"{}", "429 Busy", f"Retry-After: {'9' * 60_000}\r\n"),
    "busy_for_a_word": answer(b"{}", "503 Busy", "Retry-After: nan\r\n"),
}


class HostileServer:
    """The server; `url` has the address of each kind.

    With `tls`, every connection begins with a handshake of TLS.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._port = self._listener.getsockname()[1]
        # Paths of the requests, without their kind.
        self.paths: set[str] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, kind: str) -> str:
        """Return the address of a server whose answers are all of one kind."""
        assert kind in KINDS
        return f"http{'' if self._tls is None else 's'}://127.0.0.1:{self._port}/{kind}"

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                kind, path = _request(connection)
                self.paths.add(path)
                KINDS[kind](connection)


def _request(connection: socket.socket) -> tuple[str, str]:
    """Read a request with its body; return the kind of answer, and the rest of the path."""
    with connection.makefile("rb") as file:
        _, target, _ = file.readline().split(b" ")
        length = 0
        while (line := file.readline()).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        file.read(length)
    kind, _, path = target.decode()[1:].partition("/")
    return kind, path


@contextlib.contextmanager
def hostile_server(tls: ssl.SSLContext | None = None) -> Iterator[HostileServer]:
    """Yield a server."""
    server = HostileServer(tls)
    try:
        yield server
    finally:
        server.close()
