"""Reader of XProf files: ``*.xplane.pb`` of a host, and ``trace.json.gz`` for trace viewers.

Planes are read twice in bounded memory, one event at a time, because names follow the lines that
refer to them and a plane may have gigabytes. Messages are declared here with the needed fields only
(https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto), not
in a generated file: the runtime skips unknown fields, so no compiler and no package of gigabytes is
needed. The declarations have their own descriptor pool because TensorFlow registers the same names.
``trace.json.gz`` holds at most a million events (the longest) and no time of day; its processes
correspond to planes, its threads to lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from app.analysis.trace.compression import read_text
from app.analysis.trace.limits import MAX_STEP, MIB, Limits, refuse, refuse_body
from app.analysis.trace.recordings.events import NS_PER_US, Event
from app.analysis.trace.recordings.json_events import read_events
from app.analysis.trace.recordings.protobuf_wire import BYTES, Field, Wire
from app.analysis.trace.recordings.xprof_instructions import Collected, checked_time
from app.errors import BodyTooLargeError, Fault

_INT64: Final = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_UINT64: Final = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64
_TEXT: Final = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_PACKAGE: Final = "paceline.xprof"

# Field ids of messages that are split before the protobuf runtime parses their parts.
SPACE_PLANES: Final = 1
SPACE_HOSTNAMES: Final = 4
PLANE_NAME: Final = 2
PLANE_LINES: Final = 3
PLANE_EVENT_METADATA: Final = 4
PLANE_STAT_METADATA: Final = 5
PLANE_STATS: Final = 6
# Field id of the value in a map entry.
MAP_VALUE: Final = 2


class XStat(Protocol):
    """A named value of an event or plane."""

    metadata_id: int
    uint64_value: int
    int64_value: int
    str_value: str
    ref_value: int

    def WhichOneof(self, oneof: str) -> str | None:  # noqa: N802 - the runtime's name
        """Return the name of the value field that is set."""


class XEvent(Protocol):
    """An event of a line; times in picoseconds."""

    metadata_id: int
    offset_ps: int
    num_occurrences: int
    duration_ps: int

    @property
    def stats(self) -> list[XStat]:
        """Return the named values of the event."""


class XLine(Protocol):
    """Part of a line: either some of its events, or its other fields."""

    name: str
    timestamp_ns: int

    @property
    def events(self) -> list[XEvent]:
        """Return the events of this part of the line."""


class Metadata(Protocol):
    """Name shared by all events or stats with the same metadata id."""

    id: int
    name: str


def _message_classes() -> dict[str, Any]:
    """Return the protobuf classes of the declared messages by message name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="paceline/xprof.proto", package=_PACKAGE, syntax="proto3"
    )
    stat = file.message_type.add(name="XStat")
    stat.oneof_decl.add(name="value")
    _add(stat, "metadata_id", 1, _INT64)
    for name, number, kind in (
        ("uint64_value", 3, _UINT64),
        ("int64_value", 4, _INT64),
        ("str_value", 5, _TEXT),
        ("ref_value", 7, _UINT64),
    ):
        _add(stat, name, number, kind).oneof_index = 0
    event = file.message_type.add(name="XEvent")
    for name, number in (
        ("metadata_id", 1),
        ("offset_ps", 2),
        ("duration_ps", 3),
        ("num_occurrences", 5),
    ):
        _add(event, name, number, _INT64)
    _add_list(event, "stats", 4, "XStat")
    for name in ("XLine", "XLineHead"):
        line = file.message_type.add(name=name)
        _add(line, "name", 2, _TEXT)
        _add(line, "timestamp_ns", 3, _INT64)
        if name == "XLine":
            _add_list(line, "events", 4, "XEvent")
    metadata = file.message_type.add(name="Metadata")
    _add(metadata, "id", 1, _INT64)
    _add(metadata, "name", 2, _TEXT)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[attr-defined, unused-ignore]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("XStat", "XLine", "XLineHead", "Metadata")
    }


def _add(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
) -> descriptor_pb2.FieldDescriptorProto:
    field = message.field.add(name=name, number=number, type=kind)
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    return field


def _add_list(message: descriptor_pb2.DescriptorProto, name: str, number: int, of: str) -> None:
    field = message.field.add(name=name, number=number)
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f".{_PACKAGE}.{of}"


