"""The messages of XProf's ``xplane.proto`` that are read, for the official protobuf runtime.

https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto

They are described here with the fields that are read, in a pool of their own, and not by a
generated file: the runtime steps over fields that it does not know; no compiler and no package of
gigabytes is needed; and a process that has loaded TensorFlow, which registers the same names, is
not disturbed.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_INT64: Final = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_UINT64: Final = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64
_TEXT: Final = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_PACKAGE: Final = "paceline.xprof"

# Numbers of the fields of messages that are taken apart before the runtime parses their parts.
SPACE_PLANES: Final = 1
SPACE_HOSTNAMES: Final = 4
PLANE_NAME: Final = 2
PLANE_LINES: Final = 3
PLANE_EVENT_METADATA: Final = 4
PLANE_STAT_METADATA: Final = 5
PLANE_STATS: Final = 6
# Of an entry of a map.
MAP_VALUE: Final = 2


class XStat(Protocol):
    """A named value."""

    metadata_id: int
    uint64_value: int
    int64_value: int
    str_value: str
    ref_value: int

    def WhichOneof(self, oneof: str) -> str | None:  # noqa: N802 - the runtime's name
        """Return which of its values is there."""


class XEvent(Protocol):
    """An event of a line; times in picoseconds."""

    metadata_id: int
    offset_ps: int
    num_occurrences: int
    duration_ps: int

    @property
    def stats(self) -> list[XStat]:
        """Return its named values."""


class XLine(Protocol):
    """Some events of a line, or what else is said of it."""

    name: str
    timestamp_ns: int

    @property
    def events(self) -> list[XEvent]:
        """Return the events."""


class Metadata(Protocol):
    """What events or stats of one kind have in common."""

    id: int
    name: str


def _described() -> dict[str, Any]:
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


_CLASSES: Final = _described()


def parse_line(message: bytes) -> XLine:
    """Return a line, or some of its fields.

    Raises
    ------
    google.protobuf.message.DecodeError
    """
    return cast("XLine", _CLASSES["XLine"].FromString(message))


def parse_line_head(message: bytes) -> XLine:
    """Return a line whose events are stepped over; see `parse_line`."""
    return cast("XLine", _CLASSES["XLineHead"].FromString(message))


def parse_stat(message: bytes) -> XStat:
    """Return a stat; see `parse_line`."""
    return cast("XStat", _CLASSES["XStat"].FromString(message))


def parse_metadata(message: bytes) -> Metadata:
    """Return the metadata of events or of a stat; see `parse_line`."""
    return cast("Metadata", _CLASSES["Metadata"].FromString(message))
