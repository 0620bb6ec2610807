from __future__ import annotations

import json
import random
import socket
from typing import TYPE_CHECKING

import pytest

from paceline_client.delivery import RetryPolicy, attempt_number, deliver, session_url
from paceline_client.environment import Run
from paceline_client.exchange import DeliveryError, Fate

from .conftest import Answer

if TYPE_CHECKING:
    from .conftest import Receiver

QUICK = RetryPolicy(give_up_after_s=10, first_wait_s=0.001, longest_wait_s=0.01, timeout_s=10)
ONCE = RetryPolicy(give_up_after_s=0, timeout_s=10)


def test_the_answer_names_the_session_and_its_absolute_address(receiver: Receiver) -> None:
    delivery = deliver(session_url(receiver.url, "llama"), b"body", QUICK)

    assert delivery.session == "01"
    assert delivery.url == f"{receiver.url}/api/v1/sessions/01"
    assert delivery.attempts == 1
    (request,) = receiver.requests
    assert request.path == "/api/v1/jobs/llama/sessions"
    assert request.body == b"body"
    assert request.headers["Content-Type"] == "application/x-ndjson"


def test_the_same_bytes_are_sent_again_after_errors_that_pass(receiver: Receiver) -> None:
    receiver.answers = [
        Answer(status=None),
        Answer(status=503, document={}),
        Answer(status=429, document={"code": "busy"}, headers={"Retry-After": "0"}),
    ]

    delivery = deliver(session_url(receiver.url, "llama"), b"body", QUICK)

    assert delivery.attempts == 4
    assert [request.body for request in receiver.requests] == [b"body"] * 4


def test_a_refusal_is_final_and_carries_the_servers_sentence_and_code(receiver: Receiver) -> None:
    receiver.answers = [
        Answer(status=422, document={"code": "trace.invalid", "detail": "rank 9 of 8"})
    ]

    with pytest.raises(DeliveryError, match=r"422 \[trace.invalid\]: rank 9 of 8") as caught:
        deliver(session_url(receiver.url, "llama"), b"body", QUICK)

    assert caught.value.permanent
    assert len(receiver.requests) == 1


def test_a_longer_wait_that_the_server_asks_for_is_heeded(receiver: Receiver) -> None:
    receiver.answers = [Answer(status=429, document={}, headers={"Retry-After": "3600"})]

    with pytest.raises(DeliveryError, match="429") as caught:
        deliver(session_url(receiver.url, "llama"), b"body", QUICK)

    assert caught.value.wait_s == 3600
    assert len(receiver.requests) == 1


def test_a_server_that_is_not_there_is_given_up_when_the_time_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(DeliveryError, match="did not answer") as caught:
        deliver(session_url(f"http://127.0.0.1:{port}", "llama"), b"body", ONCE)

    assert not caught.value.permanent


def test_another_service_behind_the_address_is_not_taken_for_paceline(receiver: Receiver) -> None:
    receiver.answers = [Answer(status=200, document=["hello"])]

    with pytest.raises(DeliveryError, match="check the address"):
        deliver(session_url(receiver.url, "llama"), b"body", QUICK)


def test_a_redirect_is_not_followed_with_the_body(receiver: Receiver) -> None:
    receiver.answers = [Answer(status=307, headers={"Location": f"{receiver.url}/elsewhere"})]

    with pytest.raises(DeliveryError, match="307"):
        deliver(session_url(receiver.url, "llama"), b"body", QUICK)

    assert len(receiver.requests) == 1


def test_a_jobs_name_is_one_segment_of_the_path() -> None:
    url = session_url("https://paceline.example/", "team a?llama-70b")

    assert url == "https://paceline.example/api/v1/jobs/team%20a%3Fllama-70b/sessions"


@pytest.mark.parametrize("server", ["", "paceline:8765", "file:///etc/hosts", "http://"])
def test_only_http_addresses_are_taken(server: str) -> None:
    with pytest.raises(ValueError, match="http://"):
        session_url(server, "llama")


def test_waits_double_up_to_the_longest() -> None:
    policy = RetryPolicy(first_wait_s=1, longest_wait_s=8)

    for attempt, longest in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (5000, 8)]:
        assert longest / 2 <= policy.wait_s(attempt) <= longest


def test_the_training_s_random_numbers_stay_the_same(receiver: Receiver) -> None:
    receiver.answers = [Answer(status=503, document={})] * 3
    random.seed(7)
    before = random.getstate()
    assert deliver(session_url(receiver.url, "llama"), b"body", QUICK).attempts == 4
    assert random.getstate() == before


def test_the_token_of_the_environment_is_shown(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", "secret\n")
    deliver(session_url(receiver.url, "llama"), b"body", QUICK)
    assert receiver.requests[0].headers["Authorization"] == "Bearer secret"
    monkeypatch.delenv("PACELINE_TOKEN")
    deliver(session_url(receiver.url, "llama"), b"body", QUICK)
    assert "Authorization" not in receiver.requests[1].headers


@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (401, Fate.LATER),
        (403, Fate.LATER),
        (404, Fate.LATER),
        (307, Fate.LATER),
        (409, Fate.NEVER),
        (413, Fate.NEVER),
        (422, Fate.NEVER),
        (429, Fate.AGAIN),
        (500, Fate.AGAIN),
        (503, Fate.AGAIN),
    ],
)
def test_the_fate_of_a_body_follows_from_the_status(
    receiver: Receiver, status: int, fate: Fate
) -> None:
    receiver.answers = [Answer(status=status, document={})]
    with pytest.raises(DeliveryError) as caught:
        deliver(session_url(receiver.url, "llama"), b"body", ONCE)
    assert (caught.value.fate, caught.value.status) == (fate, status)


def test_the_server_tells_the_number_of_an_attempt(receiver: Receiver) -> None:
    receiver.answers = [
        Answer(status=503, document={}),
        Answer(status=200, document={"attempt": 4}),
    ]
    assert attempt_number(receiver.url, "llama", Run("812", 2), QUICK) == 4
    request = receiver.requests[-1]
    assert (request.method, request.path) == ("POST", "/api/v1/jobs/llama/attempts")
    assert json.loads(request.body) == {"run_id": "812", "restart": 2}


def test_a_server_of_before_attempts_gets_the_restarts_as_attempts(receiver: Receiver) -> None:
    receiver.answers = [Answer(status=404, document={})]
    assert attempt_number(receiver.url, "llama", Run("812", 2), QUICK) == 3


def test_a_job_with_a_slash_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match=r"a job's name has no slash.*'team/llama'"):
        session_url("http://127.0.0.1:1", "team/llama")
