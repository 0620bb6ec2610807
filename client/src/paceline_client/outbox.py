"""Sends the chunks of a share while it is recorded, and the last one at its end.

Each chunk is in the spool before it is sent, so that it outlives its process and is not sent twice.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from paceline_client.delivery import Chunk, Delivery, DeliveryError, Fate, RetryPolicy, Share
from paceline_client.runs import Run
from paceline_client.sending import send_chunk, send_waiting
from paceline_client.spool import Address, Spool

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("paceline_client")


@dataclass
class _Body:
    """A chunk that is not delivered: in the spool, or in memory if that has no room."""

    chunk: Chunk
    path: Path | None
    data: bytes  # empty if it is in the spool


class Outbox:
    """Sends one share: `put` while it is recorded, then `finish` once, on the same thread.

    A chunk before the last one is tried once, on a thread of its own, so that a server that does
    not answer does not delay the recorder. What stays in the spool is sent after the last one.
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
        self._leaving = False

    @property
    def full(self) -> bool:
        """Whether a chunk that the spool had no room for is still in memory."""
        return bool(self._in_memory)

    def put(self, data: bytes) -> None:
        """Send a chunk that is not the last one; returns at once."""
        body = self._keep(data, final=False)
        if self._hand_over and body.path is not None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="paceline-outbox", daemon=True)
            self._thread.start()
        self._bodies.put(body)

    def finish(self, data: bytes) -> Delivery | None:
        """Send the last chunk, repeatedly if necessary; None if it stays in the spool.

        Raises `DeliveryError` if the server refuses the share or has not got it in time.
        """
        body = self._keep(data, final=True)
        self.spooled = body.path
        if self._leaving:
            self.leave()
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
            # The server is available: send what had to wait, too.
            send_waiting(self._spool, self._server)
        return delivery

    def leave(self) -> None:
        """Do not try again to send what is in the spool: the process ends."""
        self._leaving = True
        if self.spooled is not None:
            self._retry.ending.set()

    def _keep(self, data: bytes, *, final: bool) -> _Body:
        chunk = Chunk(self._number, final)
        self._number += 1
        if self._spool is not None:
            try:
                return _Body(chunk, self._spool.put(self._address(chunk), data), b"")
            except OSError as error:
                folder = self._spool.directory
                _log.warning("cannot write to the spool %s: %s", folder, error)
        body = _Body(chunk, None, data)
        if not final:
            self._in_memory.append(body)
        return body

    def _address(self, chunk: Chunk) -> Address:
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
