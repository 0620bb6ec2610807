"""Send chunks of shares to the server: new ones, and those that wait in the spool."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
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
    batch_url,
    chunk_url,
    deliver,
    deliver_batch,
)
from paceline_client.runs import Run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline_client.spool import Address, Spool

_log = logging.getLogger("paceline_client")

# For what is in the spool: a server that does not answer at once is unavailable.
ONCE: Final = RetryPolicy(give_up_after_s=0.0, timeout_s=60.0)


# Bodies of one request.
_TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 8 << 20


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


@dataclass(frozen=True)
class _Claimed:
    """A file of the spool that this process has locked."""

    path: Path
    address: Address
    body: bytes

    def chunk(self) -> Chunk:
        return Chunk(self.address.number, self.address.final)

    def session(self) -> tuple[object, ...]:
        """Return what those have in common that go together."""
        address = self.address
        return address.job, address.session, address.attempt, address.run_id, address.restart


def send_chunk(  # noqa: PLR0913, PLR0917 - an address, a body and how long to try
    server: str, job: str, share: Share, chunk: Chunk, body: bytes, policy: RetryPolicy
) -> Delivery:
    """Send a chunk of a producer's share; raises `DeliveryError` or `ValueError`."""
    attempt = ATTEMPTS.number(server, job, share.attempt, policy)
    return deliver(chunk_url(server, job, share, attempt, chunk), body, policy, "PUT")


def send_waiting(spool: Spool, server: str, *, instead_of: str | None = None) -> Sent:
    """Send the bodies in the spool for a server, until the server fails to take one.

    Those of one session go together. Bodies for other servers stay, so that no other server
    receives the token. `instead_of` is the address that the bodies were recorded for, if it is
    another name of this server.
    """
    sent: list[bool] = []
    left: list[bool] = []
    away = False
    waiting = spool.waiting()
    while waiting:
        with ExitStack() as locks:
            claimed = _claim(spool, waiting, instead_of or server, locks)
            if away or not claimed:
                left += [one.address.final for one in claimed]
                continue
            for one, error in zip(claimed, _send_together(server, claimed), strict=True):
                if isinstance(error, DeliveryError) and error.fate is not Fate.NEVER:
                    away = True
                    left.append(one.address.final)
                    continue
                if error is None:
                    sent.append(one.address.final)
                else:
                    _log.warning(
                        "%s of session %d: %s", one.address.producer, one.address.session, error
                    )
                spool.remove(one.path)
    return Sent(len(sent), len(left), sum(sent), sum(left))


def _claim(spool: Spool, waiting: list[Path], server: str, locks: ExitStack) -> list[_Claimed]:
    """Take the oldest files for a server out of `waiting`, locked: as many as go together."""
    claimed: list[_Claimed] = []
    size = 0
    while waiting and len(claimed) < _TOGETHER and size < _TOGETHER_BYTES:
        found = locks.enter_context(spool.claimed(waiting[0]))
        if found is None or found[0].server != server:
            del waiting[0]
            continue
        one = _Claimed(waiting[0], *found)
        if claimed and one.session() != claimed[0].session():
            break
        claimed.append(one)
        size += len(one.body)
        del waiting[0]
    return claimed


def _send_together(
    server: str, claimed: Sequence[_Claimed]
) -> list[DeliveryError | ValueError | None]:
    """Return of each body why it was not taken; after one that may be later, no more are sent."""
    first = claimed[0].address
    if len(claimed) > 1:
        try:
            attempt = ATTEMPTS.number(server, first.job, share_of(first).attempt, ONCE)
            url = batch_url(server, first.job, attempt, first.session)
            chunks = [(one.address.producer, one.chunk(), one.body) for one in claimed]
            return [*deliver_batch(url, chunks, ONCE)]
        except DeliveryError as error:
            if error.fate is Fate.AGAIN:
                return [error for _ in claimed]
        except ValueError:
            pass
        # An older server, or one that does not take them together: each is told for itself.
    outcomes: list[DeliveryError | ValueError | None] = []
    for one in claimed:
        outcome = _send_alone(server, one)
        outcomes.append(outcome)
        if isinstance(outcome, DeliveryError) and outcome.fate is not Fate.NEVER:
            return outcomes + [outcome] * (len(claimed) - len(outcomes))
    return outcomes


def _send_alone(server: str, one: _Claimed) -> DeliveryError | ValueError | None:
    try:
        share = share_of(one.address)
        send_chunk(server, one.address.job, share, one.chunk(), one.body, ONCE)
    except (DeliveryError, ValueError) as error:
        return error
    return None


def share_of(address: Address) -> Share:
    """Return the share that an address in the spool belongs to."""
    attempt = Run(address.run_id, address.restart) if address.attempt is None else address.attempt
    return Share(address.session, address.producer, attempt)
