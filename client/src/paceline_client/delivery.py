"""Send one body over HTTP until the server has it, or says that it never will."""

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
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

from paceline_client.runs import Run
from paceline_client.version import VERSION

_BODY_TYPE: Final = "application/x-ndjson"
_TOO_EARLY_OR_BUSY: Final = frozenset({408, 425, 429})
# What the server says of this very body; anything else may be set right without it.
_REFUSES_THE_BODY: Final = frozenset({400, 409, 413, 415, 422})
_NO_SUCH_ROUTE: Final = frozenset({404, 405})
_SERVER_ERROR: Final = 500
_MAX_ANSWER_BYTES: Final = 1 << 20


class Fate(enum.Enum):
    """What may become of a body that did not arrive."""

    AGAIN = "again"  # the server is away or busy: the same may work in a while
    LATER = "later"  # a wrong address or token: it may work once that is corrected
    NEVER = "never"  # the server will refuse this body whenever it comes


# Of its own: a draw from `random` itself would change what the training draws from it. From the
# system, so that forked ranks do not draw alike.
_DRAWS: Final = random.SystemRandom()


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
    ending : threading.Event
        Once it is set, what has failed is not tried again.
    """

    give_up_after_s: float = 900.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    timeout_s: float = 60.0
    ending: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt, counted from 1."""
        longest = min(self.first_wait_s * 2.0 ** min(attempt - 1, 32), self.longest_wait_s)
        return longest * _DRAWS.uniform(0.5, 1.0)


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
    attempt : int or Run
        Counts the starts of the job from 1; or the run, whose number the server tells.
    """

    session: int
    producer: str
    attempt: int | Run = 1


class DeliveryError(Exception):
    """The body did not arrive; the sentence says why.

    Parameters
    ----------
    message : str
    fate : Fate
        What may become of it.
    status : int or None
        HTTP status, where there was an answer.
    wait_s : float or None
        Seconds that the server asked to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        fate: Fate,
        status: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.fate = fate
        self.status = status
        self.wait_s = wait_s

    @property
    def permanent(self) -> bool:
        """Whether the same request would fail again now."""
        return self.fate is not Fate.AGAIN


def job_url(server: str, job: str) -> str:
    """Return the address of a job.

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
    return f"{server.rstrip('/')}/api/v1/jobs/{quote(job, safe='')}"


def session_url(server: str, job: str) -> str:
    """Return the address that a job's sessions are sent to.

    Raises
    ------
    ValueError
        As `job_url`.
    """
    return f"{job_url(server, job)}/sessions"


def share_url(server: str, job: str, share: Share, attempt: int) -> str:
    """Return the address of a producer's only chunk.

    Raises
    ------
    ValueError
        If `share` names no session or no producer.
    """
    check_share(share)
    producer = quote(share.producer, safe="")
    return (
        f"{job_url(server, job)}/attempts/{attempt}/sessions/{share.session}/chunks/{producer}/0"
        "?final=true"
    )


def check_share(share: Share) -> None:
    """Refuse a share that no server would take.

    Raises
    ------
    ValueError
    """
    attempt = 1 if isinstance(share.attempt, Run) else share.attempt
    if min(share.session, attempt) < 1 or not share.producer or "/" in share.producer:
        message = (
            "sessions and attempts count from 1, and producers have names without slashes, "
            f"unlike {share!r}"
        )
        raise ValueError(message)


def attempt_number(server: str, job: str, run: Run, policy: RetryPolicy) -> int:
    """Return the number of a run among the job's attempts; the server counts each run once.

    Raises
    ------
    DeliveryError
        If the server refused, or the time is up.
    """
    url = f"{job_url(server, job)}/attempts"
    try:
        answer = _persist(
            url, json.dumps(run.document()).encode(), policy, "POST", "application/json"
        )[0]
    except DeliveryError as error:
        if error.status in _NO_SUCH_ROUTE:
            # A server of before this route: restarts of one run are told apart, runs are not.
            return run.restart + 1
        raise
    number = answer.get("attempt")
    if not isinstance(number, int) or number < 1:
        raise _not_paceline(url)
    return number


def deliver(url: str, body: bytes, policy: RetryPolicy, method: str = "POST") -> Delivery:
    """Send the body, again while that may help. The server receives equal bytes once.

    Raises
    ------
    DeliveryError
        If the server refused the body, or the time is up.
    """
    answer, attempts = _persist(url, body, policy, method, _BODY_TYPE)
    if not isinstance(answer.get("session"), str):
        raise _not_paceline(url)
    return Delivery(
        session=answer["session"],
        url=urljoin(url, str(answer.get("url", ""))),
        attempts=attempts,
    )


def _persist(
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
    """A token goes to the address that was given, and to no other."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _send(
    url: str, body: bytes, timeout_s: float, method: str, content_type: str
) -> dict[str, Any]:
    headers = {
        "Content-Type": content_type,
        "Accept": "application/json",
        "User-Agent": f"paceline-client/{VERSION}",
    }
    token = os.environ.get("PACELINE_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token.strip()}"
    request = urllib.request.Request(  # noqa: S310 - job_url lets only http and https pass
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
        # Such as a token with a line break in it.
        message = f"{url} cannot be asked: {error}"
        raise DeliveryError(message, fate=Fate.LATER) from error


def _not_paceline(url: str) -> DeliveryError:
    message = f"{url} answered, but not as Paceline does; is the address right?"
    return DeliveryError(message, fate=Fate.LATER)


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
        fate=_fate(error.code),
        status=error.code,
        wait_s=_seconds(error.headers.get("Retry-After")),
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


def _seconds(header: str | None) -> float | None:
    """Read Retry-After; its other form, a date, is left to the own waits."""
    return float(header) if header is not None and header.isdecimal() else None
