"""Celery's handling of a message, changed so that a lost connection to the broker is noticed."""

from __future__ import annotations

from celery.utils.log import get_logger
from celery.worker.request import Request

_log = get_logger(__name__)


class NoticingRequest(Request):
    """Raises the error of a failed acknowledgement in the consumer, which then reconnects.

    Celery's own logs it and goes on. The consumer then waits for an acknowledgement that never
    comes before it takes the next message, does not look at its connection meanwhile, and takes no
    message again: a Redis that restarts during an analysis would end the worker's usefulness
    without ending the worker.
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
