"""Send one body over HTTP until the server has it, or says that it never will."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

_CONTENT_TYPE: Final = "application/x-ndjson"
_TOO_EARLY_OR_BUSY: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500
_MAX_ANSWER_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class RetryPolicy:
    """How long to go on: waits double from the first to the longest, each shortened at random.

    Parameters
    ----------
    give_up_after_s : float
        Seconds after which a delivery that still fails is given up.
    first_wait_s, longest_wait_s : float
        Bounds of the wait between two attempts, in seconds.
    timeout_s : float
        Seconds that one attempt may go without progress.
    """

    give_up_after_s: float = 900.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    timeout_s: float = 60.0

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt, counted from 1."""
        longest = min(self.first_wait_s * 2.0 ** min(attempt - 1, 32), self.longest_wait_s)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, protects nothing


@dataclass(frozen=True)
class Delivery:
    """What the server answered: the session's id, the address of its page or resource."""

    session: str
    url: str
    attempts: int


@dataclass(frozen=True)
class Share:
    """What one producer sends of a session that all of them name alike.

    Parameters
    ----------
    session : int
        Counts the sessions of the attempt from 1.
    producer : str
        Who sends it, unlike all others: ``rank-3``.
    attempt : int
        Counts the starts of the job from 1.
    """

    session: int
    producer: str
    attempt: int = 1


class DeliveryError(Exception):
    """The body did not arrive; the sentence says why.

    Parameters
    ----------
    message : str
    permanent : bool
        Whether the same body would be refused again.
    wait_s : float or None
        Seconds that the server asked to wait.
    """

    def __init__(self, message: str, *, permanent: bool, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.wait_s = wait_s


def session_url(server: str, job: str) -> str:
    """Return the address that a job's sessions are sent to.

    Raises
    ------
    ValueError
        If `server` is no http or https address, or `job` is empty.
    """
    parts = urlsplit(server)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        message = f"the server's address starts with http:// or https://, unlike {server!r}"
        raise ValueError(message)
    if not job:
        message = "the job needs a name"
        raise ValueError(message)
    return f"{server.rstrip('/')}/api/v1/jobs/{quote(job, safe='')}/sessions"


def share_url(sessions_url: str, share: Share) -> str:
    """Return the address of a producer's only chunk, given that of its job's sessions.

    Raises
    ------
    ValueError
        If `share` names no session or no producer.
    """
    if min(share.session, share.attempt) < 1 or not share.producer or "/" in share.producer:
        message = (
            "sessions and attempts count from 1, and producers have names without slashes, "
            f"unlike {share!r}"
        )
        raise ValueError(message)
    job_url = sessions_url.removesuffix("/sessions")
    producer = quote(share.producer, safe="")
    return (
        f"{job_url}/attempts/{share.attempt}/sessions/{share.session}/chunks/{producer}/0"
        "?final=true"
    )


def deliver(url: str, body: bytes, policy: RetryPolicy, method: str = "POST") -> Delivery:
    """Send the body, again while that may help. The server receives equal bytes once.

    Raises
    ------
    DeliveryError
        If the server refused the body, or the time is up.
    """
    give_up_at = time.monotonic() + policy.give_up_after_s
    attempt = 0
    while True:
        attempt += 1
        try:
            return _send(url, body, policy.timeout_s, attempt, method)
        except DeliveryError as error:
            wait_s = max(policy.wait_s(attempt), error.wait_s or 0.0)
            if error.permanent or time.monotonic() + wait_s > give_up_at:
                raise
        threading.Event().wait(wait_s)


def _send(url: str, body: bytes, timeout_s: float, attempt: int, method: str) -> Delivery:
    request = urllib.request.Request(  # noqa: S310 - session_url lets only http and https pass
        url,
        data=body,
        method=method,
        headers={
            "Content-Type": _CONTENT_TYPE,
            "Accept": "application/json",
            "User-Agent": "paceline-client/0.1.0",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - as above
            answer = _document(response.read(_MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        raise _refusal(error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        message = f"{url} did not answer: {reason}"
        raise DeliveryError(message, permanent=False) from error
    if not isinstance(answer.get("session"), str):
        message = f"{url} answered, but not as Paceline does; is the address right?"
        raise DeliveryError(message, permanent=True)
    return Delivery(
        session=answer["session"],
        url=urljoin(url, str(answer.get("url", ""))),
        attempts=attempt,
    )


def _refusal(error: urllib.error.HTTPError) -> DeliveryError:
    with error:
        try:
            problem = _document(error.read(_MAX_ANSWER_BYTES))
        except (OSError, http.client.HTTPException):
            problem = {}
    detail = problem.get("detail") or problem.get("title") or error.reason
    code = f" [{problem['code']}]" if "code" in problem else ""
    return DeliveryError(
        f"{error.url} answered {error.code}{code}: {detail}",
        permanent=error.code < _SERVER_ERROR and error.code not in _TOO_EARLY_OR_BUSY,
        wait_s=_seconds(error.headers.get("Retry-After")),
    )


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(header: str | None) -> float | None:
    """Read Retry-After; its other form, a date, is left to the own waits."""
    return float(header) if header is not None and header.isdecimal() else None
