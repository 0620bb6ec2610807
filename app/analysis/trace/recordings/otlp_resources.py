"""OpenTelemetry resources (rank, machine and job sizes of a sender), and batches of their spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.limits import MIB, Limits, refuse, refuse_body
from app.analysis.trace.metadata import with_names
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.rank_metadata import NODE, OTEL_KEYS, POD, is_name
from app.analysis.trace.recordings.events import Event, event_of
from app.analysis.trace.recordings.json_events import Item, read_items
from app.errors import Fault

SPANS: Final = "resourceSpans"
# Maximum number of bytes of a batch; a collector's batch has 8,192 spans.
MAX_BATCH_BYTES: Final = 8 * MIB


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of spans of one resource."""

    resource: Event  # the resource's attributes by key
    # Spans with OTLP's fields ``name``, ``startTimeUnixNano``, ``endTimeUnixNano`` and
    # ``attributes``.
    spans: tuple[Event, ...]


def json_batches(body: Path | bytes, limits: Limits) -> Iterator[Batch]:
    """Yield the batches of spans in OTLP's JSON (one or several objects), plain, gzip or zstd.

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
    """Return the attributes of a resource or span by key.

    Raises
    ------
    InvalidTraceError
        `trace.bad_event`: an attribute is no object.
    """
    attributes: dict[str, object] = {}
    for attribute in _objects(event, "attributes"):
        key, value = attribute.get("key"), attribute.get("value")
        if isinstance(key, str) and isinstance(value, dict) and value:
            attributes[key] = next(iter(value.values()))
    return Event(event.index, attributes)


def _objects(event: Event, key: str) -> list[dict[str, Any]]:
    values = event.fields.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        message = f"the {key} of item {event.index} are no objects"
        refuse([Fault("bad_event", message, row=event.index, column=key)])
    return values


_HOST: Final = "host.name"


@dataclass(frozen=True, slots=True)
class Resource:
    """Rank, machine and job sizes from the attributes of an OpenTelemetry resource."""

    rank: int
    dp: int | None
    pp: int | None
    host: str | None
    names: Mapping[str, str]  # names of node, pod, GPU and job
    sizes: Sizes | None


def resource_of(attributes: Event) -> Resource:
    """Return the resource that these attributes describe.

    Parameters
    ----------
    attributes : Event
        The attributes by their keys.

    Raises
    ------
    InvalidTraceError
        `trace.unknown_rank`, and the errors of `Event`.
    """
    rank = first_of(attributes, "dl.rank", "nv.dl.rank", "rank")
    if rank is None:
        refuse_body(
            "unknown_rank",
            "a resource does not say its rank: Megatron-LM's setup_telemetry sets dl.rank where it "
            "is given the rank after torch.distributed.init_process_group; another program sets "
            "rank, as by OTEL_RESOURCE_ATTRIBUTES=rank=3",
        )
    recorded = [
        attributes.optional_integer(f"dl.{kind}_parallel.size")
        for kind in ("data", "pipeline", "tensor")
    ]
    world = first_of(attributes, "dl.world_size", "nv.dl.world_size", "world_size")
    dp, pp, tp = (1 if size is None else size for size in recorded)
    sizes = None
    if any(size is not None for size in recorded) and min(dp, pp, tp) >= 1:
        cells = dp * pp * tp
        # Ranks of the world beyond dp × pp × tp are context-parallel ranks.
        cp = 1 if world is None or world < 1 or world % cells else world // cells
        sizes = Sizes(dp=dp, pp=pp, tp=tp, cp=cp)
    names = {
        key: name
        for key in (_HOST, *OTEL_KEYS)
        if isinstance(name := attributes.fields.get(key), str) and name and is_name(name)
    }
    return Resource(
        rank,
        attributes.optional_integer("dl.data_parallel.rank"),
        attributes.optional_integer("dl.pipeline_parallel.rank"),
        names.pop(_HOST, None),
        names,
        sizes,
    )


def first_of(attributes: Event, *keys: str) -> int | None:
    """Return the integer under the first key that is present; None if no key is present."""
    values = (attributes.optional_integer(key) for key in keys)
    return next((value for value in values if value is not None), None)


def with_hosts(meta: SessionMeta, resources: Mapping[int, Resource]) -> SessionMeta:
    """Return metadata completed by the ranks' machines from their resources.

    Machines in `meta` take precedence. The host name of a resource in a pod is marked as a guess,
    because it may be the pod's name.
    """
    named: dict[str, dict[str, str]] = {}
    hosts: dict[int, str] = {}
    guesses: dict[str, str] = {}
    for rank, who in resources.items():
        if rank >= meta.sizes.world:
            continue
        if who.host is not None and NODE not in who.names and rank not in meta.hosts:
            hosts[rank] = who.host
            if POD in who.names:
                guesses[who.host] = _HOST
        for key, name in who.names.items():
            if key != NODE or rank not in meta.hosts:
                named.setdefault(key, {})[str(rank)] = name
    guesses.update(meta.whereabouts.guessed_hosts)
    merged = replace(
        meta,
        hosts={**hosts, **meta.hosts},
        whereabouts=replace(meta.whereabouts, guessed_hosts=guesses),
    )
    return with_names(merged, named) if named else merged