_CLASSES: Final = _message_classes()


def parse_line(message: bytes) -> XLine:
    """Return the line parsed from the bytes of all or some of its fields.

    Raises
    ------
    google.protobuf.message.DecodeError
    """
    return cast("XLine", _CLASSES["XLine"].FromString(message))


def parse_line_head(message: bytes) -> XLine:
    """Return a line parsed without its events; see `parse_line`."""
    return cast("XLine", _CLASSES["XLineHead"].FromString(message))


def parse_stat(message: bytes) -> XStat:
    """Return the stat parsed from its bytes; see `parse_line`."""
    return cast("XStat", _CLASSES["XStat"].FromString(message))


def parse_metadata(message: bytes) -> Metadata:
    """Return the metadata of events or stats parsed from bytes; see `parse_line`."""
    return cast("Metadata", _CLASSES["Metadata"].FromString(message))


DEVICE: Final = re.compile(r"/device:(?!CUSTOM)[A-Z]\w{0,20}:([0-9]{1,9})")
HOST: Final = "/host:CPU"
STEPS: Final = "Steps"
PROGRAMS: Final = "XLA Modules"
INSTRUCTIONS: Final = "XLA Ops"
STREAM: Final = "Stream #"
# Name of the plane that holds the profiler's options.
_TASK: Final = "Task Environment"
_STARTED: Final = "profile_start_time"
_STEP_NUMBER: Final = "step_num"
_INSTRUCTION: Final = "hlo_op"
_RUN: Final = "run_id"
_ORDINAL: Final = "device_ordinal"
_STATS: Final = frozenset({_STARTED, _STEP_NUMBER, _INSTRUCTION, _RUN, _ORDINAL})

T = TypeVar("T")

_PS_PER_NS: Final = 1000
# Characters of a name that are kept; the rest is cut off.
_MAX_NAME: Final = 200
_MAX_DIGITS: Final = 16
# Maximum number of bytes of a message, with room for the text of an instruction with thousands of
# operands.
_MAX_MESSAGE_BYTES: Final = 4 * MIB
_MAX_NAMES: Final = 1_000_000
_MAX_LINES: Final = 100_000


@dataclass(slots=True)
class _Line:
    name: str = ""
    timestamp_ns: int = 0


@dataclass(slots=True)
class _Plane:
    """Names and lines of a plane, without its events."""

    name: str = ""
    lines: list[_Line] = field(default_factory=list)
    # By metadata id: kinds of events (`Collected.kind_of`), names of events, and names of stats in
    # `_STATS`.
    kinds: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)
    started_ns: int = 0

    @property
    def ordinal(self) -> int | None:
        """Return the number of the plane's device; None for planes without a device."""
        device = DEVICE.fullmatch(self.name)
        return None if device is None else int(device[1])

    @property
    def read(self) -> bool:
        """Return whether the plane is read: a device, the host, or the profiler's options."""
        return self.ordinal is not None or self.name in (HOST, _TASK)


def read_xplane(body: Path | bytes, limits: Limits) -> Collected:
    """Return the collected events of a ``*.xplane.pb`` file.

    Raises
    ------
    InvalidTraceError
        `trace.corrupt`, `trace.truncated`, `trace.item_too_long`, `trace.time_overflow`.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    collected = Collected(limits)
    wire = Wire(read_text(body, limits))
    planes: list[_Plane] = []
    for part in wire.fields():
        if part.kind != BYTES:
            continue
        if part.number == SPACE_PLANES:
            planes.append(_plane(wire, part, collected))
            if len(planes) > _MAX_LINES:
                raise BodyTooLargeError("there are too many planes", code="body.too_many_rows")
        elif part.number == SPACE_HOSTNAMES:
            collected.host = collected.host or _text(wire, part)
    collected.base_ns = max((plane.started_ns for plane in planes), default=0)
    wire = Wire(read_text(body, limits))
    number = 0
    for part in wire.fields():
        if part.number == SPACE_PLANES and part.kind == BYTES:
            _add_events(wire, part, planes[number], collected)
            number += 1
    return collected


def _plane(wire: Wire, message: Field, collected: Collected) -> _Plane:
    """Return a plane's names and lines, without its events."""
    plane = _Plane()
    stats: list[XStat] = []
    for part in wire.fields(message.size):
        if part.kind != BYTES:
            continue
        if part.number == PLANE_NAME:
            plane.name = _text(wire, part)
            if not plane.read:
                # The caller skips the remaining bytes of a plane that is not needed.
                return plane
        elif part.number == PLANE_STATS:
            stats.append(_taken(parse_stat, wire, part))
        else:
            _add_names(wire, part, plane, collected)
        if len(plane.kinds) > _MAX_NAMES or len(plane.lines) > _MAX_LINES:
            raise BodyTooLargeError("a plane has too many names", code="body.too_many_rows")
    for stat in stats:
        if plane.stats.get(stat.metadata_id) == _STARTED:
            plane.started_ns = checked_time(_number(stat) or 0, 0)
    return plane


