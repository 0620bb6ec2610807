"""XLA instructions of an XProf trace, their kinds, and the collected events of each device.

Events of a TPU have the instruction's text as their name, ``%all-reduce.5 = f32[8]{0}
all-reduce(f32[8]{0} %p), replica_groups={{0,1},{2,3}}``; events of other devices have the
instruction's name, ``all-reduce.5``, or the name of an NCCL kernel. An asynchronous collective
consists of two instructions, ``-start`` and ``-done``.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from app.analysis.trace.limits import MAX_TIME_NS, Limits, refuse
from app.analysis.trace.recordings.profiler.scan import collective_of
from app.errors import BodyTooLargeError, Fault


class Part(Enum):
    """Part of a collective that an instruction performs: the whole, its start or its end."""

    WHOLE = auto()
    START = auto()
    DONE = auto()


_PARTS: Final = {None: Part.WHOLE, "-start": Part.START, "-done": Part.DONE}


@dataclass(frozen=True, slots=True)
class Groups:
    """Device groups of a collective, parsed from the instruction's text."""

    size: int  # number of devices of a group
    devices: int  # number of devices of all groups
    contiguous: bool  # devices of a group have consecutive numbers


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction that is a collective or part of a collective."""

    kind: str  # ``all-reduce``
    part: Part = Part.WHOLE
    name: str = ""  # instruction name: ``all-reduce-start.5``
    started: str | None = None  # name of the ``-start`` that this ``-done`` ends
    groups: Groups | None = None  # None if not recorded or if all devices are one group


_KINDS: Final = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "ragged-all-to-all",
    "all-to-all",
    "collective-broadcast",
)
# Name of a collective in XLA → its kind; longest names first, so that prefixes do not match early.
# XLA calls an all-reduce fused with a slice "all-reduce-scatter".
_NAMES: Final = {"all-reduce-scatter": "reduce-scatter", **{kind: kind for kind in _KINDS}}
_ANY: Final = "|".join(_NAMES)
_NAME: Final = re.compile(rf"%?(({_ANY})(-start|-done)?(?:[._][\w.-]{{0,200}})?)(?=$|\s)")
_TEXT: Final = re.compile(r"%?([\w.-]{1,200}) = ")
# Matches the opcode, which follows the result type; a parenthesis of the type never follows a
# lower-case name.
_OPCODE: Final = re.compile(rf" (?:({_ANY})(-start|-done)?|[a-z][a-z0-9-]{{0,60}})\(")
# Opcodes that may wrap a collective; then only the instruction's name tells the kind of collective.
_WRAPPERS: Final = (" fusion(", " custom-call(", " call(")
_LONGEST_TYPE: Final = 20_000
_STARTED: Final = re.compile(r"-done\(.{0,4000}?%([\w.-]{1,200})")
_NCCL: Final = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "sendrecv": "collective-permute",
    "alltoall": "all-to-all",
    "broadcast": "collective-broadcast",
}
_LISTED: Final = re.compile(
    r"replica_groups=\{\{([0-9, ]{1,4000})\}((?:,\{[0-9, ]{1,4000}\}){0,100000})\}"
)
_IOTA: Final = re.compile(r"replica_groups=\[([0-9]{1,7}),([0-9]{1,7})\]<=\[([0-9, ]{1,60})\](T?)")
# Beginnings of the names of memory copies, which do not count as computations.
_COPIES: Final = ("Memcpy", "Memset", "MemcpyD2H", "copy-start", "copy-done")


def collective_in(text: str) -> Instruction | None:
    """Return the collective in the name of an event; None for other events.

    Examples
    --------
    >>> collective_in("all-reduce.5").kind
    'all-reduce'
    >>> collective_in("%all-gather-done.1 = f32[8] all-gather-done((f32[4]) %start.1)").started
    'start.1'
    >>> collective_in("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)").kind
    'all-reduce'
    >>> collective_in("loop_all_fusion.3") is None
    True
    """
    name, kind, part = _name_and_kind(text)
    if kind is None:
        kernel = collective_of(text)
        nccl_kind = None if kernel is None else _NCCL.get(kernel)
        return None if nccl_kind is None else Instruction(nccl_kind)
    started = _STARTED.search(text) if part is Part.DONE else None
    return Instruction(kind, part, name, None if started is None else started[1], _groups(text))


def _name_and_kind(text: str) -> tuple[str, str | None, Part]:
    """Return an instruction's name, the kind of its collective, and the part that it performs.

    The kind is None if the instruction is not a collective.
    """
    assigned = _TEXT.match(text)
    opcode = None if assigned is None else _OPCODE.search(text, assigned.end() - 1, _LONGEST_TYPE)
    if assigned is not None and opcode is not None and opcode[1]:
        return assigned[1], _NAMES[opcode[1]], _PARTS[opcode[2]]
    if opcode is not None and opcode[0] not in _WRAPPERS:
        return "", None, Part.WHOLE
    named = _NAME.match(text)
    if named is None:
        return "", None, Part.WHOLE
    return named[1], _NAMES[named[2]], _PARTS[named[3]]


def is_copy(text: str) -> bool:
    """Return whether an event only copies memory within one device."""
    return text.removeprefix("%").startswith(_COPIES)


def _groups(text: str) -> Groups | None:
    """Return the replica groups in an instruction's text, in list or iota form."""
    iota = _IOTA.search(text)
    if iota is not None:
        count, size = int(iota[1]), int(iota[2])
        return Groups(size, count * size, not iota[4]) if count > 1 else None
    listed = _LISTED.search(text)
    if listed is None:
        return None
    first = [int(number) for number in listed[1].split(",") if number.strip()]
    others = [number for number in listed[2].replace("{", "").split(",") if number.strip("} ")]
    if not others or not first:
        return None
    contiguous = first == list(range(first[0], first[0] + len(first)))
    return Groups(len(first), len(first) + len(others), contiguous)


