"""What is kept of a trace of XProf: instructions of devices, steps, and runs of programs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from app.analysis.trace.faults import refuse
from app.analysis.trace.limits import MAX_TIME_NS, Limits
from app.analysis.trace.recordings.xprof.instructions import Instruction, collective_in, is_copy
from app.errors import BodyTooLargeError, Fault

COMPUTES: Final = -1
COPIES: Final = -2
# Ordinals of devices of one host; ranks of processes may be apart by thousands.
_MAX_DEVICES: Final = 4096
_MAX_STEPS: Final = 100_000
_MAX_NAMES: Final = 1_000_000
_NO_RUN: Final = 0


@dataclass(slots=True)
class Device:
    """What one device did; times in ns."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    # Of each: index into `Collected.instructions`, `COMPUTES` or `COPIES`; and which run of a
    # program it is part of, `_NO_RUN` where that is not said.
    kinds: array[int] = field(default_factory=lambda: array("q"))
    runs: array[int] = field(default_factory=lambda: array("q"))
    steps: list[tuple[int, int]] = field(default_factory=list)  # start, number
    programs: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, name


@dataclass(slots=True)
class Collected:
    """What is kept of one file; times count from `base_ns`."""

    limits: Limits
    base_ns: int = 0
    host: str | None = None
    devices: dict[int, Device] = field(default_factory=dict)
    # Steps as the host annotates them: start, number.
    annotated: list[tuple[int, int]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    operations: int = 0
    _kinds: dict[str, int] = field(default_factory=dict)

    def device(self, ordinal: int) -> Device:
        """Return a device, which may be new.

        Raises
        ------
        BodyTooLargeError
            `body.too_many_rows`.
        """
        if ordinal not in self.devices and len(self.devices) >= _MAX_DEVICES:
            message = f"there are over {_MAX_DEVICES} devices"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        return self.devices.setdefault(ordinal, Device())

    def kind_of(self, text: str) -> int:
        """Return what an event with this name or text does, as `Device.kinds` has it."""
        kind = self._kinds.get(text)
        if kind is None:
            found = collective_in(text)
            kind = COPIES if is_copy(text) else COMPUTES
            if found is not None:
                kind = len(self.instructions)
                self.instructions.append(found)
            if len(self._kinds) < _MAX_NAMES:
                self._kinds[text] = kind
        return kind

    def add(self, ordinal: int, kind: int, start: int, end: int, run: int | None) -> None:
        """Take an instruction that a device ran.

        Raises
        ------
        BodyTooLargeError
            `body.too_many_rows`.
        """
        self.operations += 1
        if self.operations > self.limits.max_rows:
            message = f"the trace has over {self.limits.max_rows} instructions"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        device = self.device(ordinal)
        device.starts.append(start)
        device.ends.append(end)
        device.kinds.append(kind)
        device.runs.append(_NO_RUN if run is None else run)

    def annotate(self, start: int, number: int) -> None:
        """Take a step that the host annotates."""
        self.annotated.append((start, number))
        self._check(len(self.annotated))

    def add_step(self, ordinal: int, start: int, number: int) -> None:
        """Take a step of a device."""
        steps = self.device(ordinal).steps
        steps.append((start, number))
        self._check(len(steps))

    def add_program(self, ordinal: int, start: int, end: int, name: str) -> None:
        """Take a run of a program on a device."""
        programs = self.device(ordinal).programs
        programs.append((start, end, name[:200]))
        self._check(len(programs))

    def _check(self, count: int) -> None:
        if count > _MAX_STEPS:
            message = f"the trace has over {_MAX_STEPS} steps or runs of programs"
            raise BodyTooLargeError(message, code="body.too_many_rows")


def checked_time(time_ns: int, event: int) -> int:
    """Return a time that can be computed with.

    Raises
    ------
    InvalidTraceError
        `trace.time_overflow`.
    """
    if abs(time_ns) > MAX_TIME_NS:
        message = f"a time of event {event} is beyond all times"
        refuse([Fault("time_overflow", message, row=event)])
    return time_ns
