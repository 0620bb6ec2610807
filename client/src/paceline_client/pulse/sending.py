"""The thread of a rank that sends its pulse, or hands it to the process that sends for its host."""

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
from dataclasses import dataclass, field
from typing import Any, Final

from paceline_client.delivery import DeliveryError, Fate, RetryPolicy, job_url, send_pulse
from paceline_client.pulse.holding import Asked, Counts, Held, Told, files_of, without
from paceline_client.pulse.rows import Beat, Row, Said, body_of
from paceline_client.pulse.seat import Seat, is_ours, read_all
from paceline_client.pulse.standing import Say, Standing
from paceline_client.runs import Run
from paceline_client.sending import ATTEMPTS

_log = logging.getLogger("paceline_client")

EVERY: Final = "PACELINE_PULSE_S"
_EVERY_S: Final = 5.0
_LEAST_EVERY_S: Final = 0.05
_LONGEST_EVERY_S: Final = 60.0
# While no step ends for that many bodies, they come twice as often: whether a job stands still is
# wanted soon.
_STANDING_BODIES: Final = 3
_STANDING_TIMES: Final = 2
# What is older is of no use to those who want to know it within seconds.
LIVES_S: Final = 30.0
# Of one rank, and of a host while its server is away.
_MOST_ROWS_OF_RANK: Final = 8192
_MOST_ROWS: Final = 1 << 16
# Of one body: half of what the server takes.
_ROWS_OF_BODY: Final = 1 << 14
_HAND_IN_WITHIN_S: Final = 2.0
_LISTEN_S: Final = 0.2
_TIMEOUT_S: Final = 10.0
_LEAST_TIMEOUT_S: Final = 0.5
_PHASES: Final = 1 << 16
# An older server has no such route; a project may be off.
_NO_PULSE: Final = frozenset({404, 405, 409})

# Returns what the rank's GPU says of itself; None where nothing does.
Read = Callable[[], "dict[str, Any] | None"]
# Called with a session that the server asks for.
Hear = Callable[[Asked], None]


@dataclass(frozen=True)
class Destination:
    """Where the pulse of a rank goes."""

    server: str
    job: str
    run: Run
    rank: int
    local_rank: int
    host: str
    world: int | None = None  # ranks of the job


@dataclass
class _State:
    held: list[Held] = field(default_factory=list)
    told: Told = field(default_factory=Told)