COMPUTES: Final = -1
COPIES: Final = -2
# Maximum number of devices of one file.
_MAX_DEVICES: Final = 4096
_MAX_STEPS: Final = 100_000
_MAX_NAMES: Final = 1_000_000
_NO_RUN: Final = 0


@dataclass(slots=True)
class Device:
    """Events of one device as columns; times in ns."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    # kinds: for each event its index into `Collected.instructions`, or `COMPUTES` or `COPIES`;
    # runs: for each event the number of its program run, `_NO_RUN` if not recorded
    kinds: array[int] = field(default_factory=lambda: array("q"))
    runs: array[int] = field(default_factory=lambda: array("q"))
    steps: list[tuple[int, int]] = field(default_factory=list)  # (start in ns, step number)
    programs: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, name


@dataclass(slots=True)
class Collected:
    """Instructions, steps and program runs of a file; times in ns since `base_ns`."""

    limits: Limits
    base_ns: int = 0
    host: str | None = None
    devices: dict[int, Device] = field(default_factory=dict)
    # Steps that the host annotates, as (start in ns, step number).
    annotated: list[tuple[int, int]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    operations: int = 0
    _kinds: dict[str, int] = field(default_factory=dict)

    def device(self, ordinal: int) -> Device:
        """Return the device with this number; a new device is added.

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
        """Return the kind of an event from its name or instruction text; see `Device.kinds`."""
        kind = self._kinds.get(text)
        if kind is None:
            collective = collective_in(text)
            kind = COPIES if is_copy(text) else COMPUTES
            if collective is not None:
                kind = len(self.instructions)
                self.instructions.append(collective)
            if len(self._kinds) < _MAX_NAMES:
                self._kinds[text] = kind
        return kind

    def add(self, ordinal: int, kind: int, start: int, end: int, run: int | None) -> None:
        """Add an executed instruction to a device.

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
        """Add a step that the host annotated."""
        self.annotated.append((start, number))
        self._check(len(self.annotated))

    def add_step(self, ordinal: int, start: int, number: int) -> None:
        """Add a step that a device recorded."""
        steps = self.device(ordinal).steps
        steps.append((start, number))
        self._check(len(steps))

    def add_program(self, ordinal: int, start: int, end: int, name: str) -> None:
        """Add a run of a program on a device."""
        programs = self.device(ordinal).programs
        programs.append((start, end, name[:200]))
        self._check(len(programs))

    def _check(self, count: int) -> None:
        if count > _MAX_STEPS:
            message = f"the trace has over {_MAX_STEPS} steps or runs of programs"
            raise BodyTooLargeError(message, code="body.too_many_rows")


def checked_time(time_ns: int, event: int) -> int:
    """Return the time unchanged; refuse a time beyond `MAX_TIME_NS`.

    Raises
    ------
    InvalidTraceError
        `trace.time_overflow`.
    """
    if abs(time_ns) > MAX_TIME_NS:
        message = f"a time of event {event} is beyond all times"
        refuse([Fault("time_overflow", message, row=event)])
    return time_ns
