"""Send chunks of shares to the server: new ones, and those that wait in the spool."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from paceline_client.delivery import (
    Chunk,
    Delivery,
    DeliveryError,
    Fate,
    RetryPolicy,
    Share,
    attempt_number,
    chunk_url,
    deliver,
)
from paceline_client.runs import Run

if TYPE_CHECKING:
    from paceline_client.spool import Address, Spool

_log = logging.getLogger("paceline_client")

# For what is in the spool: a server that does not answer at once is unavailable.
ONCE: Final = RetryPolicy(give_up_after_s=0.0, timeout_s=60.0)


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


@dataclass(frozen=True)
class Sent:
    """How many bodies in the spool were sent and still wait; and of these, last chunks."""

    sent: int = 0
    left: int = 0
    sent_shares: int = 0
    left_shares: int = 0


def send_chunk(  # noqa: PLR0913, PLR0917 - an address, a body and how long to try
    server: str, job: str, share: Share, chunk: Chunk, body: bytes, policy: RetryPolicy
) -> Delivery:
    """Send a chunk of a producer's share; raises `DeliveryError` or `ValueError`."""
    attempt = ATTEMPTS.number(server, job, share.attempt, policy)
    return deliver(chunk_url(server, job, share, attempt, chunk), body, policy, "PUT")


def send_waiting(spool: Spool, server: str, *, instead_of: str | None = None) -> Sent:
    """Send the bodies in the spool for a server, until the server fails to take one.

    Bodies for other servers stay, so that no other server receives the token. `instead_of` is the
    address that the bodies were recorded for, if it is another name of this server.
    """
    sent: list[bool] = []
    left: list[bool] = []
    away = False
    for path in spool.waiting():
        with spool.claimed(path) as claimed:
            if claimed is None:
                continue
            address, body = claimed
            if address.server != (instead_of or server):
                continue
            if away:
                left.append(address.final)
                continue
            chunk = Chunk(address.number, address.final)
            try:
                send_chunk(server, address.job, share_of(address), chunk, body, ONCE)
            except (DeliveryError, ValueError) as error:
                if isinstance(error, DeliveryError) and error.fate is not Fate.NEVER:
                    away = True
                    left.append(address.final)
                    continue
                _log.warning("%s of session %d: %s", address.producer, address.session, error)
            else:
                sent.append(address.final)
            spool.remove(path)
    return Sent(len(sent), len(left), sum(sent), sum(left))


def share_of(address: Address) -> Share:
    """Return the share that an address in the spool belongs to."""
    attempt = Run(address.run_id, address.restart) if address.attempt is None else address.attempt
    return Share(address.session, address.producer, attempt)
