"""Batches of spans of one resource, as OTLP's JSON or protobuf has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.faults import refuse
from app.analysis.trace.limits import MIB, Limits
from app.analysis.trace.recordings.json_items import Item, read_items
from app.analysis.trace.recordings.values import Event, event_of
from app.errors import Fault

SPANS: Final = "resourceSpans"
# A collector's batch has 8,192 spans.
MAX_BATCH_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True)
class Batch:
    """Spans of one resource.

    Attributes are by their keys; a span has ``name``, ``startTimeUnixNano`` and
    ``endTimeUnixNano``.
    """

    resource: Event
    spans: tuple[Event, ...]


def json_batches(body: Path | bytes, limits: Limits) -> Iterator[Batch]:
    """Yield the batches of OTLP's JSON: one object or several, plain, gzip or zstd.

    Raises
    ------
    InvalidTraceError, BodyTooLargeError
        See `read_items`; `trace.bad_event`.
    """
    for item in read_items(body, limits, frozenset({SPANS}), longest_item=MAX_BATCH_BYTES):
        if not isinstance(item, Item):
            continue
        batch = event_of(item.index, item.value)
        spans = tuple(
            Event(item.index, span)
            for scope in _objects(batch, "scopeSpans")
            for span in _objects(Event(item.index, scope), "spans")
        )
        resource = batch.fields.get("resource")
        who = Event(item.index, resource if isinstance(resource, dict) else {})
        yield Batch(attributes_of(who), spans)


def attributes_of(event: Event) -> Event:
    """Return the attributes of a resource or a span by their keys.

    Raises
    ------
    InvalidTraceError
        `trace.bad_event`: they are no objects.
    """
    found: dict[str, object] = {}
    for attribute in _objects(event, "attributes"):
        key, value = attribute.get("key"), attribute.get("value")
        if isinstance(key, str) and isinstance(value, dict) and value:
            found[key] = next(iter(value.values()))
    return Event(event.index, found)


def _objects(event: Event, key: str) -> list[dict[str, Any]]:
    values = event.fields.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        message = f"the {key} of item {event.index} are no objects"
        refuse([Fault("bad_event", message, row=event.index, column=key)])
    return values
