"""``*.xplane.pb``: what XProf writes of one host, read twice in bounded memory.

A plane has its lines before the names that their events refer to, and one may have gigabytes. So
names come first, and events in a second pass, one in memory at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from app.analysis.trace.faults import refuse, refuse_body
from app.analysis.trace.limits import MAX_STEP, MIB, Limits
from app.analysis.trace.ndjson.streams import read_text
from app.analysis.trace.recordings.protobuf import BYTES, Field, Wire
from app.analysis.trace.recordings.xprof import messages
from app.analysis.trace.recordings.xprof.collected import Collected, checked_time
from app.errors import BodyTooLargeError, Fault

DEVICE: Final = re.compile(r"/device:(?!CUSTOM)[A-Z]\w{0,20}:([0-9]{1,9})")
HOST: Final = "/host:CPU"
STEPS: Final = "Steps"
PROGRAMS: Final = "XLA Modules"
INSTRUCTIONS: Final = "XLA Ops"
STREAM: Final = "Stream #"
# Plane of what the profiler itself was asked for.
_TASK: Final = "Task Environment"
_STARTED: Final = "profile_start_time"
_STEP_NUMBER: Final = "step_num"
_INSTRUCTION: Final = "hlo_op"
_RUN: Final = "run_id"
_ORDINAL: Final = "device_ordinal"
_STATS: Final = frozenset({_STARTED, _STEP_NUMBER, _INSTRUCTION, _RUN, _ORDINAL})

T = TypeVar("T")

_PS_PER_NS: Final = 1000
# Of a name that is kept.
_SHOWN: Final = 200
_MAX_DIGITS: Final = 16
# The text of an instruction with thousands of operands.
_MAX_MESSAGE_BYTES: Final = 4 * MIB
_MAX_NAMES: Final = 1_000_000
_MAX_LINES: Final = 100_000


@dataclass(slots=True)
class _Line:
    name: str = ""
    timestamp_ns: int = 0


@dataclass(slots=True)
class _Plane:
    """A plane without its events."""

    name: str = ""
    lines: list[_Line] = field(default_factory=list)
    kinds: dict[int, int] = field(default_factory=dict)  # of events, as `Collected.kind_of`
    names: dict[int, str] = field(default_factory=dict)  # of events, their first characters
    stats: dict[int, str] = field(default_factory=dict)  # names of those that are read
    started_ns: int = 0

    @property
    def ordinal(self) -> int | None:
        """Return the number of the device, None of other planes."""
        found = DEVICE.fullmatch(self.name)
        return None if found is None else int(found[1])

    @property
    def read(self) -> bool:
        """Return whether anything of it is read."""
        return self.ordinal is not None or self.name in (HOST, _TASK)


def read_xplane(body: Path | bytes, limits: Limits) -> Collected:
    """Read a file of XProf.

    Raises
    ------
    InvalidTraceError
        `trace.corrupt`, `trace.truncated`, `trace.item_too_long`, `trace.time_overflow`.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    found = Collected(limits)
    planes = _planes(body, limits, found)
    found.base_ns = max((plane.started_ns for plane in planes), default=0)
    wire = Wire(read_text(body, limits))
    number = 0
    for part in wire.fields():
        if part.number == messages.SPACE_PLANES and part.kind == BYTES:
            _take_events(wire, part, planes[number], found)
            number += 1
    return found


def _planes(body: Path | bytes, limits: Limits, found: Collected) -> list[_Plane]:
    wire = Wire(read_text(body, limits))
    planes: list[_Plane] = []
    for part in wire.fields():
        if part.kind != BYTES:
            continue
        if part.number == messages.SPACE_PLANES:
            planes.append(_plane(wire, part, found))
            if len(planes) > _MAX_LINES:
                raise BodyTooLargeError("there are too many planes", code="body.too_many_rows")
        elif part.number == messages.SPACE_HOSTNAMES:
            found.host = found.host or _text(wire, part)
    return planes


def _plane(wire: Wire, plane: Field, found: Collected) -> _Plane:
    """Return a plane's names and lines, without its events."""
    made = _Plane()
    stats: list[messages.XStat] = []
    for part in wire.fields(plane.size):
        if part.number == messages.PLANE_NAME and part.kind == BYTES:
            made.name = _text(wire, part)
            if not made.read:
                # The rest of it is stepped over.
                return made
        elif part.number == messages.PLANE_STATS and part.kind == BYTES:
            stats.append(_taken(messages.parse_stat, wire, part))
        elif part.kind == BYTES:
            _take_names(wire, part, made, found)
        if len(made.kinds) > _MAX_NAMES or len(made.lines) > _MAX_LINES:
            raise BodyTooLargeError("a plane has too many names", code="body.too_many_rows")
    for stat in stats:
        if made.stats.get(stat.metadata_id) == _STARTED:
            made.started_ns = checked_time(_number(stat) or 0, 0)
    return made


def _take_names(wire: Wire, part: Field, made: _Plane, found: Collected) -> None:
    if part.number == messages.PLANE_LINES:
        made.lines.append(_line(wire, part))
    elif part.number == messages.PLANE_EVENT_METADATA:
        metadata = _entry(wire, part)
        made.kinds[metadata.id] = found.kind_of(metadata.name)
        made.names[metadata.id] = metadata.name[:_SHOWN]
    elif part.number == messages.PLANE_STAT_METADATA:
        metadata = _entry(wire, part)
        if metadata.name in _STATS:
            made.stats[metadata.id] = metadata.name


