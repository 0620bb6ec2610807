"""Every request of the client, answered in every broken or hostile way.

An exchange has a time limit of a tenth of a second here. No time is asserted: an endless answer
lasts as long as the client listens, so that a request without a limit for the whole exchange never
returns, and fails at `RETURNS_WITHIN_S`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
import tracemalloc
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

import paceline_client
from paceline_client import exchange as exchange_module
from paceline_client.delivery import (
    Chunk,
    RetryPolicy,
    Share,
    attempt_number,
    batch_url,
    chunk_url,
    deliver,
    deliver_batch,
    finish_job,
    job_url,
    session_url,
)
from paceline_client.environment import Run
from paceline_client.exchange import DeliveryError, exchange
from paceline_client.probe import Measured
from paceline_client.pulse.requests import PulseAnswer
from paceline_client.reporters import job_status
from paceline_client.sending import Relay
from paceline_client.spool import Address, Spool
from paceline_client.tensor.plan import MOST_STEP
from paceline_client.tensor.service import Acknowledgement, Peer, Service
from tests.support.hostile_server import KINDS, HostileServer, endless, hostile_server

TIMEOUT_S: Final = 0.1
RETURNS_WITHIN_S: Final = 120.0
MOST_BYTES: Final = 20 << 20
ONCE: Final = RetryPolicy(give_up_after_s=0.0, timeout_s=TIMEOUT_S)
SHARE: Final = Share(3, "rank-0", 1)
BODY: Final = b"body"


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with hostile_server() as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("paceline_client.reporters._TIMEOUT_S", TIMEOUT_S)


def _pulse(url: str) -> PulseAnswer:
    pulse_url = f"{job_url(url, 'job')}/attempts/1/pulse"
    return PulseAnswer.read(exchange("POST", pulse_url, BODY, "application/json", TIMEOUT_S))


def _probe(url: str) -> tuple[str, str]:
    measured = Measured("id", "2026-01-01T00:00:00Z", "host", guessed=False, torch="", devices=())
    return measured.send(url, ONCE)


def _service(url: str, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Return a service without its thread, so that its requests raise here."""
    with monkeypatch.context() as patch:
        patch.setattr(Service, "_run", lambda _: None)
        return Service(Peer(url, "job", "0-2", 1), 2, timeout_s=TIMEOUT_S)


def requests(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Any]]:
    """Return every request of the client, by the method and the path of its route."""
    service = _service(url, monkeypatch)
    bodies = [("rank-0", Chunk(0), BODY), ("rank-1", Chunk(0), BODY)]

    def timings() -> object:
        # The answer may lead to a request for the plan, and that one to a refusal.
        service._exchange(BODY)
        return service.offer()

    def plan() -> object:
        service._take(service._request("GET", "/plan?attempt=1&after=0&wait_s=0", None))
        return service.offer()

    refusal = Acknowledgement(3, 0, applied=False, reason="no")
    return {
        "POST attempts": lambda: attempt_number(url, "job", Run("run"), ONCE),
        "POST sessions": lambda: deliver(session_url(url, "job"), BODY, ONCE),
        "PUT chunk": lambda: deliver(chunk_url(url, "job", SHARE, 1, Chunk()), BODY, ONCE, "PUT"),
        "POST chunks": lambda: deliver_batch(batch_url(url, "job", 1, 3), bodies, ONCE),
        "POST pulse": lambda: _pulse(url),
        "POST finish": lambda: finish_job(url, "job", TIMEOUT_S),
        "POST probes": lambda: _probe(url),
        "GET sessions and incidents": lambda: job_status(url, "job"),
        "POST timings": timings,
        "GET plan": plan,
        "POST ack": lambda: service._send_acknowledgement(refusal),
    }