def _add_names(wire: Wire, part: Field, plane: _Plane, collected: Collected) -> None:
    if part.number == PLANE_LINES:
        line = _Line()
        for place, stretch in _stretches(wire, part):
            head = _parsed(parse_line_head, stretch, place)
            line.name = line.name or head.name[:_MAX_NAME]
            line.timestamp_ns = line.timestamp_ns or head.timestamp_ns
        plane.lines.append(line)
    elif part.number == PLANE_EVENT_METADATA:
        metadata = _entry(wire, part)
        plane.kinds[metadata.id] = collected.kind_of(metadata.name)
        plane.names[metadata.id] = metadata.name[:_MAX_NAME]
    elif part.number == PLANE_STAT_METADATA:
        metadata = _entry(wire, part)
        if metadata.name in _STATS:
            plane.stats[metadata.id] = metadata.name


def _stretches(wire: Wire, line: Field) -> Iterator[tuple[int, bytes]]:
    """Yield the byte position of each part of a line, and the bytes of the part."""
    for stretch in wire.stretches(line.size, _MAX_MESSAGE_BYTES):
        yield wire.place - len(stretch), stretch


def _add_events(wire: Wire, message: Field, plane: _Plane, collected: Collected) -> None:
    streams = any(line.name.startswith(STREAM) for line in plane.lines)
    number = 0
    for part in wire.fields(message.size):
        if not plane.read:
            return
        if part.number != PLANE_LINES or part.kind != BYTES:
            continue
        line = plane.lines[number]
        number += 1
        ops = line.name.startswith(STREAM) if streams else line.name == INSTRUCTIONS
        if plane.ordinal is not None and not (ops or line.name in (STEPS, PROGRAMS)):
            continue
        base_ns = line.timestamp_ns
        if base_ns >= collected.base_ns > 0:
            # Times of this line are times of day; times of all other lines count from the start of
            # the profile.
            base_ns -= collected.base_ns
        for place, stretch in _stretches(wire, part):
            for event in _parsed(parse_line, stretch, place).events:
                if not event.num_occurrences:
                    _add_event(event, plane, line.name, base_ns, collected)


def _add_event(event: XEvent, plane: _Plane, line: str, base_ns: int, collected: Collected) -> None:
    start = checked_time(base_ns + _nanoseconds(event.offset_ps), event.metadata_id)
    end = base_ns + _nanoseconds(event.offset_ps + event.duration_ps)
    end = checked_time(end, event.metadata_id)
    ordinal = plane.ordinal
    if ordinal is None:
        _add_host_event(event, plane, start, end, collected)
    elif line == STEPS:
        name = plane.names.get(event.metadata_id, "")
        if name.isascii() and name.isdecimal() and len(name) < _MAX_DIGITS:
            collected.add_step(ordinal, start, int(name))
    elif line == PROGRAMS:
        collected.add_program(ordinal, start, end, plane.names.get(event.metadata_id, ""))
    else:
        kind = plane.kinds.get(event.metadata_id)
        if kind is not None:
            collected.add(ordinal, kind, start, end, None)


