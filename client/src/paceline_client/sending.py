"""Sending of chunks: new chunks, and chunks in the spool."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from paceline_client.delivery import (
    Chunk,
    Delivery,
    RetryPolicy,
    Share,
    attempt_number,
    batch_url,
    chunk_url,
    deliver,
    deliver_batch,
)
from paceline_client.environment import Run
from paceline_client.exchange import DeliveryError, Fate
from paceline_client.spool import Address, Spool

_log = logging.getLogger("paceline_client")

# Policy for bodies in the spool: a server that does not answer at once counts as unavailable.
_ONCE: Final = RetryPolicy(give_up_after_s=0.0, timeout_s=60.0)


# Limits of a request with several bodies: their number, and the bytes from which none is added.
_BATCH: Final = 64
_BATCH_BYTES: Final = 8 << 20
_RELAY_EVERY_S: Final = 2.0
_RELAY_EVERY_AT_END_S: Final = 0.1


class Attempts:
    """The server's attempt numbers of runs; each is requested only once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, Run], int] = {}
        self._lock = threading.Lock()

    def number(self, server: str, job: str, attempt: int | Run, policy: RetryPolicy) -> int:
        """Return the attempt number for an address; raises `DeliveryError`."""
        if not isinstance(attempt, Run):
            return attempt
        key = (server, job, attempt)
        with self._lock:
            number = self._numbers.get(key)
        if number is None:
            number = attempt_number(server, job, attempt, policy)
            with self._lock:
                self._numbers[key] = number
        return number


ATTEMPTS: Final = Attempts()


@dataclass(frozen=True)
class Sent:
    """The counts of a pass over the spool.

    `sent` and `left` count bodies that were sent and that remain; `sent_shares` and `left_shares`
    count the last chunks of a share among them.
    """

    sent: int = 0
    left: int = 0
    sent_shares: int = 0
    left_shares: int = 0


@dataclass(frozen=True)
class _Claimed:
    """A file in the spool that this process has locked."""

    path: Path
    address: Address
    body: bytes

    def chunk(self) -> Chunk:
        return Chunk(self.address.number, self.address.final)

    def session(self) -> tuple[object, ...]:
        """Return the identity of the session; all bodies of a session are sent in one request."""
        address = self.address
        return address.job, address.session, address.attempt, address.run_id, address.restart


def send_chunk(  # noqa: PLR0913, PLR0917 - an address, a body and how long to try
    server: str, job: str, share: Share, chunk: Chunk, body: bytes, policy: RetryPolicy
) -> Delivery:
    """Send a chunk of a producer's share; raises `DeliveryError` or `ValueError`."""
    attempt = ATTEMPTS.number(server, job, share.attempt, policy)
    return deliver(chunk_url(server, job, share, attempt, chunk), body, policy, "PUT")


def send_waiting(
    spool: Spool, server: str, *, instead_of: str | None = None, until_s: float = math.inf
) -> Sent:
    """Send the spooled bodies for a server, until an error occurs that allows sending later.

    Bodies of one session are sent in one request. Bodies for other servers stay, so that no other
    server receives the token. `instead_of` is the address in the spool's files, if the job knew
    this server by another name. Returns by `until_s` of `time.monotonic`; the remaining bodies are
    then not counted.
    """
    policy = replace(_ONCE, until_s=until_s)
    # For each sent and each remaining body, whether it is the last chunk of a share.
    sent: list[bool] = []
    left: list[bool] = []
    failed = False
    waiting = spool.waiting()
    while waiting and time.monotonic() < until_s:
        with ExitStack() as locks:
            claimed = _claim(spool, waiting, instead_of or server, locks)
            if failed or not claimed:
                left += [file.address.final for file in claimed]
                continue
            for file, error in zip(claimed, _send_batch(server, claimed, policy), strict=True):
                address = file.address
                if isinstance(error, DeliveryError) and error.fate is not Fate.NEVER:
                    failed = True
                    left.append(address.final)
                    continue
                if error is None:
                    sent.append(address.final)
                else:
                    _log.warning("%s of session %d: %s", address.producer, address.session, error)
                spool.remove(file.path)
    return Sent(len(sent), len(left), sum(sent), sum(left))


