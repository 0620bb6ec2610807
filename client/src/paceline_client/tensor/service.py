"""Communication with Paceline's service about a tensor-parallel group, on a separate thread.

The training passes reports and takes plans without waiting. If reports queue up, the newest is sent
and the others are dropped.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

from paceline_client.tensor.plan import Offer, PlanError, integer_field, read_plan
from paceline_client.version import VERSION

_log = logging.getLogger("paceline_client")

_MAX_ANSWER_BYTES: Final = 1 << 20
_NO_CONTENT: Final = 204
_LONGEST_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The group's answer to an offered plan."""

    version: int
    step: int
    applied: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of the service, and the names of job and group."""

    server: str  # ``http://paceline.example:8765``
    job: str
    group: str  # name within the job: letters, digits, dots, dashes and underscores
    attempt: int  # number of the job's start; plans end with an attempt

    def __post_init__(self) -> None:
        parts = urlsplit(self.server)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ValueError(
                f"the server's address must start with http:// or https://, not {self.server!r}"
            )
        if not self.job or not self.group or self.attempt < 0:
            raise ValueError("job and group need names, and the attempt must not be negative")

    @property
    def url(self) -> str:
        """The address of the group's resource."""
        job, group = quote(self.job, safe=""), quote(self.group, safe="")
        return f"{self.server.rstrip('/')}/api/v1/jobs/{job}/tp/{group}"


class _RefusedError(ValueError):
    """The service refused a request, or gave an invalid answer."""


class Service:
    """The thread that communicates with the service about a group.

    Plans for a group of another size than `size` are refused. `timeout_s` is the time limit of a
    request, `longest_wait_s` the longest wait between two attempts while the service does not
    answer.
    """

    def __init__(
        self, peer: Peer, size: int, *, timeout_s: float = 5.0, longest_wait_s: float = 30.0
    ) -> None:
        self._peer = peer
        self._size = size
        self._timeout_s = timeout_s
        self._longest_wait_s = longest_wait_s
        self._changed = threading.Condition()
        self._report: bytes | None = None
        self._acknowledged: deque[Acknowledgement] = deque(maxlen=16)
        self._offer: Offer | None = None
        self._seen = 0
        self._closed = threading.Event()
        self.dropped = 0
        self.failures = 0
        threading.Thread(target=self._run, name="paceline-tensor", daemon=True).start()

    def report(self, document: Mapping[str, object]) -> None:
        """Queue a report of the newest times; returns at once."""
        body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        with self._changed:
            self.dropped += self._report is not None
            self._report = body
            self._changed.notify()

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Queue the group's answer to a plan; returns at once."""
        with self._changed:
            self._acknowledged.append(acknowledgement)
            self._changed.notify()

    def offer(self) -> Offer | None:
        """Return the newest offered plan, with its renewed expiry."""
        with self._changed:
            return self._offer

    def close(self) -> None:
        """End the thread after the current request."""
        self._closed.set()
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(
                    lambda: self._report or self._acknowledged or self._closed.is_set()
                )
                report, self._report = self._report, None
                acknowledged = tuple(self._acknowledged)
                self._acknowledged.clear()
            try:
                for acknowledgement in acknowledged:
                    self._send_acknowledgement(acknowledgement)
                if report is not None:
                    self._exchange(report)
                wait_s = 0.0
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._closed.is_set():
                    return
                # A warning for the first failure only, because the training is not affected.
                _log.log(
                    logging.DEBUG if wait_s else logging.WARNING,
                    "%s does not answer or refuses: %s", self._peer.url, error,
                )  # fmt: skip
                self.failures += 1
                wait_s = min(max(2 * wait_s, 0.5), self._longest_wait_s)
                self._closed.wait(wait_s)

    def _exchange(self, report: bytes) -> None:
        answer = self._request("POST", "/timings", report) or {}
        version, expires = answer.get("plan_version"), answer.get("expires_step")
        if not isinstance(version, int) or not isinstance(expires, int):
            return
        if version > self._seen:
            plan = answer.get("plan")
            if not isinstance(plan, dict):
                query = f"?attempt={self._peer.attempt}&after={self._seen}&wait_s=0"
                plan = self._request("GET", f"/plan{query}", None)
            self._take(plan)
        with self._changed:
            if self._offer is not None and self._offer.plan.version == version:
                later = max(expires, self._offer.expires_step)
                self._offer = replace(self._offer, expires_step=later)

    def _take(self, document: dict[str, Any] | None) -> None:
        if document is None:
            return
        version = integer_field(document, "version")
        self._seen = max(self._seen, version)
        try:
            offer = read_plan(document, self._peer.attempt, self._size)
        except PlanError as error:
            _log.warning("plan %d cannot be applied: %s", version, error)
            self._send_acknowledgement(
                Acknowledgement(version, 0, applied=False, reason=str(error))
            )
            return
        with self._changed:
            self._offer = offer

    def _send_acknowledgement(self, acknowledgement: Acknowledgement) -> None:
        reason = acknowledgement.reason
        document = {
            "attempt": self._peer.attempt,
            "step": acknowledgement.step,
            "ranks": list(range(self._size)),
            "applied": acknowledgement.applied,
            "reason": None if reason is None else reason[:_LONGEST_REASON],
        }
        path = f"/plan/{acknowledgement.version}/ack"
        self._request("POST", path, json.dumps(document).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> dict[str, Any] | None:
        request = urllib.request.Request(  # noqa: S310 - Peer allows http and https only
            self._peer.url + path,
            data=body,
            method=method,
            headers={
                "Content-Type": "application/json",
                "User-Agent": f"paceline-client/{VERSION}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310
                if response.status == _NO_CONTENT:
                    return None
                document = json.loads(response.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _RefusedError(f"{error.code}: {_detail(error)}") from error
        if not isinstance(document, dict):
            raise _RefusedError(f"the answer to {path} is not one of Paceline")
        return document


def _detail(error: urllib.error.HTTPError) -> str:
    """Return the detail of a problem document, or the text of the status."""
    try:
        problem = json.loads(error.read(_MAX_ANSWER_BYTES))
        return f"{problem['detail']} [{problem['code']}]"
    except (OSError, ValueError, LookupError, TypeError):
        return str(error.reason)
