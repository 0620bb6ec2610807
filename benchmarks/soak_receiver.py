"""The receiver of the soak: fails as receivers do, and remembers what it heard in which order."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

Failures = Sequence[tuple[str, int]]

# Longer than an attempt may take in the soak.
HANG_S: Final = 2.5

# Ways to fail, and how often each of them among the failures.
FAILURES: Final[Failures] = (
    ("refused", 40),
    ("behind", 25),
    ("silent", 20),  # has heard it, and ends the connection without an answer
    ("closed", 10),  # has not heard it
    ("hung", 5),
)


@dataclass
class Heard:
    """What came to one channel of one group.

    Parameters
    ----------
    bodies : mapping of str to bytes
        By id.
    firing : mapping of str to int
        Incidents by their address that are believed to be going on, and the number of the message
        that last said so.
    highest : int
        The highest number so far.
    """

    bodies: dict[str, bytes] = field(default_factory=dict)
    firing: dict[str, int] = field(default_factory=dict)
    highest: int = -1


class Receiver:
    """An HTTP server whose paths are channels.

    Parameters
    ----------
    failing : float
        Share of the requests that fail.
    seed : int
    failures : sequence of pair of str and int
        See `FAILURES`; besides those there is ``unheard``: the answer is good, and the message is
        thrown away.
    """

    def __init__(self, failing: float, seed: int, failures: Failures = FAILURES) -> None:
        self.failing = failing
        self.failures = failures
        self.heard: dict[tuple[str, str], Heard] = {}
        self.acknowledged: set[str] = set()
        self.requests = self.failed = self.repeated = self.out_of_order = self.changed = 0
        self._random = random.Random(seed)  # noqa: S311 - a choice of failures
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(self, body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Say nothing: workers are killed in the middle of their requests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, channel: str) -> str:
        """Return the address of a channel."""
        return f"http://127.0.0.1:{self._server.server_port}/{channel}"

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Fail or hear a request."""
        with self._lock:
            self.requests += 1
            way = self._way()
            self.failed += way != "taken"
        if way == "unheard":
            _reply(handler, 200, {})
            return
        if way == "closed":
            handler.close_connection = True
            return
        if way in ("refused", "behind"):
            _reply(handler, 500 if way == "refused" else 429, {"Retry-After": "1"})
            return
        with self._lock:
            self._hear(handler.path, handler.headers, body, acknowledged=way == "taken")
        if way == "taken":
            _reply(handler, 200, {})
            return
        if way == "hung":
            time.sleep(HANG_S)
        handler.close_connection = True

    def _way(self) -> str:
        if self._random.random() >= self.failing:
            return "taken"
        ways = [way for way, _ in self.failures]
        return self._random.choices(ways, [weight for _, weight in self.failures])[0]

    def _hear(self, channel: str, headers: Any, body: bytes, *, acknowledged: bool) -> None:  # noqa: ANN401 - of the standard library
        document = json.loads(body)
        heard = self.heard.setdefault((channel, document["groupLabels"]["job"]), Heard())
        id_, number = headers["webhook-id"], int(headers["paceline-sequence"])
        if acknowledged:
            self.acknowledged.add(id_)
        if id_ in heard.bodies:
            self.repeated += 1
            self.changed += heard.bodies[id_] != body
        elif number <= heard.highest:
            self.out_of_order += 1
        if number < heard.highest:
            # An old one once more, after a newer: out of order too, same id or not.
            self.out_of_order += id_ in heard.bodies
            return
        heard.bodies[id_] = body
        heard.highest = number
        for alert in document["alerts"]:
            incident = alert["annotations"]["incident"].rpartition("/")[2]
            if alert["status"] == "firing":
                heard.firing[incident] = number
            else:
                heard.firing.pop(incident, None)


def _reply(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
    try:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
    except OSError:
        # A worker that was killed does not wait for its answer.
        handler.close_connection = True