def _claim(spool: Spool, waiting: list[Path], server: str, locks: ExitStack) -> list[_Claimed]:
    """Lock the oldest files for one request to a server, and remove them from `waiting`."""
    claimed: list[_Claimed] = []
    size = 0
    while waiting and len(claimed) < _BATCH and size < _BATCH_BYTES:
        content = locks.enter_context(spool.claimed(waiting[0]))
        if content is None or content[0].server != server:
            del waiting[0]
            continue
        file = _Claimed(waiting[0], *content)
        if claimed and file.session() != claimed[0].session():
            break
        claimed.append(file)
        size += len(file.body)
        del waiting[0]
    return claimed


def _send_batch(
    server: str, claimed: Sequence[_Claimed], policy: RetryPolicy
) -> list[DeliveryError | ValueError | None]:
    """Send bodies of one session; return the error of each body that was not accepted.

    After an error that allows sending later, the others are not tried and have the same error.
    """
    first = claimed[0].address
    if len(claimed) > 1:
        try:
            attempt = ATTEMPTS.number(server, first.job, _share_of(first).attempt, policy)
            url = batch_url(server, first.job, attempt, first.session)
            chunks = [(file.address.producer, file.chunk(), file.body) for file in claimed]
            return [*deliver_batch(url, chunks, policy)]
        except DeliveryError as error:
            if error.fate is Fate.AGAIN:
                return [error for _ in claimed]
        except ValueError:
            pass
        # An older server, or a server that refuses the batch, gets each body in its own request.
    errors: list[DeliveryError | ValueError | None] = []
    for file in claimed:
        share = _share_of(file.address)
        try:
            send_chunk(server, file.address.job, share, file.chunk(), file.body, policy)
            errors.append(None)
        except ValueError as error:
            errors.append(error)
        except DeliveryError as error:
            errors.append(error)
            if error.fate is not Fate.NEVER:
                return errors + [error] * (len(claimed) - len(errors))
    return errors


def _share_of(address: Address) -> Share:
    attempt = Run(address.run_id, address.restart) if address.attempt is None else address.attempt
    return Share(address.session, address.producer, attempt)


@dataclass
class _Body:
    """An undelivered chunk: in the spool, or in memory if the spool has no room."""

    chunk: Chunk
    path: Path | None
    data: bytes  # empty if it is in the spool


