"""Record one profiling session from within a training process."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from paceline_client.backlog import Backlog
from paceline_client.body import SessionBody
from paceline_client.delivery import (
    Delivery,
    DeliveryError,
    Fate,
    RetryPolicy,
    Share,
    check_share,
    deliver,
    session_url,
)
from paceline_client.operations import OPERATION_BYTES, OperationBuffer
from paceline_client.runs import Run
from paceline_client.sending import send_share, send_waiting
from paceline_client.spool import Address, Spool

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("paceline_client")

# Operations formatted at a stretch, and the pause after: the training's threads wait for Python's
# interpreter lock for well under a millisecond.
_BATCH_BYTES: Final = 256 * OPERATION_BYTES
_PAUSE_S: Final = 0.002
_IDLE_S: Final = 0.02
# The part of the buffer over which a burst goes to the spool.
_SPILL_AT: Final = 0.25
# A body's metadata names the steps that a producer had no room for, under this key.
_DROPPED_KEY: Final = "dropped_steps"
_WHOLE: Final = "all"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session.

    Parameters
    ----------
    delivery : Delivery or None
        The server's answer, once it has the session.
    error : str or None
        Why it does not have it.
    recorded, dropped : int
        Operations in the body; operations left out because there was no room for their step, or
        their values were no integers.
    dropped_steps : tuple of int
        Steps that are left out, whole.
    spooled : Path or None
        Where the share waits to be sent later.
    """

    delivery: Delivery | None
    error: str | None
    recorded: int
    dropped: int
    dropped_steps: tuple[int, ...] = ()
    spooled: Path | None = None


