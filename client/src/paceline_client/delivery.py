"""Send one body over HTTP until the server accepts or refuses it."""

from __future__ import annotations

import enum
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

from paceline_client.environment import Run
from paceline_client.version import VERSION

_BODY_TYPE: Final = "application/x-ndjson"
_TOO_EARLY_OR_BUSY: Final = frozenset({408, 425, 429})
# HTTP statuses with which the server refuses this body for good. After other errors the same body
# may be accepted, for example once the token is corrected.
_REFUSES_THE_BODY: Final = frozenset({400, 409, 413, 415, 422})
_NO_SUCH_ROUTE: Final = frozenset({404, 405})
_FIRST_REFUSAL: Final = 400
_SERVER_ERROR: Final = 500
_MAX_ANSWER_BYTES: Final = 1 << 20


class Fate(enum.Enum):
    """Whether a body that was not delivered is sent again."""

    AGAIN = "again"  # the server is unavailable or busy: try again after a while
    LATER = "later"  # wrong address or token: try again after it is corrected
    NEVER = "never"  # the server refuses this body


# The system's generator, so that forked ranks draw different numbers; the global generator's draws
# belong to the training.
RANDOM: Final = random.SystemRandom()


@dataclass(frozen=True)
class RetryPolicy:
    """How long delivery is retried: waits between attempts double, each shortened at random."""

    give_up_after_s: float = 900.0  # for the whole delivery
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    timeout_s: float = 60.0  # of one attempt without progress
    # Once this event is set, failed attempts are not repeated.
    ending: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

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


class DeliveryError(Exception):
    """The body was not delivered; the message gives the reason."""

    def __init__(
        self, message: str, *, fate: Fate, status: int | None = None, wait_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.fate = fate
        self.status = status  # HTTP status; None without an answer
        self.wait_s = wait_s  # the wait that the server asked for

    @property
    def permanent(self) -> bool:
        """Whether a repetition of the request would fail as well."""
        return self.fate is not Fate.AGAIN


def job_url(server: str, job: str) -> str:
    """Return the address of a job.

    Raises `ValueError` if `server` is not an http or https address or `job` is empty
    or has a slash.
    """
    base = _base(server)
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
    number = answer.get("attempt")
    if not isinstance(number, int) or number < 1:
        raise not_paceline(url)
    return number


def finish_job(server: str, job: str, timeout_s: float) -> None:
    """Report the end of a job in one attempt; raises `DeliveryError` if the attempt fails."""
    _send(f"{job_url(server, job)}/finish", b"", timeout_s, "POST", "application/json")


def get_document(url: str, timeout_s: float) -> dict[str, Any]:
    """Return the JSON document at an address of the server; raises `DeliveryError`."""
    return _send(url, None, timeout_s, "GET", None)


def send_pulse(url: str, body: bytes, timeout_s: float) -> dict[str, Any]:
    """Send a pulse in one attempt, and return the answer; raises `DeliveryError` if it fails."""
    answer = _send(url, body, timeout_s, "POST", "application/json")
    if "pulse_s" not in answer:
        raise not_paceline(url)
    return answer


def send_document(
    server: str, path: str, document: dict[str, Any], policy: RetryPolicy
) -> dict[str, Any]:
    """Send a document to a path of the server, and return the answer.

    Raises `DeliveryError` if the server refuses it or does not answer in time, and `ValueError` if
    `server` is not an http or https address.
    """
    body = json.dumps(document).encode()
    return _send_repeatedly(f"{_base(server)}{path}", body, policy, "POST", "application/json")[0]


def deliver(url: str, body: bytes, policy: RetryPolicy, method: str = "POST") -> Delivery:
    """Send the body, repeatedly if necessary; the server stores equal bytes once.

    Raises `DeliveryError` if the server refuses the body or does not answer in time.
    """
    answer, attempts = _send_repeatedly(url, body, policy, method, _BODY_TYPE)
    if not isinstance(answer.get("session"), str):
        raise not_paceline(url)
    return Delivery(answer["session"], urljoin(url, str(answer.get("url", ""))), attempts)


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
    outcomes = answer.get("chunks")
    if not isinstance(outcomes, list) or len(outcomes) != len(chunks):
        raise not_paceline(url)
    errors: list[DeliveryError | None] = []
    for outcome in outcomes:
        status = int(outcome["status"])
        error = None
        if status >= _FIRST_REFUSAL:
            reason = f"[{outcome.get('code')}]: {outcome.get('detail')}"
            error = DeliveryError(
                f"{url} answered {status} {reason}", fate=_fate(status), status=status
            )
        errors.append(error)
    return errors


def _base(server: str) -> str:
    parts = urlsplit(server)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        message = f"the server's address must start with http:// or https://, not {server!r}"
        raise ValueError(message)
    return server.rstrip("/")


def _send_repeatedly(
    url: str, body: bytes, policy: RetryPolicy, method: str, content_type: str
) -> tuple[dict[str, Any], int]:
    give_up_at = time.monotonic() + policy.give_up_after_s
    attempt = 0
    while True:
        attempt += 1
        try:
            return _send(url, body, policy.timeout_s, method, content_type), attempt
        except DeliveryError as error:
            wait_s = max(policy.wait_s(attempt), error.wait_s or 0.0)
            if error.permanent or time.monotonic() + wait_s > give_up_at:
                raise
            if policy.ending.wait(wait_s):
                raise


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that only the given address receives the token."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _send(
    url: str, body: bytes | None, timeout_s: float, method: str, content_type: str | None
) -> dict[str, Any]:
    headers = {
        **({} if content_type is None else {"Content-Type": content_type}),
        "Accept": "application/json",
        "User-Agent": f"paceline-client/{VERSION}",
    }
    token = os.environ.get("PACELINE_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token.strip()}"
    request = urllib.request.Request(  # noqa: S310 - job_url allows http and https only
        url, data=body, method=method, headers=headers
    )
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            return _document(response.read(_MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise _refusal(error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        message = f"{url} did not answer: {reason}"
        raise DeliveryError(message, fate=Fate.AGAIN) from error
    except ValueError as error:
        # For example, the token contains a line break.
        message = f"cannot send a request to {url}: {error}"
        raise DeliveryError(message, fate=Fate.LATER) from error


def not_paceline(url: str) -> DeliveryError:
    """Return the error for an answer that is not one of Paceline's server."""
    message = f"the answer of {url} is not one of Paceline; check the address"
    return DeliveryError(message, fate=Fate.LATER)


def _refusal(error: urllib.error.HTTPError) -> DeliveryError:
    with error:
        try:
            problem = _document(error.read(_MAX_ANSWER_BYTES))
        except (OSError, http.client.HTTPException):
            problem = {}
    detail = problem.get("detail") or problem.get("title") or error.reason
    code = f" [{problem['code']}]" if "code" in problem else ""
    retry_after = error.headers.get("Retry-After", "")
    return DeliveryError(
        f"{error.url} answered {error.code}{code}: {detail}",
        fate=_fate(error.code),
        status=error.code,
        # None if the header contains a date
        wait_s=float(retry_after) if retry_after.isdecimal() else None,
    )


def _fate(status: int) -> Fate:
    if status >= _SERVER_ERROR or status in _TOO_EARLY_OR_BUSY:
        return Fate.AGAIN
    return Fate.NEVER if status in _REFUSES_THE_BODY else Fate.LATER


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
