"""The pulse of a rank: the tap's second sink, its beats, and sessions that the server asks for."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from paceline_client.pulse.budget import RecordBudget, Requests
from paceline_client.pulse.hardware import Hardware
from paceline_client.pulse.holding import Asked, Counts
from paceline_client.pulse.rows import Beat
from paceline_client.pulse.sending import Destination, Pulse
from paceline_client.torch.layout import Layout
from paceline_client.torch.standstill import pending_collectives, training_stack
from paceline_client.torch.steps import Steps
from paceline_client.torch.tap import Tap

_log = logging.getLogger("paceline_client")

RecordWhen = Literal["auto", "ask"] | RecordBudget

# Of a step on a GPU; each operation has two.
_MOST_EVENTS: Final = 64
# Clocks of device and host are compared anew.
_STEPS_A_CLOCK: Final = 128
_FINISHED: Final = "finished"


class RankPulse:
    """Sums each step of a rank to a row, and has a thread send these.

    `hardware` reads its GPU. `record` says whether the server may ask for sessions: within a budget
    (``"auto"`` is the usual one), or not at all (``"ask"``). With `stacks` it says, while no step
    ends and the server asks, which lines the thread that trains is in, and what PyTorch's recorder
    holds as pending.
    """

    def __init__(  # noqa: PLR0913 - the parts of a rank
        self,
        tap: Tap,
        where: Destination,
        layout: Layout,
        record: RecordWhen,
        *,
        stacks: bool = True,
        hardware: Hardware | None = None,
    ) -> None:
        self._tap = tap
        self._hardware = hardware
        self._place = where.rank, layout.dp_rank, layout.pp_rank
        self._thread = threading.get_ident()
        self._pulse = Pulse(
            where, self._beat, self._hear, self._say if stacks else None, self._read
        )
        self._steps = Steps(where.rank, layout, self._pulse.add)
        self._requests = None if record == "ask" else Requests(_budget(record))
        self._ask: Callable[[int], bool] = lambda _: False

    @property
    def wanted(self) -> bool:
        """Whether the server takes pulses, as far as it is known."""
        return self._pulse.wanted

    @property
    def counts(self) -> Counts:
        """The rows by their fate."""
        return self._pulse.counts

    def start(self, ask: Callable[[int], bool]) -> None:
        """Start; `ask` is called on another thread with the steps of a session to record."""
        self._ask = ask
        self._tap.pulse = self._steps
        self._pulse.start()

    def end_step(self, tokens: int | None) -> None:
        """End the current step."""
        tap = self._tap
        self._thread = threading.get_ident()
        skipped, tap.skipped = tap.skipped, {}
        known, tap.tokens = tap.tokens, 0
        told = int(known if tokens is None else tokens)
        ended = partial(self._steps.end, tap.step, told, skipped)
        operations = tap.end_step(ended)
        if tap.sink is not None:
            return
        if operations:
            self._sample(2 * operations)
        if tap.step % _STEPS_A_CLOCK == 0:
            tap.timeline.begin()

    def _sample(self, events: int) -> None:
        """Choose how many microbatches are measured, so that a step has few events."""
        tap = self._tap
        whole = events * tap.every
        every = max(1, math.ceil(whole / _MOST_EVENTS))
        # A little less than before is no reason to change.
        if every > tap.every or 2 * every <= tap.every:
            tap.every = every

    def end(self, give_up_at_s: float, *, finished: bool) -> None:
        """Begin to send the rest, and, if the job has `finished`, that it has."""
        self._tap.pulse = None
        self._pulse.end(give_up_at_s, finished=finished)

    def wait(self, give_up_at_s: float) -> None:
        """Wait until that is sent."""
        self._pulse.wait(give_up_at_s)

    def forked(self) -> None:
        """Stop in a forked child."""
        self._tap.pulse = None
        self._pulse.forked()

    def _beat(self, finished: bool) -> Beat | None:  # noqa: FBT001 - called by the thread
        tap = self._tap
        now_ns, phase = time.time_ns(), tap.phase
        if finished:
            phase = _FINISHED, time.monotonic_ns()
        if phase is None:
            return None
        since_ns = now_ns - max(0, time.monotonic_ns() - phase[1])
        return Beat(tap.step, *self._place, now_ns, phase[0], since_ns)

    def _read(self) -> dict[str, Any] | None:
        hardware = self._hardware
        reading = None if hardware is None else hardware.take(time.monotonic())
        return None if reading is None else reading.document(self._place[0])

    def _say(self) -> dict[str, str]:
        rank = self._place[0]
        said = {f"stack_{rank}.json": training_stack(self._thread).decode()}
        pending = pending_collectives()
        if pending is not None:
            said[f"_dump_{rank}.json"] = pending.decode()
        return said

    def _hear(self, asked: Asked) -> None:
        requests, now_s, reason = self._requests, time.monotonic(), asked.reason
        if requests is None:
            _log.info("the server asks for a session (%s); this job does not record for it", reason)
            return
        # What a person asks for does not count in the budget.
        if not asked.by_person and not requests.has_room(self._tap.step, now_s):
            _log.info("the server asks for a session (%s) beyond the budget of this job", reason)
        elif self._ask(asked.steps):
            if not asked.by_person:
                requests.count(asked.steps, now_s)
            _log.info("recording %d steps: %s", asked.steps, reason)


def _budget(record: RecordWhen) -> RecordBudget:
    if isinstance(record, RecordBudget):
        return record
    if record != "auto":
        message = f'record must be "auto", "ask" or a RecordBudget, not {record!r}'
        raise ValueError(message)
    return RecordBudget()