class Recorder:
    """Takes the operations of one session and sends them when it is finished.

    Nothing here raises into the training, waits for the network or grows without bound: what does
    not fit is dropped by whole steps, counted and named. Formatting, compression and sending happen
    on a daemon thread.

    Parameters
    ----------
    server : str
        Address of Paceline: ``http://paceline.example:8765``.
    job : str
        Name of the training job.
    meta : mapping
        The session's sizes (``dp``, ``pp``, ``tp``, ``cp``, ``vpp``, ``world``) and, where known,
        ``hosts``, ``gpus`` and ``labels``. `describe` adds to it.
    share : Share, optional
        Where every rank, or host, has a recorder of its own: which part of which session this one
        sends. Without it the recorder holds the whole session.
    spool : Spool, optional
        Where a burst goes that the buffer does not hold and, with `share`, what cannot be sent now.
    hand_over : bool
        Leave the share in the spool, for another process of this host to send.
    buffer_operations : int
        Operations that may wait for the thread.
    max_body_bytes : int
        Compressed bytes to hold until the session is finished.
    retry : RetryPolicy
        How long to go on sending.

    Notes
    -----
    ``PACELINE_TOKEN`` in the environment is the token that the server is shown.

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
        retry: RetryPolicy | None = None,
    ) -> None:
        self._server = server
        self._job = job
        self._meta: dict[str, Any] = {}
        self._share = share
        self._spool = spool
        self._hand_over = hand_over
        # An event of its own: a policy may be shared.
        self._retry = replace(retry or RetryPolicy(), ending=threading.Event())
        self._buffer = OperationBuffer(buffer_operations)
        self._backlog = Backlog(self._buffer, spool, int(buffer_operations * _SPILL_AT))
        self._without: set[int] = set()
        self._finished = threading.Event()
        self._over = threading.Event()
        self._recorded = 0
        self._delivery: Delivery | None = None
        self._spooled: Path | None = None
        self._error: str | None = None
        self._leaving = False
        self._pid = os.getpid()
        try:
            session_url(server, job)
            if share is not None:
                check_share(share)
            self.describe(meta)
            body = SessionBody(max_body_bytes)
            threading.Thread(
                target=self._run, args=(body,), name="paceline-recorder", daemon=True
            ).start()
        except Exception as error:  # noqa: BLE001 - a wrong address must not end a training
            self._give_up(error)

    def op(  # noqa: PLR0913 - an operation has that many coordinates
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
        """Record one operation; costs about a microsecond, from any thread.

        Parameters
        ----------
        rank : int
            Global rank.
        op : str
            Operation type: ``forward-compute``.
        start_ns, duration_ns : int
            Start by the host's clock (`time.time_ns`) and duration, in nanoseconds.
        step : int
            Training step.
        dp, pp : int
            DP rank and pipeline stage.
        mb, mc : int, optional
            Microbatch; model chunk within the stage.
        tp : int, optional
            Tensor-parallel rank, where several of a worker are recorded.
        """
        self._buffer.add(op, rank, dp, pp, tp, step, start_ns, duration_ns, mb, mc)

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Add to the session's metadata, until it is finished; mappings within are joined.

        Raises
        ------
        TypeError, ValueError
            If it cannot be written as JSON.
        """
        _join(self._meta, json.loads(json.dumps(dict(meta), allow_nan=False)))

    def leave_out(self, steps: Iterable[int]) -> None:
        """Leave out steps that are not complete; to be called before `finish`."""
        self._without.update(steps)

    def finish(self) -> None:
        """End the session and send it, without waiting for either."""
        self._buffer.close()
        self._finished.set()

    def leave(self) -> None:
        """Try no longer what has failed and is in the spool: the process ends."""
        self._leaving = True
        if self._spooled is not None:
            self._retry.ending.set()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until the session was delivered, spooled or given up.

        Parameters
        ----------
        timeout_s : float or None
            Seconds to wait at most. A process that ends earlier takes the session with it, unless
            it is in the spool.

        Returns
        -------
        Outcome or None
            None if the time is up before.
        """
        if os.getpid() != self._pid:
            # A forked child has no such thread, and leaves the session to its parent.
            return self.outcome()
        return self.outcome() if self._over.wait(timeout_s) else None

    def outcome(self) -> Outcome:
        """Return the delivery and the counts of operations so far."""
        return Outcome(
            self._delivery,
            self._error,
            self._recorded,
            self._buffer.dropped,
            tuple(sorted(self._buffer.dropped_steps)),
            self._spooled,
        )

    def _run(self, body: SessionBody) -> None:
        try:
            while not self._finished.is_set():
                self._drain(body)
                self._finished.wait(_IDLE_S)
            self._drain(body)
            self._backlog.close()
            whole = self._close(body)
            if self._share is None:
                url = session_url(self._server, self._job)
                self._delivery = deliver(url, whole, self._retry)
            else:
                self._send(self._share, whole)
        except Exception as error:  # noqa: BLE001 - a thread in the user's process
            self._give_up(error)
        finally:
            self._over.set()

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

    def _close(self, body: SessionBody) -> bytes:
        """Return the whole body, without the steps that had no room."""
        dropped = self._buffer.dropped_steps | body.left_out
        self._buffer.dropped_steps = dropped
        if dropped:
            name = self._share.producer if self._share else _WHOLE
            self._meta[_DROPPED_KEY] = {name: sorted(dropped)}
        self._buffer.drop(body.operations_of(dropped))
        whole, self._recorded = body.close(self._meta, dropped | self._without)
        if dropped:
            _log.warning("no room for %d steps: %s", len(dropped), sorted(dropped)[:20])
        elif self._buffer.dropped:
            _log.warning("%d operations were dropped", self._buffer.dropped)
        return whole

    def _send(self, share: Share, whole: bytes) -> None:
        """Send a share; what cannot be sent stays in the spool."""
        path = self._put(share, whole)
        if path is None:
            self._delivery = send_share(self._server, self._job, share, whole, self._retry)
            return
        spool = self._spool
        assert spool is not None  # noqa: S101 - what it put there
        self._spooled = path
        if self._leaving:
            self._retry.ending.set()
        if self._hand_over:
            return
        with spool.claimed(path) as claimed:
            if claimed is None:
                return  # another process of this host is sending it
            try:
                self._delivery = send_share(self._server, self._job, share, whole, self._retry)
            except DeliveryError as error:
                if error.fate is not Fate.NEVER:
                    self._error = str(error)
                    _log.warning("the share waits in %s: %s", path, error)
                    return
                spool.remove(path)
                self._spooled = None
                raise
            spool.remove(path)
            self._spooled = None
        # The server is there: so may be what it missed.
        send_waiting(spool, self._server)

    def _put(self, share: Share, whole: bytes) -> Path | None:
        if self._spool is None:
            return None
        attempt = share.attempt
        address = Address(
            self._server,
            self._job,
            share.session,
            share.producer,
            None if isinstance(attempt, Run) else attempt,
            attempt.run_id if isinstance(attempt, Run) else "",
            attempt.restart if isinstance(attempt, Run) else 0,
        )
        try:
            return self._spool.put(address, whole)
        except OSError as error:
            _log.warning("no spool in %s: %s", self._spool.directory, error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._error = str(error) if isinstance(error, DeliveryError) else repr(error)
        _log.warning("the session is not sent: %s", self._error)
        self._buffer.close()
        self._finished.set()
        self._over.set()


def _join(known: dict[str, Any], added: Mapping[str, Any]) -> None:
    for key, value in added.items():
        if isinstance(value, Mapping) and isinstance(known.get(key), dict):
            _join(known[key], value)
        else:
            known[key] = value
