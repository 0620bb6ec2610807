"""Reader of OTLP in protobuf, one batch of spans at a time.

OTLP's protobuf has three forms: the body that an exporter posts (``ExportTraceServiceRequest``);
messages preceded by their length as a varint, as OpenTelemetry specifies for files; and messages
preceded by their length in four big-endian bytes, as the collector's file exporter writes them (its
``compression: zstd`` compresses each message). In all forms a message is a list of
``ResourceSpans``, of which one is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from app.analysis.trace.compression import ZSTD_MAGIC, read_text
from app.analysis.trace.limits import Limits, refuse
from app.analysis.trace.recordings.events import Event
from app.analysis.trace.recordings.otlp_resources import (
    MAX_BATCH_BYTES,
    Batch,
    attributes_of,
    json_batches,
)
from app.analysis.trace.recordings.protobuf_wire import BYTES, Wire
from app.errors import Fault

# Field id of the resource spans: the first field of a request, of a file's message, and of
# ``TracesData``.
_RESOURCE_SPANS: Final = 1
_FIRST_BYTE: Final = _RESOURCE_SPANS << 3 | BYTES
_LENGTH_BYTES: Final = 4
# Maximum number of bytes of a message in a collector's file, which holds a received request or a
# batch of 8,192 spans.
_MAX_MESSAGE_BYTES: Final = 4 * MAX_BATCH_BYTES

Names = frozenset[str] | None


def protobuf_batches(body: Path | bytes, limits: Limits, names: Names) -> Iterator[Batch]:
    """Yield the batches of spans of an OTLP protobuf body, plain, gzip or zstd.

    Parameters
    ----------
    names : frozenset of str or None
        Names of the spans to decode completely; other spans are yielded with only their name. None
        to decode all spans completely.

    Raises
    ------
    InvalidTraceError
        `trace.corrupt`, `trace.truncated`, `trace.item_too_long`, with the index of the batch.
    BodyTooLargeError
        `body.too_large`.
    """
    wire = Wire(read_text(body, limits))
    first = wire.peek(_LENGTH_BYTES + len(ZSTD_MAGIC))
    if first[:1] == bytes((_FIRST_BYTE,)):
        yield from _batches(wire, 0, names)
        return
    count = 0
    big_endian = first[:1] == b"\0"
    while not wire.at_end():
        size = int.from_bytes(wire.take(_LENGTH_BYTES), "big") if big_endian else wire.varint()
        if size > _MAX_MESSAGE_BYTES:
            _refuse_too_long(count)
        message = wire.take(size)
        is_json = False
        if message.startswith(ZSTD_MAGIC):
            message = b"".join(read_text(message, limits))
            is_json = message.startswith(b"{")
        for batch in (
            json_batches(message, limits)
            if is_json
            else _batches(Wire(iter((message,))), count, names)
        ):
            yield batch
            count += 1


def _batches(wire: Wire, count: int, names: Names) -> Iterator[Batch]:
    for field in wire.fields():
        if field.number != _RESOURCE_SPANS or field.kind != BYTES:
            continue
        if field.size > MAX_BATCH_BYTES:
            _refuse_too_long(count)
        try:
            batch = ResourceSpans.FromString(wire.take(field.size))
        except DecodeError as error:
            text = f"batch {count} is no ResourceSpans of OTLP: {error}"
            refuse([Fault("corrupt", text, row=count)])
        resource = Event(count, {"attributes": _attributes(batch.resource.attributes)})
        spans = tuple(
            # The event's keys are those of OTLP's JSON form.
            Event(
                count,
                {
                    "name": span.name,
                    "startTimeUnixNano": span.start_time_unix_nano,
                    "endTimeUnixNano": span.end_time_unix_nano,
                    "attributes": _attributes(span.attributes),
                }
                if names is None or span.name in names
                else {"name": span.name},
            )
            for scope in batch.scope_spans
            for span in scope.spans
        )
        yield Batch(attributes_of(resource), spans)
        count += 1


def _attributes(attributes: Iterable[KeyValue]) -> list[dict[str, object]]:
    """Return protobuf attributes in OTLP's JSON form."""
    fields: list[dict[str, object]] = []
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        value = {} if kind is None else {kind: getattr(attribute.value, kind)}
        fields.append({"key": attribute.key, "value": value})
    return fields


def _refuse_too_long(index: int) -> NoReturn:
    message = f"batch {index} is over {MAX_BATCH_BYTES} bytes"
    refuse([Fault("item_too_long", message, row=index)])
