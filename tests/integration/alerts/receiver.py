"""A real HTTP server that receives alerts, and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
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
    """A request; header names are lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - any document
        return json.loads(self.body)


Answer = Callable[[Got], Reply]


class Receiver:
    """Listens on a free port of the loopback address while the context lasts."""

    def __init__(self, answer: Answer = lambda _: Reply()) -> None:
        self.answer = answer
        self.got: list[Got] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Got(self.path, headers, body)
                with receiver._lock:
                    receiver.got.append(request)
                reply = receiver.answer(request)
                try:
                    self._reply(reply)
                except OSError:
                    # The sender has given up, which some tests are about.
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

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

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
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    @property
    def port(self) -> int:
        return self._server.server_port
