"""The choice of the steps to record, and a session of one rank."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from paceline_client.delivery import RetryPolicy, Share, attempt_number
from paceline_client.environment import Run
from paceline_client.exchange import DeliveryError
from paceline_client.recorder import Recorder
from paceline_client.spool import Spool
from paceline_client.torch.instrumentation.base import Level
from paceline_client.torch.layout import Layout
from paceline_client.torch.tap import GRADIENTS, PARAMETERS, Timeline

_log = logging.getLogger("paceline_client")

_UNITS_S: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_MINUTE_S: Final = 60.0

# Time in seconds between the choice of a window and its begin, within which all ranks must receive
# it although their steps drift apart.
_LEAD_S: Final = 1.0
_LEAD_STEPS: Final = 2
# Number of first steps that are not recorded: they compile and connect, and afterwards the step
# time is known.
_FIRST_STEPS: Final = 3
# Minimum number of steps of a session, below which the server's verdict has no confidence interval;
# only explicit requests may be shorter.
_LEAST_STEPS: Final = 5
# Time limit in seconds for work that the job never waits for, such as transfers whose peer has
# ended.
_SETTLE_S: Final = 30.0
# Interval in seconds at which a rank sends its operations; a job of a thousand ranks then makes 16
# requests a second.
_CHUNK_EVERY_S: Final = 10.0
_RANKS_A_SECOND: Final = 20
# If a session contains neither type, waiting for other ranks cannot be distinguished from
# computing.
_COLLECTIVES: Final = frozenset({PARAMETERS, GRADIENTS})


@dataclass(frozen=True)
class Window:
    """The steps to record in a session."""

    start: int
    steps: int
    # Whether every rank records, with tensor-, context- and expert-parallel collectives
    every_rank: bool = False

    @property
    def end(self) -> int:
        """The step after the last step of the window."""
        return self.start + self.steps

    @property
    def session(self) -> int:
        """The number of the session: the first step of its window, counted from 1."""
        return self.start + 1

    def text(self) -> str:
        """Return the window as text for other ranks, which may have version 0.2.0 of this client.

        That version reads two numbers, so windows of every rank alone have a third item.
        """
        return json.dumps([self.start, self.steps, *([True] if self.every_rank else ())])

    @staticmethod
    def read(text: str | bytes) -> Window:
        """Return the window that `text` describes."""
        start, steps, *every_rank = json.loads(text)
        return Window(int(start), int(steps), every_rank == [True])


def seconds(time: str | float | None, argument: str = "every") -> float | None:
    """Return the seconds in a duration such as ``"30min"``, ``"2h"`` or a number; None for None.

    Raises `ValueError` for anything else, with the name of the `argument`.
    """
    if time is None:
        return None
    if isinstance(time, str):
        match = _TIME.fullmatch(time.lower())
        if match is None or match[2] not in _UNITS_S:
            message = f'{argument} must be a time such as "30min" or "2h", not {time!r}'
            raise ValueError(message)
        time = float(match[1]) * _UNITS_S[match[2]]
    if not (math.isfinite(time) and time > 0):
        message = f"{argument} must be above zero, not {time!r}"
        raise ValueError(message)
    return float(time)


class Sampling:
    """Decides on global rank 0 when the next window begins.

    `every_s` is the time between the starts of two windows, or None to record on request only.
    A periodic window has `steps` steps, or fewer where these would take longer than `longest_s`.
    In the `warmup` steps before a window the hooks run and operations are discarded. All ranks
    read a message of rank 0 within `message_delay_s`.
    """

    def __init__(
        self,
        every_s: float | None,
        steps: int,
        warmup: int,
        message_delay_s: float = 0.0,
        longest_s: float | None = None,
    ) -> None:
        if steps < 1 or warmup < 0:
            message = f"steps must be at least 1 and warmup at least 0, not {steps} and {warmup}"
            raise ValueError(message)
        self.steps = steps
        self.warmup = warmup
        self.every_s = every_s
        self._longest_s = math.inf if longest_s is None else longest_s
        self._lead_s = max(_LEAD_S, message_delay_s)
        self._due_s: float | None = None
        self._requested: tuple[int, bool] | None = None  # steps, whether every rank records
        self._step_starts_s: list[float] = []

    def request(self, steps: int, *, every_rank: bool = False) -> None:
        """Request a window of `steps` steps that begins as soon as possible."""
        self._requested = steps, every_rank

    def decide(self, step: int, now_s: float) -> Window | None:
        """Return the next window if it is due at the start of `step`; `now_s` is monotonic."""
        self._step_starts_s = [*self._step_starts_s, now_s][-_FIRST_STEPS - 1 :]
        if len(self._step_starts_s) <= _FIRST_STEPS:
            return None
        requested, self._requested = self._requested, None
        if requested is None:
            if self.every_s is None or (self._due_s is not None and now_s < self._due_s):
                return None
            self._due_s = now_s + self.every_s
        starts_s = self._step_starts_s
        step_time_s = max((starts_s[-1] - starts_s[0]) / _FIRST_STEPS, 1e-6)
        if requested is not None:
            steps, every_rank = requested
        else:
            steps, every_rank = self.steps, False
            if steps * step_time_s > self._longest_s:
                steps = min(steps, max(_LEAST_STEPS, int(self._longest_s / step_time_s)))
        lead = max(_LEAD_STEPS, math.ceil(self._lead_s / step_time_s))
        return Window(step + lead + self.warmup, steps, every_rank)


@dataclass(frozen=True)
class Sender:
    """The destination of a rank's shares, and the data that all its shares have in common."""

    server: str
    job: str
    run: Run
    rank: int
    layout: Layout
    meta: dict[str, Any]  # of every session; a session adds to it
    spool: Spool
    hand_over: bool
    retry: RetryPolicy
    buffer_operations: int
    level: Level

    @property
    def page(self) -> str:
        """The address of the job's page."""
        return f"{self.server.rstrip('/')}/jobs/{quote(self.job, safe='')}"

    def announce(self, window: Window, every_s: float | None) -> None:
        """Print which steps are recorded and, on a thread, whether the server is available.

        Called once, on rank 0.
        """
        if every_s is None:
            then = "on request"
        elif every_s >= _MINUTE_S and every_s % _MINUTE_S == 0:
            then = f"every {every_s / _MINUTE_S:g} min"
        else:
            then = f"every {every_s:g} s"
        _print(
            f"attached to job {self.job}: records steps {window.start} to {window.end - 1}, then "
            f"{then}; {self.page}"
        )
        threading.Thread(
            target=self._check_server, name="paceline-server-check", daemon=True
        ).start()

    def _check_server(self) -> None:
        try:
            attempt_number(
                self.server, self.job, self.run, replace(self.retry, give_up_after_s=0.0)
            )
        except DeliveryError as error:
            advice = "correct that" if error.permanent else "they are sent once it answers"
            _print(f"recordings wait in {self.spool.directory}, {advice}: {error}")
        except Exception:  # noqa: BLE001 - the training continues
            _log.debug("the server was not checked", exc_info=True)

    def warn_without_collectives(self, window: Window, op_types: Collection[str]) -> None:
        """Print a warning on rank 0 if a session of data-parallel ranks contains no collectives."""
        expected = self.layout.dp > 1 and self.level >= Level.P2P
        if self.rank == 0 and expected and _COLLECTIVES.isdisjoint(op_types):
            _print(
                f"no data-parallel collective was seen in steps {window.start} to "
                f"{window.end - 1}, so that waiting cannot be told from computing: pass the "
                "wrapped model to attach(model=…), or the process group of the data-parallel "
                'ranks as attach(groups={"dp": group})'
            )


