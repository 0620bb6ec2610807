"""HTTP servers that receive the messages of alerts."""

from __future__ import annotations

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `drip_s` waits before each byte of its body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Got:
    """A received request; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - any document
        """Return the body, parsed as JSON."""
        return json.loads(self.body)


class PostServer(ABC):
    """A server on a free port of the loopback address, open while the context is."""

    def __init__(self) -> None:
        self._server = _Server(self.take)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @abstractmethod
    def take(self, got: Got) -> Reply | None:
        """Return the answer to a request; None ends the connection without one."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return self._server.server_port


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, take: Callable[[Got], Reply | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.take = take

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of the standard library
        # A sender that is killed during its request causes an error that is not the server's.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        # A sender that is killed meanwhile sends less than it announced.
        whole = len(body) == length
        reply = self.server.take(Got(self.path, headers, body)) if whole else None
        if reply is None:
            self.close_connection = True
            return
        try:
            self._reply(reply)
        except OSError:
            # The sender has stopped waiting, as some tests provoke.
            self.close_connection = True

    def _reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if not reply.drip_s:
            self.wfile.write(reply.body)
            return
        for byte in reply.body:
            time.sleep(reply.drip_s)
            self.wfile.write(bytes((byte,)))

    def log_message(self, *_: object) -> None:
        pass