class Outbox:
    """Sends one share: call `put` for each chunk, then `finish` once, on the same thread.

    Each chunk is in the spool before it is sent, so that it outlives its process and is not sent
    twice. A chunk before the last one is tried once, on a separate thread, so that a server that
    does not answer does not delay the recorder. Chunks left in the spool are sent after the last.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the destination, and how to get there
        self,
        server: str,
        job: str,
        share: Share,
        spool: Spool | None,
        retry: RetryPolicy,
        hand_over: bool,  # noqa: FBT001 - of the recorder
    ) -> None:
        self.spooled: Path | None = None  # the last chunk, while it is in the spool
        self.error: str | None = None  # why it stays there
        self._server = server
        self._job = job
        self._share = share
        self._spool = spool
        self._retry = retry
        self._hand_over = hand_over
        self._number = 0
        self._bodies: SimpleQueue[_Body | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._in_memory: list[_Body] = []
        self._refusal: Exception | None = None
        self._retries = True

    @property
    def full(self) -> bool:
        """Whether a chunk that the spool had no room for is still in memory."""
        return bool(self._in_memory)

    def put(self, data: bytes) -> None:
        """Send a chunk other than the last; returns at once."""
        body = self._store(data, final=False)
        if self._hand_over and body.path is not None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="paceline-outbox", daemon=True)
            self._thread.start()
        self._bodies.put(body)

    def finish(self, data: bytes) -> Delivery | None:
        """Send the last chunk, repeatedly if necessary; return None if it stays in the spool.

        Raises `DeliveryError` if the server refuses the share, or does not answer in time and there
        is no spool.
        """
        body = self._store(data, final=True)
        self.spooled = body.path
        if not self._retries:
            self.stop_retrying()
        if self._thread is not None:
            self._bodies.put(None)
            self._thread.join()
        if self._refusal is not None:
            self._forget(body)
            raise self._refusal
        if self._hand_over and body.path is not None:
            return None
        for waiting in self._in_memory:
            self._send(waiting, self._retry)
        try:
            delivery = self._send(body, self._retry)
        except DeliveryError as error:
            if body.path is None:
                raise
            if error.fate is Fate.NEVER:
                self._forget(body)
                raise
            self.error = str(error)
            _log.warning("the share stays in %s: %s", body.path, error)
            return None
        self._forget(body)
        if self._spool is not None and delivery is not None:
            # The server is available, so send the other spooled bodies as well.
            send_waiting(self._spool, self._server)
        return delivery

    def stop_retrying(self) -> None:
        """Keep the last chunk in the spool after one failed attempt, because the process ends."""
        self._retries = False
        if self.spooled is not None:
            self._retry.ending.set()

    def _store(self, data: bytes, *, final: bool) -> _Body:
        chunk = Chunk(self._number, final)
        self._number += 1
        if self._spool is not None:
            try:
                return _Body(chunk, self._spool.put(self._spool_address(chunk), data), b"")
            except OSError as error:
                folder = self._spool.directory
                _log.warning("cannot write to the spool %s: %s", folder, error)
        body = _Body(chunk, None, data)
        if not final:
            self._in_memory.append(body)
        return body

    def _spool_address(self, chunk: Chunk) -> Address:
        share = self._share
        run = share.attempt if isinstance(share.attempt, Run) else None
        return Address(
            self._server,
            self._job,
            share.session,
            share.producer,
            share.attempt if isinstance(share.attempt, int) else None,
            "" if run is None else run.run_id,
            0 if run is None else run.restart,
            chunk.number,
            chunk.final,
        )

    def _run(self) -> None:
        once = replace(self._retry, give_up_after_s=0.0)
        while (body := self._bodies.get()) is not None:
            if self._refusal is not None:
                self._forget(body)
                continue
            try:
                if self._send(body, once) is not None:
                    self._forget(body)
            except DeliveryError as error:
                if error.fate is Fate.NEVER:
                    self._refusal = error
                    self._forget(body)
            except Exception as error:  # noqa: BLE001 - a thread of the user's process
                self._refusal = error
                self._forget(body)

    def _send(self, body: _Body, policy: RetryPolicy) -> Delivery | None:
        """Send a body; None if another process of this host is sending it."""
        if body.path is None or self._spool is None:
            return self._send_data(body, body.data, policy)
        with self._spool.claimed(body.path) as claimed:
            return None if claimed is None else self._send_data(body, claimed[1], policy)

    def _send_data(self, body: _Body, data: bytes, policy: RetryPolicy) -> Delivery:
        return send_chunk(self._server, self._job, self._share, body.chunk, data, policy)

    def _forget(self, body: _Body) -> None:
        if body.path is not None and self._spool is not None:
            self._spool.remove(body.path)
            if body.chunk.final:
                self.spooled = None
        elif body in self._in_memory:
            self._in_memory.remove(body)


class Relay:
    """Sends the shares in a host's spool, from earlier runs and from other ranks.

    Runs on the first rank of a host. `others` is the number of ranks of this host that leave their
    shares in the spool, 0 if each rank sends its own.
    """

    def __init__(self, spool: Spool, url: str, others: int) -> None:
        self._spool = spool
        self._url = url
        self._others = others
        self._lock = threading.Lock()
        self._sent = 0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="paceline-relay", daemon=True).start()

    def finish(self, sessions: int, give_up_at_s: float) -> None:
        """Send the spool until other ranks' shares of `sessions` sessions are sent or in the spool.

        Returns by `give_up_at_s` of `time.monotonic`.
        """
        while time.monotonic() < give_up_at_s:
            left = self._send(give_up_at_s)
            if self._sent + left >= self._others * sessions:
                # The remaining shares of other ranks are in the spool, but the server is
                # unavailable.
                return
            time.sleep(_RELAY_EVERY_AT_END_S)

    def _run(self) -> None:
        # The spool is sent once before counting, so that shares of earlier runs do not count as
        # shares of other ranks.
        self._send()
        self._sent = 0
        while self._others:
            time.sleep(_RELAY_EVERY_S)
            self._send()

    def _send(self, until_s: float = math.inf) -> int:
        """Send the spooled bodies until a time; return the number of last chunks that remain."""
        # The relay's thread may hold the lock during a request that lasts longer.
        wait_s = min(until_s - time.monotonic(), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=max(0.0, wait_s)):
            return 0
        try:
            done = send_waiting(self._spool, self._url, until_s=until_s)
            self._sent += done.sent_shares
        except Exception:  # noqa: BLE001 - a thread in the user's process
            _log.exception("sending the spool failed")
            return 0
        finally:
            self._lock.release()
        return done.left_shares
