"""Send shares to the server: a new one, and those that wait in the spool."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from paceline_client.delivery import (
    Delivery,
    DeliveryError,
    Fate,
    RetryPolicy,
    Share,
    attempt_number,
    deliver,
    share_url,
)
from paceline_client.runs import Run

if TYPE_CHECKING:
    from paceline_client.spool import Address, Spool

_log = logging.getLogger("paceline_client")

# For shares in the spool: a server that does not answer at once is unavailable.
_ONCE: Final = RetryPolicy(give_up_after_s=0.0, timeout_s=60.0)


class Attempts:
    """Attempt numbers of runs, as the server has assigned them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, Run], int] = {}
        self._lock = threading.Lock()

    def number(self, server: str, job: str, attempt: int | Run, policy: RetryPolicy) -> int:
        """Return the number of an attempt; raises `DeliveryError`."""
        if not isinstance(attempt, Run):
            return attempt
        key = (server, job, attempt)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = attempt_number(server, job, attempt, policy)
            with self._lock:
                self._known[key] = known
        return known


ATTEMPTS: Final = Attempts()


def send_share(server: str, job: str, share: Share, body: bytes, policy: RetryPolicy) -> Delivery:
    """Send a producer's share; raises `DeliveryError` or `ValueError`."""
    attempt = ATTEMPTS.number(server, job, share.attempt, policy)
    return deliver(share_url(server, job, share, attempt), body, policy, "PUT")


def send_waiting(spool: Spool, server: str, *, instead_of: str | None = None) -> tuple[int, int]:
    """Send the shares in the spool for a server, until the server fails to take one.

    Shares for other servers stay, so that no other server receives the token. `instead_of` is the
    address that the shares were recorded for, if it is another name of this server. Returns the
    numbers of shares that were sent and that still wait.
    """
    sent = left = 0
    away = False
    for path in spool.waiting():
        with spool.claimed(path) as claimed:
            if claimed is None:
                continue
            address, body = claimed
            if address.server != (instead_of or server):
                continue
            if away:
                left += 1
                continue
            try:
                send_share(server, address.job, share_of(address), body, _ONCE)
            except (DeliveryError, ValueError) as error:
                if isinstance(error, DeliveryError) and error.fate is not Fate.NEVER:
                    away = True
                    left += 1
                    continue
                _log.warning("%s of session %d: %s", address.producer, address.session, error)
            else:
                sent += 1
            spool.remove(path)
    return sent, left


def share_of(address: Address) -> Share:
    """Return the share that an address in the spool belongs to."""
    attempt = Run(address.run_id, address.restart) if address.attempt is None else address.attempt
    return Share(address.session, address.producer, attempt)
