"""Communication with Paceline's service about a tensor-parallel group, on a separate thread.

The training passes reports and takes plans without waiting. If reports queue up, the newest is sent
and the others are dropped.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from paceline_client.exchange import Document, exchange, server_address
from paceline_client.tensor.plan import MOST_STEP, Offer, PlanError, read_plan

_log = logging.getLogger("paceline_client")

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
        server_address(self.server)
        if not self.job or not self.group or self.attempt < 0:
            raise ValueError("job and group need names, and the attempt must not be negative")

    @property
    def url(self) -> str:
        """The address of the group's resource."""
        job, group = quote(self.job, safe=""), quote(self.group, safe="")
        return f"{self.server.rstrip('/')}/api/v1/jobs/{job}/tp/{group}"


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
            except Exception as error:  # noqa: BLE001 - a thread in the user's process
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
        answer = self._request("POST", "/timings", report)
        if not (answer.has("plan_version") and answer.has("expires_step")):
            return
        version = answer.integer("plan_version", 0, MOST_STEP)
        expires = answer.integer("expires_step", 0, MOST_STEP)
        if version > self._seen:
            if answer.has("plan"):
                plan = answer.document("plan")
            else:
                query = f"?attempt={self._peer.attempt}&after={self._seen}&wait_s=0"
                plan = self._request("GET", f"/plan{query}", None)
            self._take(plan)
        with self._changed:
            if self._offer is not None and self._offer.plan.version == version:
                later = max(expires, self._offer.expires_step)
                self._offer = replace(self._offer, expires_step=later)

    def _take(self, document: Document) -> None:
        if not document.fields:
            return
        version = document.integer("version", 0, MOST_STEP)
        self._seen = max(self._seen, version)
        try:
            offer = read_plan(document.fields, self._peer.attempt, self._size)
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

    def _request(self, method: str, path: str, body: bytes | None) -> Document:
        url = self._peer.url + path
        return exchange(method, url, body, "application/json", self._timeout_s)
