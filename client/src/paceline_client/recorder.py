"""Record one profiling session in a training process."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, SupportsIndex

from paceline_client.delivery import (
    RANDOM,
    Delivery,
    RetryPolicy,
    Share,
    check_share,
    deliver,
    session_url,
)
from paceline_client.exchange import DeliveryError
from paceline_client.operations import OPERATION_BYTES, Backlog, OperationBuffer, SessionBody
from paceline_client.sending import Outbox
from paceline_client.spool import Spool

_log = logging.getLogger("paceline_client")

# Size of a batch of operations formatted without a pause, and the pause: the training's threads
# then wait for Python's interpreter lock for much less than a millisecond.
_BATCH_BYTES: Final = 256 * OPERATION_BYTES
_PAUSE_S: Final = 0.002
_IDLE_S: Final = 0.02
# The share of the buffer above which operations are written to the spool.
_SPILL_AT: Final = 0.25
# Metadata key of the steps that were dropped because a producer had no memory for them.
_DROPPED_KEY: Final = "dropped_steps"
_WHOLE: Final = "all"
# Metadata key of the longest pause between two chunks in seconds, and its value, which covers
# evaluations and checkpoints within a session. The server waits this long for a producer's next
# chunk until one producer has ended.
_PAUSE_KEY: Final = "pause_s"
_LONGEST_PAUSE_S: Final = 600
# Metadata keys with an entry for each rank: 10 kB compressed for 1,024 ranks, more than the
# operations of a chunk. Only the first and last chunk of a share contain them; the server merges
# the metadata.
_TABLES: Final = frozenset({"hosts", "guessed_hosts", "gpus", "pods", "local_ranks"})


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session."""

    delivery: Delivery | None  # the server's answer, once it has the session
    error: str | None  # why it does not have it
    recorded: int  # operations in the body
    dropped: int  # operations without room for their step, or with values that are no integers
    dropped_steps: tuple[int, ...] = ()  # left out completely
    spooled: Path | None = None  # the file from which the share is sent later


