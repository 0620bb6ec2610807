"""The thread that sends a rank's pulse, or passes it to the rank that sends for the host."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from paceline_client.delivery import RetryPolicy, job_url
from paceline_client.environment import Run
from paceline_client.exchange import DeliveryError, Fate, exchange
from paceline_client.pulse.host import HangDiagnostics, HostSocket, Report, is_same_user, read_all
from paceline_client.pulse.requests import PulseAnswer, RecordRequest, ServerAnswer
from paceline_client.pulse.rows import (
    Beat,
    Counts,
    HostData,
    Pending,
    Row,
    body_of,
    files_of,
    unsent,
)
from paceline_client.sending import ATTEMPTS

_log = logging.getLogger("paceline_client")

PULSE_VARIABLE: Final = "PACELINE_PULSE_S"
_EVERY_S: Final = 5.0
_LEAST_EVERY_S: Final = 0.05
_LONGEST_EVERY_S: Final = 60.0
# After this number of bodies without a new step, bodies are sent twice as often, so that a hang is
# detected soon.
_BODIES_WITHOUT_STEP: Final = 3
_HANG_FREQUENCY: Final = 2
# Age in seconds from which rows are dropped, because the pulse serves detection within seconds.
MAX_AGE_S: Final = 30.0
# Maximum number of pending rows: of a rank, and of a host while the server is unavailable.
_MOST_ROWS_OF_RANK: Final = 8192
_MOST_ROWS: Final = 1 << 16
# Maximum number of rows in a body: half of the server's limit.
_ROWS_OF_BODY: Final = 1 << 14
_HOST_TIMEOUT_S: Final = 2.0
_LISTEN_S: Final = 0.2
_TIMEOUT_S: Final = 10.0
_LEAST_TIMEOUT_S: Final = 0.5
_PHASES: Final = 1 << 16
# Statuses of an older server without this route, and of a project that disabled the pulse.
_NO_PULSE: Final = frozenset({404, 405, 409})

# A function that returns the state of the rank's GPU; None if there is no new reading.
ReadGpu = Callable[[], "dict[str, Any] | None"]


@dataclass(frozen=True)
class Destination:
    """The server, job and rank data with which a pulse is sent."""

    server: str
    job: str
    run: Run
    rank: int
    local_rank: int
    host: str
    world: int | None = None  # ranks of the job


class Pulse:
    """Collects the rows of a rank, and sends them on a separate thread.

    Parameters
    ----------
    beat : callable
        Returns the current beat; None if no operation is known yet. Called with True if the rank
        has finished.
    on_request : callable
        Called on the thread, on global rank 0 only, when the server requests a session.
    report : callable, optional
        Called on the thread while no step of the job ends: returns the diagnostics of this rank, as
        texts by the names of their files. Without it, the state of other ranks is not reported
        either.
    read_gpu : callable, optional
        Called on the thread with each body: returns the state of the rank's GPU if it is due.
    """

    def __init__(
        self,
        destination: Destination,
        beat: Callable[[bool], Beat | None],
        on_request: Callable[[RecordRequest], None],
        report: Report | None = None,
        read_gpu: ReadGpu = lambda: None,
    ) -> None:
        self._destination = destination
        self._beat = beat
        self._on_request = on_request
        self._read_gpu = read_gpu
        self._diagnostics = HangDiagnostics(report)
        self._files_requested = False
        self.counts = Counts()
        # False once the server has answered that it accepts no pulses
        self.wanted = True
        self._rows: deque[Row] = deque(maxlen=_MOST_ROWS_OF_RANK)
        self._added_s = math.inf
        to = destination
        self._host = HostSocket(f"{to.server}\n{to.job}\n{to.run.run_id}\n{to.host}")
        self._listener: socket.socket | None = None
        self._listening: threading.Thread | None = None
        # Guards the data that the two threads share: pending rows, and the server's answer
        self._lock = threading.Lock()
        self._pending: list[Pending] = []
        self._answer = ServerAnswer()
        self._warned = False
        self._closing = threading.Event()
        self._finished = False
        self._give_up_at_s = math.inf
        variable = os.environ.get(PULSE_VARIABLE)
        self._interval_is_fixed = variable is not None
        self._every_s = _bounded(variable, _EVERY_S)
        # A different phase for each host, so that the hosts of a job do not send at the same time.
        self._phase = (zlib.crc32(destination.host.encode()) % _PHASES) / _PHASES
        self._thread = threading.Thread(target=self._run, name="paceline-pulse", daemon=True)

    @property
    def sends(self) -> bool:
        """Whether this process sends for its host."""
        return self._listener is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, row: Row) -> None:
        """Add a row to the next body; without room, the oldest row is dropped."""
        counts = self.counts
        counts.rows += 1
        if len(self._rows) == _MOST_ROWS_OF_RANK:
            counts.dropped += 1
        self._rows.append(row)
        self._added_s = time.monotonic()

    def close(self, give_up_at_s: float, *, finished: bool) -> None:
        """Send the remaining rows, and whether the rank has `finished`; return by `give_up_at_s`.

        `give_up_at_s` is by `time.monotonic`.
        """
        self.end(give_up_at_s, finished=finished)
        self.wait(give_up_at_s)

    def end(self, give_up_at_s: float, *, finished: bool) -> None:
        """Begin closing without waiting; see `close`."""
        self._finished = finished
        self._give_up_at_s = give_up_at_s
        self._closing.set()

    def wait(self, give_up_at_s: float) -> None:
        """Wait until the remaining rows are sent; see `close`."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, give_up_at_s - time.monotonic()))

    def forked(self) -> None:
        """Release the parent's socket, in a forked child."""
        self.wanted = False
        self._host.close()

    def _run(self) -> None:
        try:
            if self._destination.local_rank == 0:
                self._become_sender()
            while not self._closing.wait(self._until_next_s()):
                self._try_round()
            if self._listening is not None:
                # Ends before the last body is made, which then contains all data that other ranks
                # have passed.
                self._listening.join()
            self._try_round()
        finally:
            self._host.close()

    def _until_next_s(self) -> float:
        # The ranks of a host share their monotonic clock; the rank that sends for the host sends
        # last.
        every = self._every_s
        if time.monotonic() - self._added_s >= _BODIES_WITHOUT_STEP * every:
            every /= _HANG_FREQUENCY
        at = (self._phase + (0.1 if self.sends else 0.0)) % 1.0
        left = (at - time.monotonic() / every) % 1.0 * every
        return left if left > 0.1 * every else left + every

    def _try_round(self) -> None:
        try:
            if self.wanted:
                self._round()
        except Exception:  # noqa: BLE001 - a thread in the user's process
            _log.debug("a pulse was not sent", exc_info=True)

    def _round(self) -> None:
        rows: list[Row] = []
        while self._rows:
            rows.append(self._rows.popleft())
        beat = self._beat(self._closing.is_set() and self._finished)
        reading = self._read_gpu()
        now_s = time.monotonic()
        files = self._diagnostics.own(now_s, self._every_s) if self._files_requested else {}
        beats = [] if beat is None else [beat]
        readings = [] if reading is None else [reading]
        with self._lock:
            self._pending.append(Pending(now_s, rows, beats, files, readings))
            self._drop_old(now_s)
        if not self.sends:
            if self._pass_to_sender():
                return
            if not self._closing.is_set():
                self._become_sender()
        self._send()

    def _drop_old(self, now_s: float) -> None:
        """Drop rows beyond the age limit, and the oldest rows beyond the limit of their number."""
        pending = self._pending
        total = sum(len(part.rows) for part in pending)
        while pending and (now_s - pending[0].at_s > MAX_AGE_S or total > _MOST_ROWS):
            total -= len(pending[0].rows)
            self.counts.dropped += len(pending[0].rows)
            del pending[0]

    def _take_pending(self) -> list[Pending]:
        with self._lock:
            pending, self._pending = self._pending, []
        return pending

    def _pass_to_sender(self) -> bool:
        """Pass all pending data to the host's sending rank; return whether it received them."""
        if not self._host.supported:
            return False
        pending = self._take_pending()
        rows = [row for part in pending for row in part.rows]
        message = {
            "rank": self._destination.rank,
            "rows": rows,
            "beats": [beat for part in pending for beat in part.beats][-1:],
            "files": files_of(pending),
            "readings": [reading for part in pending for reading in part.readings][-1:],
            "pid": os.getpid(),
        }
        timeout_s = min(_HOST_TIMEOUT_S, max(0.1, self._give_up_at_s - time.monotonic()))
        text = self._host.request(json.dumps(message).encode(), timeout_s)
        if text is None:
            with self._lock:
                self._pending = pending + self._pending
            return False
        self.counts.handed_in += len(rows)
        answer = json.loads(text)
        self._files_requested = bool(answer["files"])
        with self._lock:
            self._diagnostics.seen(int(answer["sender"]), int(answer["pid"]), time.monotonic())
        self._apply(answer["stop"], answer["pulse_s"])
        if answer["record"]:
            self._on_request(RecordRequest(*answer["record"]))
        return True

    def _become_sender(self) -> None:
        """Send for the host from now on, unless another rank already does."""
        self._listener = self._host.bind()
        if self._listener is not None:
            self._listening = threading.Thread(
                target=self._listen, args=(self._listener,), name="paceline-pulses", daemon=True
            )
            self._listening.start()

    def _listen(self, listener: socket.socket) -> None:
        """Receive the pulses of other ranks of the host, one connection at a time."""
        listener.settimeout(_LISTEN_S)
        while not self._closing.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(_HOST_TIMEOUT_S / 2)
                    if is_same_user(connection):
                        connection.sendall(self._take_message(read_all(connection)))
                except Exception as error:  # noqa: BLE001 - the next ranks are still received
                    _log.debug("the pulse of a rank was not received: %s", error)

    def _take_message(self, text: bytes) -> bytes:
        message = json.loads(text)
        now_s = time.monotonic()
        rows = [Row(*row) for row in message["rows"]]
        beats = [Beat(*beat) for beat in message["beats"]]
        with self._lock:
            self._pending.append(
                Pending(now_s, rows, beats, dict(message["files"]), list(message["readings"]))
            )
            self._drop_old(now_s)
            rank = int(message["rank"])
            self._diagnostics.seen(rank, int(message["pid"]), now_s)
            return json.dumps(self._answer.document(rank, self._destination.rank)).encode()

    def _send(self) -> None:
        """Send all pending data; it stays pending if the server is unavailable."""
        pending = self._take_pending()
        rows = [row for part in pending for row in part.rows]
        # The latest beat of a rank replaces its earlier beats.
        beats = list({beat.rank: beat for part in pending for beat in part.beats}.values())
        files = files_of(pending)
        readings = [reading for part in pending for reading in part.readings]
        if self._files_requested:
            with self._lock:
                files |= self._diagnostics.silent(time.monotonic(), self._every_s)
        left_s = self._give_up_at_s - time.monotonic()
        policy = RetryPolicy(
            give_up_after_s=0.0, timeout_s=min(_TIMEOUT_S, max(_LEAST_TIMEOUT_S, left_s))
        )
        to = self._destination
        sent = 0
        try:
            attempt = ATTEMPTS.number(to.server, to.job, to.run, policy)
            url = f"{job_url(to.server, to.job)}/attempts/{attempt}/pulse"
            while sent < max(1, len(rows)):
                part = rows[sent : sent + _ROWS_OF_BODY]
                data = HostData(world=to.world) if sent else HostData(files, readings, to.world)
                body = body_of(to.host, part, () if sent else beats, data)
                answer = exchange("POST", url, body, "application/json", policy.timeout_s)
                instructions = PulseAnswer.read(answer)
                self.counts.sent += len(part)
                self.counts.bytes += len(body)
                sent += max(1, len(part))
                self._take_answer(instructions)
        except DeliveryError as error:
            self._not_sent(error, pending, sent, beats)

    def _not_sent(
        self, error: DeliveryError, pending: list[Pending], sent: int, beats: list[Beat]
    ) -> None:
        if error.status in _NO_PULSE:
            self._warn("the server takes no pulse, so that none is sent: %s", error)
            with self._lock:
                self._answer.stop = True
            self._apply(stop=True, pulse_s=None)
        elif error.fate is Fate.AGAIN:
            _log.info("a pulse was not sent: %s", error)
            if not self._closing.is_set():
                with self._lock:
                    self._pending = unsent(pending, sent, beats) + self._pending
                    self._drop_old(time.monotonic())
                return
        else:
            self._warn("a pulse was not sent: %s", error)
        self.counts.dropped += max(0, sum(len(part.rows) for part in pending) - sent)

    def _warn(self, message: str, error: DeliveryError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(message, error)

    def _take_answer(self, instructions: PulseAnswer) -> None:
        """Apply the server's answer, and store it for the other ranks of the host."""
        pulse_s, request, self._files_requested = instructions
        with self._lock:
            self._answer.pulse_s = pulse_s
            self._answer.files = self._files_requested
            if request is not None and self._destination.rank != 0:
                self._answer.record = request
        self._apply(stop=False, pulse_s=pulse_s)
        if request is not None and self._destination.rank == 0:
            self._on_request(request)

    def _apply(self, stop: bool, pulse_s: float | None) -> None:  # noqa: FBT001 - of a document
        if stop:
            self.wanted = False
        elif pulse_s is not None and not self._interval_is_fixed:
            self._every_s = _bounded(pulse_s, _EVERY_S)


def _bounded(interval: str | float | None, default_s: float) -> float:
    """Return the seconds between two bodies, limited to the allowed range."""
    try:
        seconds = default_s if interval is None else float(interval)
    except ValueError:
        _log.warning("%s=%s is no number of seconds", PULSE_VARIABLE, interval)
        return default_s
    if not math.isfinite(seconds):
        return default_s
    return min(_LONGEST_EVERY_S, max(_LEAST_EVERY_S, seconds))
