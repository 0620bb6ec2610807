"""Record one profiling session from within a training process."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from paceline_client.body import Operation, SessionBody
from paceline_client.delivery import (
    Delivery,
    DeliveryError,
    RetryPolicy,
    Share,
    deliver,
    session_url,
    share_url,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("paceline_client")

# Operations formatted at a stretch, and the pause after: the training's threads wait for Python's
# interpreter lock for well under a millisecond.
_BATCH: Final = 256
_PAUSE_S: Final = 0.002
_IDLE_S: Final = 0.1


@dataclass(frozen=True)
class Outcome:
    """What became of a session.

    Parameters
    ----------
    delivery : Delivery or None
        The server's answer, once it has the session.
    error : str or None
        Why it will not have it.
    recorded, dropped : int
        Operations in the body; operations left out because the buffer was full, the body over its
        limit, or the values no integers.
    """

    delivery: Delivery | None
    error: str | None
    recorded: int
    dropped: int


class Recorder:
    """Takes the operations of one session and sends them when it is finished.

    Nothing here raises into the training, waits for the network or grows without bound: what does
    not fit is dropped and counted. Formatting, compression and sending happen on a daemon thread.

    Parameters
    ----------
    server : str
        Address of Paceline: ``http://paceline.example:8765``.
    job : str
        Name of the training job.
    meta : mapping
        The session's sizes (``dp``, ``pp``, ``tp``, ``cp``, ``vpp``, ``world``) and, where known,
        ``hosts``, ``gpus`` and ``labels``.
    share : Share, optional
        Where every rank, or host, has a recorder of its own: which part of which session this one
        sends. Without it the recorder holds the whole session.
    buffer_operations : int
        Operations that may wait for the thread.
    max_body_bytes : int
        Compressed bytes to hold until the session is finished.
    retry : RetryPolicy
        How long to go on sending.

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
        buffer_operations: int = 100_000,
        max_body_bytes: int = 64 * 1024 * 1024,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._buffer: deque[Operation] = deque()
        self._capacity = buffer_operations
        self._retry = retry or RetryPolicy()
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._over = threading.Event()
        self._recorded = 0
        self._dropped = 0
        self._delivery: Delivery | None = None
        self._error: str | None = None
        try:
            sessions_url = session_url(server, job)
            self._url = share_url(sessions_url, share) if share else sessions_url
            self._method = "PUT" if share else "POST"
            body = SessionBody(meta, max_body_bytes)
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
        """
        if len(self._buffer) >= self._capacity or self._finished.is_set():
            self._drop(1)
        else:
            self._buffer.append(Operation(rank, dp, pp, step, op, start_ns, duration_ns, mb, mc))

    def finish(self) -> None:
        """End the session and send it, without waiting for either."""
        self._finished.set()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until the session was delivered or given up.

        Parameters
        ----------
        timeout_s : float or None
            Seconds to wait at most. A process that ends earlier takes the session with it.

        Returns
        -------
        Outcome or None
            None if the time is up before.
        """
        return self.outcome() if self._over.wait(timeout_s) else None

    def outcome(self) -> Outcome:
        """Return the delivery and the counts of operations so far."""
        return Outcome(self._delivery, self._error, self._recorded, self._dropped)

    def _run(self, body: SessionBody) -> None:
        try:
            while not self._finished.is_set():
                self._drain(body)
                self._finished.wait(_IDLE_S)
            self._drain(body)
            if self._dropped:
                _log.warning("%d operations were dropped", self._dropped)
            self._delivery = deliver(self._url, body.close(), self._retry, self._method)
        except Exception as error:  # noqa: BLE001 - a thread of somebody else's process
            self._give_up(error)
        finally:
            # What other threads recorded while the session was being finished.
            self._drop(len(self._buffer))
            self._buffer.clear()
            self._over.set()

    def _drain(self, body: SessionBody) -> None:
        while self._buffer:
            batch = [self._buffer.popleft() for _ in range(min(_BATCH, len(self._buffer)))]
            left_out = body.add(batch)
            self._recorded += len(batch) - left_out
            if left_out:
                self._drop(left_out)
            time.sleep(_PAUSE_S)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count

    def _give_up(self, error: Exception) -> None:
        self._error = str(error) if isinstance(error, DeliveryError) else repr(error)
        _log.warning("the session is not sent: %s", self._error)
        self._finished.set()
        self._over.set()
