from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from paceline_client.tensor.plan import Method, Offer, Plan, RankShare, plan_document
from paceline_client.tensor.service import Acknowledgement, Peer, Service
from tests.support.waiting import wait_for

PLAN = Plan(3, Method.ZERO, 16, 2, (RankShare(1, 4),))
RENEWED = {"plan_version": 3, "expires_step": 90, "apply": True}


class Scripted:
    """Answers timings in turn; closes the connection for None."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.plan: dict[str, Any] = plan_document(Offer(PLAN, 50), 1)
        self.requests: list[tuple[str, str, Any]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                scripted.requests.append((self.command, self.path, body))
                content: bytes | None = b"{}"
                if self.path.endswith("/timings"):
                    content = scripted.answers.pop(0) if scripted.answers else content
                elif "/plan?" in self.path:
                    content = json.dumps(scripted.plan).encode()
                if content is None:
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _answer  # noqa: N815 - names of the library

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def paths(self) -> list[str]:
        return [path.rsplit("/tp/0-2/", 1)[-1] for _, path, _ in self.requests]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    scripted = Scripted()
    thread = threading.Thread(target=scripted.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield scripted
    scripted.server.shutdown()
    scripted.server.server_close()
    thread.join()


@pytest.fixture
def service(scripted: Scripted) -> Iterator[Service]:
    peer = Peer(f"http://127.0.0.1:{scripted.server.server_port}/", "llama/70b", "0-2", 1)
    service = Service(peer, 2, longest_wait_s=0.01)
    yield service
    service.close()


def test_a_plan_is_fetched_once_and_then_renewed(scripted: Scripted, service: Service) -> None:
    scripted.answers = [json.dumps(RENEWED).encode()] * 2
    service.report({"step": 1})
    assert wait_for(service.offer, "plan") is not None
    service.report({"step": 2})
    wait_for(lambda: len(scripted.requests) == 3, "second report")
    wait_for(lambda: service.offer() == Offer(PLAN, 90), "renewal")
    assert scripted.paths() == ["timings", "plan?attempt=1&after=0&wait_s=0", "timings"]
    assert scripted.requests[0][1].startswith("/api/v1/jobs/llama%2F70b/tp/0-2/")


@pytest.mark.parametrize("answer", [None, b"not JSON", b"[]", b'{"plan_version": "3"}'])
def test_answers_that_are_none_leave_the_thread_at_work(
    scripted: Scripted, service: Service, answer: bytes | None
) -> None:
    scripted.answers = [answer, json.dumps(RENEWED).encode()]
    service.report({"step": 1})
    wait_for(lambda: len(scripted.requests) == 1, "first report")
    service.report({"step": 2})
    assert wait_for(service.offer, "plan") == Offer(PLAN, 90)


def test_a_plan_that_cannot_be_read_is_refused_and_not_asked_for_again(
    scripted: Scripted, service: Service
) -> None:
    scripted.plan["world_size"] = 8
    scripted.answers = [json.dumps(RENEWED).encode()] * 2
    service.report({"step": 1})
    wait_for(lambda: len(scripted.requests) == 3, "refusal")
    service.report({"step": 2})
    wait_for(lambda: len(scripted.requests) == 4, "second report")
    assert scripted.paths()[2:] == ["plan/3/ack", "timings"]
    assert scripted.requests[2][2] == {
        "attempt": 1,
        "step": 0,
        "ranks": [0, 1],
        "applied": False,
        "reason": "world_size: must be 2",
    }
    assert service.offer() is None


def test_acknowledgements_are_sent_with_a_short_reason(
    scripted: Scripted, service: Service
) -> None:
    service.acknowledge(Acknowledgement(3, 12, applied=False, reason="x" * 300))
    wait_for(lambda: scripted.requests, "acknowledgement")
    assert len(scripted.requests[0][2]["reason"]) == 200