def _line(wire: Wire, line: Field) -> _Line:
    made = _Line()
    for place, stretch in _stretches(wire, line):
        head = _parsed(messages.parse_line_head, stretch, place)
        made.name = made.name or head.name[:_SHOWN]
        made.timestamp_ns = made.timestamp_ns or head.timestamp_ns
    return made


def _stretches(wire: Wire, line: Field) -> Iterator[tuple[int, bytes]]:
    """Yield some fields of a line at a time, and where they stand."""
    for stretch in wire.stretches(line.size, _MAX_MESSAGE_BYTES):
        yield wire.place - len(stretch), stretch


def _take_events(wire: Wire, plane: Field, made: _Plane, found: Collected) -> None:
    streams = any(line.name.startswith(STREAM) for line in made.lines)
    number = 0
    for part in wire.fields(plane.size):
        if not made.read:
            return
        if part.number != messages.PLANE_LINES or part.kind != BYTES:
            continue
        line = made.lines[number]
        number += 1
        ops = line.name.startswith(STREAM) if streams else line.name == INSTRUCTIONS
        if made.ordinal is not None and not (ops or line.name in (STEPS, PROGRAMS)):
            continue
        base_ns = line.timestamp_ns
        if base_ns >= found.base_ns > 0:
            # Not yet counted from when the profile began.
            base_ns -= found.base_ns
        for place, stretch in _stretches(wire, part):
            for event in _parsed(messages.parse_line, stretch, place).events:
                if not event.num_occurrences:
                    _take(event, made, line.name, base_ns, found)


def _take(event: messages.XEvent, plane: _Plane, line: str, base_ns: int, found: Collected) -> None:
    start = checked_time(base_ns + _nanoseconds(event.offset_ps), event.metadata_id)
    end = base_ns + _nanoseconds(event.offset_ps + event.duration_ps)
    end = checked_time(end, event.metadata_id)
    ordinal = plane.ordinal
    if ordinal is None:
        _take_of_host(event, plane, start, end, found)
    elif line == STEPS:
        name = plane.names.get(event.metadata_id, "")
        if name.isascii() and name.isdecimal() and len(name) < _MAX_DIGITS:
            found.add_step(ordinal, start, int(name))
    elif line == PROGRAMS:
        found.add_program(ordinal, start, end, plane.names.get(event.metadata_id, ""))
    else:
        kind = plane.kinds.get(event.metadata_id)
        if kind is not None:
            found.add(ordinal, kind, start, end, None)


def _take_of_host(
    event: messages.XEvent, plane: _Plane, start: int, end: int, found: Collected
) -> None:
    """Take a step's annotation, or an instruction that a processor ran as a device."""
    said = {
        plane.stats[stat.metadata_id]: stat
        for stat in event.stats
        if stat.metadata_id in plane.stats
    }
    if _STEP_NUMBER in said:
        number = _number(said[_STEP_NUMBER])
        if number is not None and 0 <= number <= MAX_STEP:
            found.annotate(start, number)
    elif _INSTRUCTION in said and _ORDINAL in said:
        ordinal = _number(said[_ORDINAL])
        kind = plane.kinds.get(event.metadata_id)
        run = _number(said[_RUN]) if _RUN in said else None
        if ordinal is not None and kind is not None and ordinal >= 0:
            found.add(ordinal, kind, start, end, run)


def _number(stat: messages.XStat) -> int | None:
    """Return a stat's number of 64 bits with a sign, None where it is none."""
    kind = stat.WhichOneof("value")
    if kind == "int64_value":
        return stat.int64_value
    if kind != "uint64_value":
        return None
    value = stat.uint64_value
    return value - (1 << 64) if value >= 1 << 63 else value


def _nanoseconds(picoseconds: int) -> int:
    return (picoseconds + _PS_PER_NS // 2) // _PS_PER_NS


def _entry(wire: Wire, entry: Field) -> messages.Metadata:
    """Return the value of an entry of a map of metadata."""
    found: messages.Metadata | None = None
    for part in wire.fields(entry.size):
        if part.number == messages.MAP_VALUE and part.kind == BYTES:
            found = _taken(messages.parse_metadata, wire, part)
    return found or messages.parse_metadata(b"")


def _text(wire: Wire, part: Field) -> str:
    if part.size > _SHOWN * 4:
        return ""
    return wire.take(part.size).decode("utf-8", "replace")


def _taken(parse: Callable[[bytes], T], wire: Wire, part: Field) -> T:
    if part.size > _MAX_MESSAGE_BYTES:
        message = f"a message at byte {wire.place} is over {_MAX_MESSAGE_BYTES} bytes"
        refuse([Fault("item_too_long", message)])
    place = wire.place
    return _parsed(parse, wire.take(part.size), place)


def _parsed(parse: Callable[[bytes], T], message: bytes, place: int) -> T:
    try:
        return parse(message)
    except DecodeError as error:
        refuse_body("corrupt", f"the message at byte {place} is none of XProf's: {error}")
