"""Send one body over HTTP until the server accepts or refuses it."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urljoin

from paceline_client.environment import Run
from paceline_client.exchange import (
    FIRST_REFUSAL,
    DeliveryError,
    Document,
    Fate,
    exchange,
    server_address,
)

_BODY_TYPE: Final = "application/x-ndjson"
_NO_SUCH_ROUTE: Final = frozenset({404, 405})
# Ranges of the fields of answers.
_MOST_ATTEMPTS: Final = (1 << 31) - 1
_MOST_STATUS: Final = 599
_LONGEST_NAME: Final = 255
_LONGEST_ADDRESS: Final = 2048
_LONGEST_REASON: Final = 500
# Bodies that are sent more slowly are given up: an attempt has a second more for this many bytes.
_LEAST_BYTES_A_SECOND: Final = 1 << 17

# The system's generator, so that forked ranks draw different numbers; the global generator's draws
# belong to the training.
RANDOM: Final = random.SystemRandom()


@dataclass(frozen=True)
class RetryPolicy:
    """How long delivery is retried: waits between attempts double, each shortened at random."""

    give_up_after_s: float = 900.0  # for the whole delivery
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    timeout_s: float = 60.0  # of one attempt; a large body has more
    # Once this event is set, failed attempts are not repeated.
    ending: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    until_s: float = math.inf  # by `time.monotonic`: the end of all attempts

    def wait_s(self, attempt: int) -> float:
        """Return the wait in seconds after a failed attempt, whose number is counted from 1."""
        longest = min(self.first_wait_s * 2.0 ** min(attempt - 1, 32), self.longest_wait_s)
        return longest * RANDOM.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Delivery:
    """The server's answer: the id of the session, and the address of its page or resource."""

    session: str
    url: str
    attempts: int


@dataclass(frozen=True)
class Share:
    """The identity of a share: one producer's part of a session."""

    session: int  # number of the session in the attempt, from 1; the same for all producers
    producer: str  # unique name, such as ``rank-3``
    attempt: int | Run = 1  # number of the job's start, from 1, or the run to be numbered


@dataclass(frozen=True)
class Chunk:
    """The identity of a chunk: a part of a share."""

    number: int = 0  # counts from 0
    final: bool = True  # the producer's last one


def job_url(server: str, job: str) -> str:
    """Return the address of a job.

    Raises `ValueError` if `server` is not an http or https address or `job` is empty
    or has a slash.
    """
    base = server_address(server)
    if not job:
        message = "the job has no name"
        raise ValueError(message)
    if "/" in job:
        message = f"a job's name has no slash, which would be a folder in an address: {job!r}"
        raise ValueError(message)
    return f"{base}/api/v1/jobs/{quote(job, safe='')}"


def session_url(server: str, job: str) -> str:
    """Return the address for a job's sessions; raises as `job_url` does."""
    return f"{job_url(server, job)}/sessions"


def chunk_url(server: str, job: str, share: Share, attempt: int, chunk: Chunk) -> str:
    """Return the address of a chunk of a share; raises as `job_url` and `check_share` do."""
    check_share(share)
    producer = quote(share.producer, safe="")
    return (
        f"{job_url(server, job)}/attempts/{attempt}/sessions/{share.session}/chunks/{producer}/"
        f"{chunk.number}{'?final=true' if chunk.final else ''}"
    )


def batch_url(server: str, job: str, attempt: int, session: int) -> str:
    """Return the address that accepts several chunks of a session; raises as `job_url` does."""
    return f"{job_url(server, job)}/attempts/{attempt}/sessions/{session}/chunks"


def check_share(share: Share) -> None:
    """Raise `ValueError` for a share that no server accepts."""
    attempt = 1 if isinstance(share.attempt, Run) else share.attempt
    if min(share.session, attempt) < 1 or not share.producer or "/" in share.producer:
        message = (
            "sessions and attempts are numbered from 1, and names of producers have no slashes: "
            f"{share!r}"
        )
        raise ValueError(message)


