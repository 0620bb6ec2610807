"""Resources of OpenTelemetry (rank and host of a sender), and their batches of spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.limits import MIB, Limits, refuse, refuse_body
from app.analysis.trace.metadata import with_names
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.rank_metadata import NODE, OTEL_KEYS, POD, is_name
from app.analysis.trace.recordings.json_events import Event, Item, event_of, read_items
from app.errors import Fault

# ---- Batches of spans of one resource, as OTLP's JSON or protobuf has them ---------------------


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


# ---- Resources of OpenTelemetry: which rank of a job sent some spans, and where it runs --------


_HOST: Final = "host.name"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource: who it is, and the sizes that it says."""

    rank: int
    dp: int | None
    pp: int | None
    host: str | None
    names: Mapping[str, str]  # of node, pod, GPU and job
    sizes: Sizes | None


def resource_of(said: Event) -> Resource:
    """Return who a resource is.

    Parameters
    ----------
    said : Event
        Its attributes by their keys.

    Raises
    ------
    InvalidTraceError
        `trace.unknown_rank`, and those of `Event`.
    """
    rank = first_of(said, "dl.rank", "nv.dl.rank")
    if rank is None:
        refuse_body(
            "unknown_rank",
            "a resource does not say its rank: dl.rank is set by setup_telemetry, which is given "
            "the rank after torch.distributed.init_process_group",
        )
    sizes = [
        said.optional_integer(f"dl.{kind}_parallel.size") for kind in ("data", "pipeline", "tensor")
    ]
    world = first_of(said, "dl.world_size", "nv.dl.world_size")
    names = {
        key: name
        for key in (_HOST, *OTEL_KEYS)
        if isinstance(name := said.fields.get(key), str) and name and is_name(name)
    }
    return Resource(
        rank,
        said.optional_integer("dl.data_parallel.rank"),
        said.optional_integer("dl.pipeline_parallel.rank"),
        names.pop(_HOST, None),
        names,
        _sizes(sizes, world),
    )


def first_of(said: Event, *keys: str) -> int | None:
    """Return the integer of the first of some keys that is there."""
    values = (said.optional_integer(key) for key in keys)
    return next((value for value in values if value is not None), None)


def with_hosts(known: SessionMeta, resources: Mapping[int, Resource]) -> SessionMeta:
    """Return the metadata with what resources say of the machines of ranks.

    What the sender's metadata say comes first. The host of a resource in a pod may be the pod.
    """
    named: dict[str, dict[str, str]] = {}
    hosts: dict[int, str] = {}
    guesses: dict[str, str] = {}
    for rank, who in resources.items():
        if rank >= known.sizes.world:
            continue
        if who.host is not None and NODE not in who.names and rank not in known.hosts:
            hosts[rank] = who.host
            if POD in who.names:
                guesses[who.host] = _HOST
        for key, name in who.names.items():
            if key != NODE or rank not in known.hosts:
                named.setdefault(key, {})[str(rank)] = name
    guesses.update(known.whereabouts.guessed_hosts)
    met = replace(
        known,
        hosts={**hosts, **known.hosts},
        whereabouts=replace(known.whereabouts, guessed_hosts=guesses),
    )
    return with_names(met, named) if named else met


def _sizes(said: list[int | None], world: int | None) -> Sizes | None:
    """Return the sizes of a job; ranks that the three do not explain are context parallel."""
    dp, pp, tp = (1 if size is None else size for size in said)
    if all(size is None for size in said) or min(dp, pp, tp) < 1:
        return None
    cells = dp * pp * tp
    cp = 1 if world is None or world < 1 or world % cells else world // cells
    return Sizes(dp=dp, pp=pp, tp=tp, cp=cp)