def producers(world: int) -> list[str]:
    """Return the names of the senders of a session that every rank records."""
    return [f"rank-{rank}" for rank in range(world)]


def _print(line: str) -> None:
    # Printed instead of logged, because the logging configuration may hide it: the job's output
    # should show where the job is recorded.
    print(f"paceline: {line}", file=sys.stderr, flush=True)  # noqa: T201 - one line a job


@dataclass
class Session:
    """The recording of a window on this rank."""

    window: Window
    sender: Sender
    timeline: Timeline
    recorder: Recorder = field(init=False)
    # Set once all operations have reached the recorder and it has finished
    finished: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        sender, meta = self.sender, self.sender.meta
        if self.window.every_rank:
            by = {**meta.get("recorded_by", {}), "level": Level.ALL.name.lower()}
            meta = {**meta, "producers": producers(sender.layout.world), "recorded_by": by}
        self.recorder = Recorder(
            sender.server,
            sender.job,
            meta,
            share=Share(self.window.session, f"rank-{sender.rank}", sender.run),
            spool=sender.spool,
            hand_over=sender.hand_over,
            buffer_operations=sender.buffer_operations,
            chunk_every_s=_CHUNK_EVERY_S + sender.layout.world / _RANKS_A_SECOND,
            retry=sender.retry,
        )

    def sink(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self, op: str, start_ns: int, duration_ns: int, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Record an operation of this rank."""
        layout = self.sender.layout
        self.recorder.op(
            self.sender.rank,
            op,
            start_ns,
            duration_ns,
            step=step,
            dp=layout.dp_rank,
            pp=layout.pp_rank,
            mb=mb,
            mc=mc,
            tp=layout.tp_rank if layout.tp > 1 else None,
        )

    def finish(self, *, before: int | None = None) -> None:
        """Send the session in the background, without the incomplete steps from `before` on."""
        if before is not None:
            self.recorder.leave_out(range(before, self.window.end))
        threading.Thread(target=self._finish, name="paceline-session", daemon=True).start()

    def _finish(self) -> None:
        try:
            self.timeline.settle(_SETTLE_S)
            clock = {key: value for key, value in self.timeline.measured().items() if value}
            self.recorder.describe({"clocks": {f"rank-{self.sender.rank}": clock}} if clock else {})
        except Exception:  # noqa: BLE001 - the operations are still sent
            _log.exception("measurements of the clock are left out")
        finally:
            self.sender.warn_without_collectives(self.window, self.recorder.op_types)
            self.recorder.finish()
            self.finished.set()