def attempt_number(server: str, job: str, run: Run, policy: RetryPolicy) -> int:
    """Return the number of a run among the job's attempts; the server counts each run once.

    Raises `DeliveryError` if the server refuses the request or does not answer in time.
    """
    url = f"{job_url(server, job)}/attempts"
    try:
        answer = _send_repeatedly(
            url, json.dumps(run.document()).encode(), policy, "POST", "application/json"
        )[0]
    except DeliveryError as error:
        if error.status in _NO_SUCH_ROUTE:
            # An older server has no such route; without it, the number distinguishes only the
            # restarts of a run.
            return run.restart + 1
        raise
    return answer.integer("attempt", 1, _MOST_ATTEMPTS)


def finish_job(server: str, job: str, timeout_s: float) -> None:
    """Report the end of a job in one attempt; raises `DeliveryError` if the attempt fails."""
    exchange("POST", f"{job_url(server, job)}/finish", b"", "application/json", timeout_s)


def send_document(
    server: str, path: str, document: Mapping[str, object], policy: RetryPolicy
) -> Document:
    """Send a document to a path of the server, and return the answer.

    Raises `DeliveryError` if the server refuses it or does not answer in time, and `ValueError` if
    `server` is not an http or https address.
    """
    body = json.dumps(document).encode()
    url = f"{server_address(server)}{path}"
    return _send_repeatedly(url, body, policy, "POST", "application/json")[0]


def deliver(url: str, body: bytes, policy: RetryPolicy, method: str = "POST") -> Delivery:
    """Send the body, repeatedly if necessary; the server stores equal bytes once.

    Raises `DeliveryError` if the server refuses the body or does not answer in time.
    """
    answer, attempts = _send_repeatedly(url, body, policy, method, _BODY_TYPE)
    session = answer.text("session", _LONGEST_NAME)
    path = answer.text("url", _LONGEST_ADDRESS) if answer.has("url") else ""
    try:
        page = urljoin(url, path)
    except ValueError:
        # The server has the body, but names no address.
        page = url
    return Delivery(session, page, attempts)


def deliver_batch(
    url: str, chunks: Sequence[tuple[str, Chunk, bytes]], policy: RetryPolicy
) -> list[DeliveryError | None]:
    """Send chunks of several producers in one body; return the error of each refused chunk.

    Raises `DeliveryError` if the server refuses the whole batch or does not answer in time.
    """
    index = [
        {"producer": producer, "n": chunk.number, "final": chunk.final, "bytes": len(body)}
        for producer, chunk, body in chunks
    ]
    content = b"".join(
        [json.dumps({"chunks": index}).encode(), b"\n", *(body for _, _, body in chunks)]
    )
    answer, _ = _send_repeatedly(url, content, policy, "POST", "application/octet-stream")
    outcomes = answer.documents("chunks", least=len(chunks), most=len(chunks))
    errors: list[DeliveryError | None] = []
    for outcome in outcomes:
        status = outcome.integer("status", 200, _MOST_STATUS)
        error = None
        if status >= FIRST_REFUSAL:
            code, detail = (
                outcome.text(name, _LONGEST_REASON) if outcome.has(name) else ""
                for name in ("code", "detail")
            )
            error = DeliveryError(
                f"{url} answered {status} [{code}]: {detail}", fate=Fate.of(status), status=status
            )
        errors.append(error)
    return errors


def _send_repeatedly(
    url: str, body: bytes, policy: RetryPolicy, method: str, content_type: str
) -> tuple[Document, int]:
    give_up_at = min(time.monotonic() + policy.give_up_after_s, policy.until_s)
    attempt = 0
    while True:
        attempt += 1
        timeout_s = policy.timeout_s + len(body) / _LEAST_BYTES_A_SECOND
        timeout_s = min(timeout_s, policy.until_s - time.monotonic())
        try:
            return exchange(method, url, body, content_type, timeout_s), attempt
        except DeliveryError as error:
            wait_s = max(policy.wait_s(attempt), error.wait_s or 0.0)
            if error.permanent or time.monotonic() + wait_s > give_up_at:
                raise
            if policy.ending.wait(wait_s):
                raise