def _within_range(result: Any) -> bool:  # noqa: ANN401 - of any request
    """Return whether all numbers and texts of a result are of a reasonable size."""
    if isinstance(result, int | float):
        return bool(abs(result) <= MOST_STEP)
    if isinstance(result, str):
        return len(result) <= 3000 and result.isprintable()
    if isinstance(result, tuple | list):
        return len(result) <= 100 and all(map(_within_range, result))
    return all(map(_within_range, vars(result).values())) if hasattr(result, "__dict__") else True


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_request_ends_bounded_whatever_the_answer(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    outcomes: dict[str, Any] = {}
    calls = requests(server.url(kind), monkeypatch)

    def run() -> None:
        for name, call in calls.items():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                outcomes[name] = call()
            except DeliveryError as error:
                outcomes[name] = str(error)
            grown = tracemalloc.get_traced_memory()[1] - before
            assert grown <= MOST_BYTES, name

    faults: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", faults.append)
    thread = threading.Thread(target=run, daemon=True)
    tracemalloc.start()
    try:
        thread.start()
        thread.join(RETURNS_WITHIN_S)
    finally:
        tracemalloc.stop()

    assert not faults, faults[0].exc_value
    assert list(outcomes) == list(calls), "a request has not returned"
    assert all(map(_within_range, outcomes.values())), outcomes


def test_the_valid_answer_is_one_to_every_request(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_client.reporters._TIMEOUT_S", 60.0)
    monkeypatch.setattr(f"{__name__}.TIMEOUT_S", 60.0)
    monkeypatch.setattr(f"{__name__}.ONCE", RetryPolicy(give_up_after_s=0.0))
    for name, call in requests(server.url("valid"), monkeypatch).items():
        result = call()
        assert result is not None or name in {"POST finish", "POST ack"}, name
    assert {path.partition("?")[0].removeprefix("api/v1/") for path in server.paths} >= {
        "jobs/job/attempts",
        "jobs/job/sessions",
        "jobs/job/attempts/1/sessions/3/chunks/rank-0/0",
        "jobs/job/attempts/1/sessions/3/chunks",
        "jobs/job/attempts/1/pulse",
        "jobs/job/finish",
        "hosts/host/probes",
        "sessions",
        "incidents",
        "jobs/job/tp/0-2/timings",
        "jobs/job/tp/0-2/plan",
        "jobs/job/tp/0-2/plan/3/ack",
    }


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("record_60_million", "record.steps must be an integer from 1 to 10000"),
        ("record_20_digits", "an integer over 64 bits"),
        ("deep_lists", "over 32 levels"),
        ("many_lists", "32768 values"),
        ("escapes", "131072 marks"),
        ("repeated_keys", "a repeated key"),
        ("nan", "the number NaN"),
        ("overflow", "the number 1e999"),
        ("pulse_never", "pulse_s must be a number from 0 to 3600"),
        ("trues", "record must be an object"),
        ("endless_body", "it has over 1048576 bytes"),
        ("endless_continue", "it has over 1310720 bytes"),
        ("no_object", "it must be an object"),
    ],
)
def test_the_message_names_what_is_wrong(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    monkeypatch.setattr(f"{__name__}.TIMEOUT_S", 60.0)
    with pytest.raises(DeliveryError, match="is not one of Paceline") as caught:
        _pulse(server.url(kind))
    assert reason in str(caught.value)
    assert caught.value.permanent


def test_no_redirect_gets_the_token(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", "secret")
    server.paths.clear()
    with pytest.raises(DeliveryError, match="307"):
        exchange("GET", f"{server.url('redirect')}/first", None, None, 60.0)
    assert server.paths == {"first"}


def test_what_a_server_says_can_be_printed(server: HostileServer) -> None:
    with pytest.raises(DeliveryError) as caught:
        exchange("GET", f"{server.url('refused_at_length')}/a", None, None, 60.0)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1200


@pytest.fixture
def tls_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostileServer]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with hostile_server(context) as server:
        yield server


@pytest.mark.parametrize("kind", ["drip_body", "endless_headers", "silence", "endless_body"])
def test_the_limits_hold_by_tls(tls_server: HostileServer, kind: str) -> None:
    answer = exchange("GET", f"{tls_server.url('valid')}/a", None, None, 60.0)
    assert answer.integer("attempt", 1, 9) == 3
    with pytest.raises(DeliveryError):
        exchange("GET", f"{tls_server.url(kind)}/a", None, None, 0.3)


@contextlib.contextmanager
def dripping(head: bytes, piece: bytes) -> Iterator[int]:
    """Yield the port of a server that sends these bytes for ever, whatever it is sent."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            endless(head, piece, 0.01)(connection)

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield listener.getsockname()[1]


def test_a_handshake_of_tls_is_within_the_time_limit() -> None:
    # The head of a long ServerHello, whose rest drips.
    head = b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc"
    with dripping(head, b"\0") as port, pytest.raises(DeliveryError, match="timed out"):
        exchange("GET", f"https://127.0.0.1:{port}/a", None, None, 0.3)


def test_a_proxy_is_within_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with dripping(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n") as port:
        proxy = urllib.request.ProxyHandler({"https": f"http://127.0.0.1:{port}"})
        opener = urllib.request.build_opener(proxy, *exchange_module.HANDLERS)
        monkeypatch.setattr(exchange_module, "_OPENER", opener)
        with pytest.raises(DeliveryError, match=r"timed out|time is up"):
            exchange("GET", "https://paceline.invalid/a", None, None, 0.3)


def test_the_relay_of_a_host_ends_in_time_whatever_holds_its_requests(
    server: HostileServer, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool")
    url = server.url("drip_body")
    paths = [spool.put(Address(url, "job", 3, f"rank-{n}", attempt=1), BODY) for n in range(3)]
    relay = Relay(spool, url, others=3)
    # This request lasts for a minute and holds the relay's lock.
    relay.start()
    relay.finish(1, time.monotonic() + 0.3)
    assert spool.waiting() == paths


def test_nothing_else_in_the_package_speaks_http() -> None:
    (folder,) = paceline_client.__path__
    words = ("urllib.request", "http.client", "urlopen")
    senders = {
        path.name
        for path in Path(folder).rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert senders == {"exchange.py"}
