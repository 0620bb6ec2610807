"""A real HTTP server that answers as a test configures, and stores all requests."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCEPTED = {"session": "01", "url": "/api/v1/sessions/01", "state": "queued"}


@dataclass
class Answer:
    """An answer of the server; without a status, the server closes the connection."""

    status: int | None = 202
    document: Any = field(default_factory=lambda: ACCEPTED)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers with `answers` in turn, then with 202; pulses, stored separately, get `pulse`."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.pulse = Answer(document={"record": None, "pulse_s": 5})
        self.pulses: list[Request] = []
        # A run has one attempt number, however often it is requested.
        self.numbered: Answer | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Request(self.command, self.path, dict(self.headers), body)
                if self.path.endswith("/pulse"):
                    receiver.pulses.append(request)
                    answer = receiver.pulse
                else:
                    receiver.requests.append(request)
                    answer = receiver.answer_to(self.path)
                if answer.status is None:
                    self.close_connection = True
                    return
                content = json.dumps(answer.document).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PUT = do_POST  # noqa: N815 - name of the library

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer_to(self, path: str) -> Answer:
        """Return the next answer."""
        if path.endswith("/attempts") and self.numbered is not None:
            return self.numbered
        answer = self.answers.pop(0) if self.answers else Answer()
        if isinstance(answer.document, dict) and "attempt" in answer.document:
            self.numbered = answer
        return answer


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
    thread.join()
