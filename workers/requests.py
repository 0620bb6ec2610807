"""Celery's handling of a message, changed so that a lost connection to the broker is noticed."""

from __future__ import annotations

from celery.utils.log import get_logger
from celery.worker.request import Request

_log = get_logger(__name__)


class NoticingRequest(Request):
    """Raises the error of a failed acknowledgement in the consumer, which then reconnects.

    Celery's own class only logs the error. The consumer then waits endlessly for the
    acknowledgement before it takes the next message, and does not check its connection meanwhile:
    after a restart of Redis during an analysis, the worker would run on without taking any message.
    """

    def acknowledge(self) -> None:
        """Acknowledge the message; errors are raised."""
        if not self.acknowledged:
            self._on_ack(_log, ())  # type: ignore[attr-defined]  # not in the stubs
            self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Reject the message; errors are raised."""
        if not self.acknowledged:
            self._on_reject(_log, (), requeue)  # type: ignore[attr-defined]  # not in the stubs
            self.acknowledged = True