class Recorder:
    """Records the operations of one session and sends them.

    It never raises into the training or waits for the network, and its memory is bounded: steps
    that do not fit are dropped completely, counted and reported. Formatting, compression and
    sending happen on a daemon thread. The token for the server is ``PACELINE_TOKEN`` in the
    environment.

    Parameters
    ----------
    server : str
        Address of Paceline: ``http://paceline.example:8765``.
    job : str
        Name of the training job.
    meta : mapping
        The session's sizes (``dp``, ``pp``, ``tp``, ``cp``, ``vpp``, ``world``) and, if known,
        ``hosts``, ``gpus`` and ``labels``. `describe` adds to it.
    share : Share, optional
        The part of the session that this recorder sends, if each rank or host has a recorder.
        Without it, the recorder holds the whole session.
    spool : Spool, optional
        Folder for bursts beyond the buffer and, with `share`, for shares that cannot be sent now.
    hand_over : bool
        Leave the share in the spool, for another process of this host to send.
    buffer_operations : int
        The most operations that wait for the thread.
    max_body_bytes : int
        The most compressed bytes that are held of a session.
    chunk_every_s : float or None
        With `share`, how often complete steps are sent while the session is recorded, so that a
        killed process loses only its last ones. None sends all of them at the end.
    retry : RetryPolicy
        How long to try to send.

    Examples
    --------
    >>> recorder = Recorder("http://127.0.0.1:8765", "llama-70b", {"dp": 4, "pp": 4, "world": 16})
    >>> recorder.op(0, "forward-compute", start_ns, duration_ns, step=7, dp=0, pp=0, mb=0)
    >>> recorder.finish()
    """

    def __init__(  # noqa: PLR0913 - the first three are the call; the others bound it
        self,
        server: str,
        job: str,
        meta: Mapping[str, Any],
        *,
        share: Share | None = None,
        spool: Spool | None = None,
        hand_over: bool = False,
        buffer_operations: int = 400_000,
        max_body_bytes: int = 64 * 1024 * 1024,
        chunk_every_s: float | None = 10.0,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._server = server
        self._job = job
        self._meta: dict[str, Any] = {}
        self._share = share
        # Callers may share a policy, but each recorder needs its own event.
        self._retry = replace(retry or RetryPolicy(), ending=threading.Event())
        self._buffer = OperationBuffer(buffer_operations)
        self._backlog = Backlog(self._buffer, spool, int(buffer_operations * _SPILL_AT))
        self._without: list[range | frozenset[int]] = []
        self._outbox: Outbox | None = None
        self._chunk_every_s = math.inf if chunk_every_s is None else chunk_every_s
        # A random first interval, so that ranks that begin together do not all send at once.
        self._next_chunk_s = time.monotonic() + self._chunk_every_s * RANDOM.uniform(0.5, 1.0)
        self._sent = 0  # operations in chunks
        self._finished = threading.Event()
        self._done = threading.Event()  # delivered, spooled or given up
        self._recorded = 0
        self._delivery: Delivery | None = None
        self._error: str | None = None
        self._pid = os.getpid()
        try:
            session_url(server, job)
            if share is not None:
                check_share(share)
            self.describe(meta)
            # Metadata of later chunks may be more complete, but do not contradict the metadata of
            # the first chunk.
            self._chunk_meta = json.loads(json.dumps(self._meta)) | {_PAUSE_KEY: _LONGEST_PAUSE_S}
            if share is not None:
                self._outbox = Outbox(server, job, share, spool, self._retry, hand_over)
            body = SessionBody(max_body_bytes)
            threading.Thread(
                target=self._run, args=(body,), name="paceline-recorder", daemon=True
            ).start()
        except Exception as error:  # noqa: BLE001 - a wrong address must not end the training
            self._give_up(error)

    @property
    def op_types(self) -> tuple[str, ...]:
        """Return the operation types recorded so far."""
        return tuple(self._buffer.names)

    def op(  # noqa: PLR0913 - the coordinates of an operation
        self,
        rank: SupportsIndex,
        op: str,
        start_ns: SupportsIndex,
        duration_ns: SupportsIndex,
        *,
        step: SupportsIndex,
        dp: SupportsIndex,
        pp: SupportsIndex,
        mb: SupportsIndex | None = None,
        mc: SupportsIndex | None = None,
        tp: SupportsIndex | None = None,
    ) -> None:
        """Record one operation, on any thread; takes about a microsecond.

        `rank` is the global rank, `op` the operation type, such as ``forward-compute``; `start_ns`
        is by the host's clock (`time.time_ns`). `dp`, `pp`, `mb` and `mc` are DP rank, stage,
        microbatch and model chunk; `tp` is given if several ranks of a worker are recorded.
        """
        self._buffer.add(op, rank, dp, pp, tp, step, start_ns, duration_ns, mb, mc)

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Add metadata to the session until it is finished; nested mappings are merged.

        Raises `TypeError` or `ValueError` if `meta` is not valid JSON.
        """
        _merge(self._meta, json.loads(json.dumps(dict(meta), allow_nan=False)))

    def leave_out(self, steps: Iterable[int]) -> None:
        """Leave out the newest steps, which are incomplete; call it before `finish`."""
        # A range is not copied: it may have many more steps than the session has operations.
        self._without.append(steps if isinstance(steps, range) else frozenset(steps))

    def finish(self) -> None:
        """End the session and send it; returns at once."""
        self._buffer.close()
        self._finished.set()

    def stop_retrying(self) -> None:
        """Leave a spooled share in the spool after a failed attempt, because the process ends."""
        if self._outbox is not None:
            self._outbox.stop_retrying()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until the session is delivered, spooled or given up; return None after the timeout.

        If the process ends earlier, a session that is not in the spool is lost.
        """
        if os.getpid() != self._pid:
            # A forked child does not have the sending thread; its parent sends the session.
            return self.outcome()
        return self.outcome() if self._done.wait(timeout_s) else None

    def outcome(self) -> Outcome:
        """Return the present outcome."""
        return Outcome(
            self._delivery,
            self._error,
            self._recorded,
            self._buffer.dropped,
            tuple(sorted(self._buffer.dropped_steps)),
            None if self._outbox is None else self._outbox.spooled,
        )

    def _run(self, body: SessionBody) -> None:
        outbox = self._outbox
        try:
            while not self._finished.is_set():
                self._drain(body)
                self._send_chunk(body)
                self._finished.wait(_IDLE_S)
            self._drain(body)
            self._backlog.close()
            whole = self._close(body)
            if outbox is None:
                url = session_url(self._server, self._job)
                self._delivery = deliver(url, whole, self._retry)
            else:
                self._delivery = outbox.finish(whole)
                self._error = outbox.error
        except Exception as error:  # noqa: BLE001 - a thread of the user's process
            self._give_up(error)
        finally:
            self._done.set()

    def _drain(self, body: SessionBody) -> None:
        backlog = self._backlog
        backlog.refill()
        while chunk := backlog.next():
            for start in range(0, len(chunk), _BATCH_BYTES):
                batch = chunk[start : start + _BATCH_BYTES]
                operations = len(batch) // OPERATION_BYTES
                left_out = body.add(batch, self._buffer.names)
                self._recorded += operations - left_out
                if left_out:
                    self._buffer.drop(left_out)
                time.sleep(_PAUSE_S)
                backlog.refill()
            backlog.done(chunk)

    def _send_chunk(self, body: SessionBody) -> None:
        """Send the complete steps so far if a chunk is due."""
        outbox = self._outbox
        if outbox is None or outbox.full or time.monotonic() < self._next_chunk_s:
            return
        chunk, operations = body.take(self._chunk_meta, self._buffer.dropped_steps)
        if operations:
            outbox.put(chunk)
            self._chunk_meta = {
                key: value for key, value in self._chunk_meta.items() if key not in _TABLES
            }
            self._sent += operations
            self._next_chunk_s = time.monotonic() + self._chunk_every_s

    def _close(self, body: SessionBody) -> bytes:
        """Return the body without the steps of which operations were dropped."""
        dropped = self._buffer.dropped_steps | body.left_out
        self._buffer.dropped_steps = dropped
        if dropped:
            name = self._share.producer if self._share else _WHOLE
            self._meta[_DROPPED_KEY] = {name: sorted(dropped)}
        self._buffer.drop(body.operations_of(dropped))
        without = {step for step in body.steps if any(step in part for part in self._without)}
        whole, operations = body.close(self._meta, dropped | without)
        self._recorded = self._sent + operations
        if dropped:
            _log.warning("no room for %d steps: %s", len(dropped), sorted(dropped)[:20])
        elif self._buffer.dropped:
            _log.warning("%d operations were dropped", self._buffer.dropped)
        return whole

    def _give_up(self, error: Exception) -> None:
        self._error = str(error) if isinstance(error, DeliveryError) else repr(error)
        _log.warning("the session is not sent: %s", self._error)
        self._buffer.close()
        self._finished.set()
        self._done.set()


def _merge(meta: dict[str, Any], added: Mapping[str, Any]) -> None:
    for key, value in added.items():
        if isinstance(value, Mapping) and isinstance(meta.get(key), dict):
            _merge(meta[key], value)
        else:
            meta[key] = value