class Pulse:
    """Keeps the rows of a rank, and sends them on a thread.

    Parameters
    ----------
    beat : callable
        Returns what the rank is in now; None if that is not known. With True, that it has finished.
    hear : callable
        Called on the thread, on global rank 0 only, when the server asks for a session.
    say : callable, optional
        Called on the thread while no step of the job ends: returns what this rank is in, as texts
        by the names of their files. Without it neither that nor the state of others is told.
    read : callable, optional
        Called on the thread with each body: returns what the rank's GPU says of itself, where that
        is due.
    """

    def __init__(
        self,
        where: Destination,
        beat: Callable[[bool], Beat | None],
        hear: Hear,
        say: Say | None = None,
        read: Read = lambda: None,
    ) -> None:
        self._where = where
        self._beat = beat
        self._hear = hear
        self._read = read
        self._standing = Standing(say)
        self._files_asked = False
        self.counts = Counts()
        # Whether the server takes pulses, as far as it is known.
        self.wanted = True
        self._rows: deque[Row] = deque(maxlen=_MOST_ROWS_OF_RANK)
        self._added_s = math.inf
        self._seat = Seat(f"{where.server}\n{where.job}\n{where.run.run_id}\n{where.host}")
        self._listener: socket.socket | None = None
        self._listening: threading.Thread | None = None
        self._lock = threading.Lock()
        self._state = _State()
        self._warned = False
        self._closing = threading.Event()
        self._finished = False
        self._give_up_at_s = math.inf
        given = os.environ.get(EVERY)
        self._told_by_environment = given is not None
        self._every_s = _bounded(given, _EVERY_S)
        # So that the hosts of a job do not send at the same moment.
        self._phase = (zlib.crc32(where.host.encode()) % _PHASES) / _PHASES
        self._thread = threading.Thread(target=self._run, name="paceline-pulse", daemon=True)

    @property
    def sends(self) -> bool:
        """Whether this process sends for its host."""
        return self._listener is not None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, row: Row) -> None:
        """Keep a row for the next body; the oldest one goes where there is no room."""
        counts = self.counts
        counts.rows += 1
        if len(self._rows) == _MOST_ROWS_OF_RANK:
            counts.dropped += 1
        self._rows.append(row)
        self._added_s = time.monotonic()

    def close(self, give_up_at_s: float, *, finished: bool) -> None:
        """Send the rest, and that the rank has finished; gives up by the monotonic clock."""
        self.end(give_up_at_s, finished=finished)
        self.wait(give_up_at_s)

    def end(self, give_up_at_s: float, *, finished: bool) -> None:
        """Begin to close."""
        self._finished = finished
        self._give_up_at_s = give_up_at_s
        self._closing.set()

    def wait(self, give_up_at_s: float) -> None:
        """Wait until what is left is sent."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, give_up_at_s - time.monotonic()))

    def forked(self) -> None:
        """Let go of what belongs to the parent, in a forked child."""
        self.wanted = False
        self._seat.leave()

    def _run(self) -> None:
        try:
            if self._where.local_rank == 0:
                self._take_seat()
            while not self._closing.wait(self._until_next_s()):
                self._try_round()
            if self._listening is not None:
                # What others have handed in until now goes with the last body.
                self._listening.join()
            self._try_round()
        finally:
            self._seat.leave()

    def _until_next_s(self) -> float:
        # Ranks of a host share their monotonic clock; who sends for them comes after them.
        every = self._every_s
        if time.monotonic() - self._added_s >= _STANDING_BODIES * every:
            every /= _STANDING_TIMES
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
        reading = self._read()
        now_s = time.monotonic()
        files = self._standing.own(now_s, self._every_s) if self._files_asked else {}
        beats = [] if beat is None else [beat]
        readings = [] if reading is None else [reading]
        with self._lock:
            self._state.held.append(Held(now_s, rows, beats, files, readings))
            self._forget(now_s)
        if not self.sends:
            if self._hands_in():
                return
            if not self._closing.is_set():
                self._take_seat()
        self._send()

    def _forget(self, now_s: float) -> None:
        """Drop what is too old, and the oldest of what is too much."""
        held = self._state.held
        total = sum(len(one.rows) for one in held)
        while held and (now_s - held[0].at_s > LIVES_S or total > _MOST_ROWS):
            total -= len(held[0].rows)
            self.counts.dropped += len(held[0].rows)
            del held[0]

    def _taken(self) -> list[Held]:
        with self._lock:
            held, self._state.held = self._state.held, []
        return held

    def _hands_in(self) -> bool:
        """Give all to the process that sends for the host; return whether it has it."""
        if not self._seat.usable:
            return False
        held = self._taken()
        rows = [row for one in held for row in one.rows]
        message = {
            "rank": self._where.rank,
            "rows": rows,
            "beats": [beat for one in held for beat in one.beats][-1:],
            "files": files_of(held),
            "readings": [reading for one in held for reading in one.readings][-1:],
            "pid": os.getpid(),
        }
        within_s = min(_HAND_IN_WITHIN_S, max(0.1, self._give_up_at_s - time.monotonic()))
        text = self._seat.hand_in(json.dumps(message).encode(), within_s)
        if text is None:
            with self._lock:
                self._state.held = held + self._state.held
            return False
        self.counts.handed_in += len(rows)
        answer = json.loads(text)
        self._files_asked = bool(answer["files"])
        with self._lock:
            self._standing.heard(int(answer["sender"]), int(answer["pid"]), time.monotonic())
        self._take_answer(answer["stop"], answer["pulse_s"])
        if answer["record"]:
            self._hear(Asked(*answer["record"]))
        return True

    def _take_seat(self) -> None:
        self._listener = self._seat.take()
        if self._listener is not None:
            self._listening = threading.Thread(
                target=self._listen, args=(self._listener,), name="paceline-pulses", daemon=True
            )
            self._listening.start()

    def _listen(self, listener: socket.socket) -> None:
        """Take what other ranks of the host hand in, one after the other."""
        listener.settimeout(_LISTEN_S)
        while not self._closing.is_set():
            try:
                one, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with one:
                try:
                    one.settimeout(_HAND_IN_WITHIN_S / 2)
                    if is_ours(one):
                        one.sendall(self._take_message(read_all(one)))
                except (OSError, ValueError, KeyError, TypeError) as error:
                    _log.debug("a rank did not hand its pulse in: %s", error)

    def _take_message(self, text: bytes) -> bytes:
        message = json.loads(text)
        now_s = time.monotonic()
        rows = [Row(*row) for row in message["rows"]]
        beats = [Beat(*beat) for beat in message["beats"]]
        with self._lock:
            self._state.held.append(
                Held(now_s, rows, beats, dict(message["files"]), list(message["readings"]))
            )
            self._forget(now_s)
            self._standing.heard(int(message["rank"]), int(message["pid"]), now_s)
            told = self._state.told.document(int(message["rank"]), self._where.rank)
            return json.dumps(told).encode()

    def _send(self) -> None:
        """Send what is held; what may be sent later is held on."""
        held = self._taken()
        rows = [row for one in held for row in one.rows]
        # Of each rank the last beat says all that those before it did.
        beats = list({beat.rank: beat for one in held for beat in one.beats}.values())
        files = files_of(held)
        readings = [reading for one in held for reading in one.readings]
        if self._files_asked:
            with self._lock:
                files |= self._standing.silent(time.monotonic(), self._every_s)
        left = self._give_up_at_s - time.monotonic()
        policy = RetryPolicy(
            give_up_after_s=0.0, timeout_s=min(_TIMEOUT_S, max(_LEAST_TIMEOUT_S, left))
        )
        where = self._where
        sent = 0
        try:
            attempt = ATTEMPTS.number(where.server, where.job, where.run, policy)
            url = f"{job_url(where.server, where.job)}/attempts/{attempt}/pulse"
            while sent < max(1, len(rows)):
                part = rows[sent : sent + _ROWS_OF_BODY]
                said = Said(world=where.world) if sent else Said(files, readings, where.world)
                body = body_of(where.host, part, () if sent else beats, said)
                answer = send_pulse(url, body, policy.timeout_s)
                self.counts.sent += len(part)
                self.counts.bytes += len(body)
                sent += max(1, len(part))
                self._take_told(answer)
        except DeliveryError as error:
            self._not_sent(error, held, sent, beats)

    def _not_sent(
        self, error: DeliveryError, held: list[Held], sent: int, beats: list[Beat]
    ) -> None:
        if error.status in _NO_PULSE:
            self._warn("the server takes no pulse, so that none is sent: %s", error)
            with self._lock:
                self._state.told.stop = True
            self._take_answer(stop=True, pulse_s=None)
        elif error.fate is Fate.AGAIN:
            _log.info("a pulse was not sent: %s", error)
            if not self._closing.is_set():
                with self._lock:
                    self._state.held = without(held, sent, beats) + self._state.held
                    self._forget(time.monotonic())
                return
        else:
            self._warn("a pulse was not sent: %s", error)
        self.counts.dropped += max(0, sum(len(one.rows) for one in held) - sent)

    def _warn(self, message: str, error: DeliveryError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(message, error)

    def _take_told(self, answer: dict[str, Any]) -> None:
        """Take the server's answer."""
        pulse_s = answer.get("pulse_s")
        pulse_s = float(pulse_s) if isinstance(pulse_s, int | float) else None
        record = Asked.read(answer.get("record"))
        self._files_asked = bool(answer.get("files"))
        with self._lock:
            self._state.told.pulse_s = pulse_s
            self._state.told.files = self._files_asked
            if record is not None and self._where.rank != 0:
                self._state.told.record = record
        self._take_answer(stop=False, pulse_s=pulse_s)
        if record is not None and self._where.rank == 0:
            self._hear(record)

    def _take_answer(self, stop: bool, pulse_s: float | None) -> None:  # noqa: FBT001 - of a document
        if stop:
            self.wanted = False
        elif pulse_s is not None and not self._told_by_environment:
            self._every_s = _bounded(pulse_s, _EVERY_S)


def _bounded(given: str | float | None, otherwise: float) -> float:
    """Return seconds between two bodies."""
    try:
        seconds = otherwise if given is None else float(given)
    except ValueError:
        _log.warning("%s=%s is no number of seconds", EVERY, given)
        return otherwise
    if not math.isfinite(seconds):
        return otherwise
    return min(_LONGEST_EVERY_S, max(_LEAST_EVERY_S, seconds))