def _add_host_event(
    event: XEvent, plane: _Plane, start: int, end: int, collected: Collected
) -> None:
    """Add an annotated step, or an instruction that a CPU executed in the role of a device."""
    stats = {
        plane.stats[stat.metadata_id]: stat
        for stat in event.stats
        if stat.metadata_id in plane.stats
    }
    if _STEP_NUMBER in stats:
        number = _number(stats[_STEP_NUMBER])
        if number is not None and 0 <= number <= MAX_STEP:
            collected.annotate(start, number)
    elif _INSTRUCTION in stats and _ORDINAL in stats:
        ordinal = _number(stats[_ORDINAL])
        kind = plane.kinds.get(event.metadata_id)
        run = _number(stats[_RUN]) if _RUN in stats else None
        if ordinal is not None and kind is not None and ordinal >= 0:
            collected.add(ordinal, kind, start, end, run)


def _number(stat: XStat) -> int | None:
    """Return the value of a stat as a signed 64-bit integer; None if it is not a number."""
    kind = stat.WhichOneof("value")
    if kind == "int64_value":
        return stat.int64_value
    if kind != "uint64_value":
        return None
    value = stat.uint64_value
    return value - (1 << 64) if value >= 1 << 63 else value


def _nanoseconds(picoseconds: int) -> int:
    return (picoseconds + _PS_PER_NS // 2) // _PS_PER_NS


def _entry(wire: Wire, entry: Field) -> Metadata:
    """Return the value of an entry of a metadata map."""
    value: Metadata | None = None
    for part in wire.fields(entry.size):
        if part.number == MAP_VALUE and part.kind == BYTES:
            value = _taken(parse_metadata, wire, part)
    return value or parse_metadata(b"")


def _text(wire: Wire, part: Field) -> str:
    if part.size > _MAX_NAME * 4:
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


_JSON_TEXT: Final = "long_name"


class _Names:
    """Names of the processes and threads of a trace."""

    def __init__(self) -> None:
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.streams: set[int] = set()

    def add(self, event: Event) -> None:
        """Store the name in an event that names a process or a thread."""
        process = event.optional_integer("pid")
        name = event.args.fields.get("name")
        if process is None or not isinstance(name, str):
            return
        if event.fields.get("name") == "process_name":
            self.processes[process] = name
        elif event.fields.get("name") == "thread_name":
            thread = event.optional_integer("tid")
            if thread is not None:
                self.threads[process, thread] = name
            if name.startswith(STREAM):
                self.streams.add(process)

    def is_instructions(self, process: int, line: str) -> bool:
        """Return whether a line holds the instructions of a device."""
        return line.startswith(STREAM) if process in self.streams else line == INSTRUCTIONS


def read_trace_json(body: Path | bytes, limits: Limits) -> Collected:
    """Return the collected events of a ``trace.json.gz`` file.

    Raises
    ------
    InvalidTraceError, BodyTooLargeError
        See `read_events` and `Event`.
    """
    collected, names = Collected(limits), _Names()
    for event in read_events(body, limits):
        if event.fields.get("ph") == "M":
            names.add(event)
        elif event.fields.get("ph") == "X":
            _add_json_event(event, names, collected)
    return collected


def _add_json_event(event: Event, names: _Names, collected: Collected) -> None:
    process, thread = event.integer("pid"), event.integer("tid")
    plane = names.processes.get(process, "")
    line = names.threads.get((process, thread), "")
    device = DEVICE.search(plane)
    name, args = event.text("name"), event.args
    start = event.nanoseconds("ts", NS_PER_US)
    end = start + (event.duration_ns("dur", NS_PER_US) if "dur" in event.fields else 0)
    if device is not None:
        ordinal = int(device[1])
        if line == STEPS:
            if name.isascii() and name.isdecimal() and len(name) < _MAX_DIGITS:
                collected.add_step(ordinal, start, int(name))
        elif line == PROGRAMS:
            collected.add_program(ordinal, start, end, name)
        elif names.is_instructions(process, line):
            text = args.fields.get(_JSON_TEXT)
            kind = collected.kind_of(text if isinstance(text, str) and text else name)
            collected.add(ordinal, kind, start, end, None)
    elif HOST in plane:
        number = args.optional_integer("step_num") if "step_num" in args.fields else None
        if number is not None and 0 <= number <= MAX_STEP:
            collected.annotate(start, number)
        elif "hlo_op" in args.fields and "device_ordinal" in args.fields:
            host_ordinal = args.optional_integer("device_ordinal")
            run = args.optional_integer("run_id")
            if host_ordinal is not None and host_ordinal >= 0:
                collected.add(host_ordinal, collected.kind_of(name), start, end, run)
