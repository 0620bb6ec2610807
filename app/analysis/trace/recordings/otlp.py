"""OpenTelemetry spans of Megatron-LM (its `megatron.core.telemetry`), as OTLP in JSON.

What an exporter posts to ``/v1/traces``, or a collector's file exporter writes: one object, or one
a line, with ``resourceSpans``. A rank is a resource: ``dl.rank``, ``dl.world_size`` and the sizes
and ranks of each kind of parallelism are its attributes. Times are those of the host that issued
the work, not of the device that did it, and the metadata say so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.faults import refuse, refuse_body
from app.analysis.trace.joint_metadata import with_names
from app.analysis.trace.limits import MIB, Limits
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
    SessionMeta,
    Sizes,
)
from app.analysis.trace.ranks.values import is_name
from app.analysis.trace.ranks.whereabouts import NODE, OTEL_KEYS, POD
from app.analysis.trace.recordings.json_items import Item, read_items
from app.analysis.trace.recordings.recording import Recording
from app.analysis.trace.recordings.rows import Rows
from app.analysis.trace.recordings.values import Event, event_of
from app.analysis.trace.unmapped import Unmapped, total
from app.errors import BodyTooLargeError, Fault, InvalidMetadataError

SPANS: Final = "resourceSpans"
_HOST: Final = "host.name"
STEP: Final = "megatron.train_step"
_OPERATIONS: Final = {
    "megatron.microbatch.forward": FORWARD_COMPUTE,
    "megatron.microbatch.backward": BACKWARD_COMPUTE,
    "megatron.p2p.send_forward": FORWARD_SEND,
    "megatron.p2p.recv_forward": FORWARD_RECV,
    "megatron.p2p.send_backward": BACKWARD_SEND,
    "megatron.p2p.recv_backward": BACKWARD_RECV,
    "megatron.grad_sync.finish": GRADS_REDUCE_SCATTER,
    "megatron.optimizer_step": OPTIMIZER,
}
_PREFIX: Final = "megatron."
# Spans around those of operations, or of what no step has.
_AROUND: Final = frozenset(
    {"megatron.pretrain", "megatron.train", STEP, "megatron.forward_backward"}
)
MICROBATCH_GROUP: Final = "MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch"
ALL_RANKS: Final = "MEGATRON_OTEL_RANK_STRATEGY=all_ranks"
STEP_GROUP: Final = "MEGATRON_OTEL_SPAN_GROUPS=per_step"
# A collector's batch has 8,192 spans.
_MAX_BATCH_CHARS: Final = 8 * MIB
_MAX_SPANS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Rank:
    """A resource: who it is, and the sizes that it says."""

    rank: int
    dp: int | None
    pp: int | None
    host: str | None
    names: Mapping[str, str]  # of node, pod, GPU and job
    sizes: Sizes | None


@dataclass(frozen=True, slots=True)
class _Span:
    """A span of an operation or of a step; times in ns."""

    name: str
    start: int
    end: int
    microbatch: int | None
    chunk: int | None
    step: int | None
    event: int


def decode_otlp(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode and check OpenTelemetry spans of Megatron-LM.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    meta : SessionMeta or None
        The sizes, where the resources do not say them.

    Raises
    ------
    InvalidTraceError
        `trace.no_microbatches`: there are spans of steps at most; `trace.unknown_rank`. Also those
        of `read_items`, `Event` and `Rows.trace`.
    InvalidMetadataError
        `metadata.missing`: the sizes are not known.
    """
    spans, lost = _read(body, limits)
    if not any(span.name in _OPERATIONS and "microbatch" in span.name for _, span in spans):
        refuse_body(
            "no_microbatches",
            "there are no spans of microbatches: switch their group on with "
            f"{MICROBATCH_GROUP}, and let every rank export with {ALL_RANKS}",
        )
    known = meta or _meta(spans)
    steps = _steps(spans)
    rows = Rows(limits)
    for who, span in spans:
        if span.name not in _OPERATIONS:
            continue
        step = _step_of(span, steps.get(who.rank, ()))
        if step is None:
            lost["operations outside of a step", STEP_GROUP] += 1
            continue
        _add(rows, who, span, step, known.sizes)
    known = replace(_with_hosts(known, spans), extra={**known.extra, "clock": "host"})
    found = (Unmapped(what, count, remedy) for (what, remedy), count in lost.items())
    return Recording(rows.trace(known, part=part), total(found))


def _read(
    body: Path | bytes, limits: Limits
) -> tuple[list[tuple[_Rank, _Span]], Counter[tuple[str, str | None]]]:
    """Return the spans of operations and steps, and how many other spans there are."""
    found: list[tuple[_Rank, _Span]] = []
    lost: Counter[tuple[str, str | None]] = Counter()
    for item in read_items(body, limits, frozenset({SPANS}), longest_item=_MAX_BATCH_CHARS):
        if not isinstance(item, Item):
            continue
        batch = event_of(item.index, item.value)
        spans = [
            Event(item.index, span)
            for scope in _objects(batch, "scopeSpans")
            for span in _objects(Event(item.index, scope), "spans")
        ]
        named = [(span, span.text("name")) for span in spans]
        wanted = [(span, name) for span, name in named if name in _OPERATIONS or name == STEP]
        for _, name in named:
            if name not in _OPERATIONS and name not in _AROUND:
                # Names of other programs are many, and say nothing here.
                kind = name[:80] if name.startswith(_PREFIX) else "of other programs"
                lost[f"spans {kind}", None] += 1
        if wanted:
            who = _rank(batch)
            found += [(who, _span(span, name)) for span, name in wanted]
        if len(found) > _MAX_SPANS:
            message = f"there are over {_MAX_SPANS} spans"
            raise BodyTooLargeError(message, code="body.too_many_rows")
    return found, lost


def _objects(event: Event, key: str) -> list[dict[str, Any]]:
    values = event.fields.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        message = f"the {key} of item {event.index} are no objects"
        refuse([Fault("bad_event", message, row=event.index, column=key)])
    return values


def _attributes(event: Event) -> Event:
    """Return the attributes of a resource or a span by their keys."""
    found: dict[str, object] = {}
    for attribute in _objects(event, "attributes"):
        key, value = attribute.get("key"), attribute.get("value")
        if isinstance(key, str) and isinstance(value, dict) and value:
            found[key] = next(iter(value.values()))
    return Event(event.index, found)


def _rank(batch: Event) -> _Rank:
    resource = batch.fields.get("resource")
    said = _attributes(Event(batch.index, resource if isinstance(resource, dict) else {}))
    rank = _first(said, "dl.rank", "nv.dl.rank")
    if rank is None:
        refuse_body(
            "unknown_rank",
            "a resource does not say its rank: dl.rank is set by setup_telemetry, which is given "
            "the rank after torch.distributed.init_process_group",
        )
    sizes = [
        said.optional_integer(f"dl.{kind}_parallel.size") for kind in ("data", "pipeline", "tensor")
    ]
    world = _first(said, "dl.world_size", "nv.dl.world_size")
    names = {
        key: name
        for key in (_HOST, *OTEL_KEYS)
        if isinstance(name := said.fields.get(key), str) and name and is_name(name)
    }
    return _Rank(
        rank,
        said.optional_integer("dl.data_parallel.rank"),
        said.optional_integer("dl.pipeline_parallel.rank"),
        names.pop(_HOST, None),
        names,
        _sizes(sizes, world),
    )


def _with_hosts(known: SessionMeta, spans: list[tuple[_Rank, _Span]]) -> SessionMeta:
    """Return the metadata with what resources say of the machines of ranks.

    What the sender's metadata say comes first. The host of a resource in a pod may be the pod.
    """
    ranks = {who.rank: who for who, _ in spans if who.rank < known.sizes.world}
    named: dict[str, dict[str, str]] = {}
    hosts: dict[int, str] = {}
    guesses: dict[str, str] = {}
    for rank, who in ranks.items():
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


def _first(said: Event, *keys: str) -> int | None:
    values = (said.optional_integer(key) for key in keys)
    return next((value for value in values if value is not None), None)


def _span(span: Event, name: str) -> _Span:
    start = span.nanoseconds("startTimeUnixNano", 1)
    end = span.nanoseconds("endTimeUnixNano", 1)
    said = _attributes(span)
    return _Span(
        name,
        start,
        end,
        _first(said, "megatron.microbatch_id", "dl.microbatch_id"),
        _first(said, "megatron.model_chunk_id", "megatron.virtual_pipeline_rank"),
        _first(said, "megatron.iteration", "dl.iteration"),
        span.index,
    )


def _meta(spans: list[tuple[_Rank, _Span]]) -> SessionMeta:
    sizes = {who.sizes for who, _ in spans}
    known = sizes.pop() if len(sizes) == 1 else None
    if known is None:
        message = (
            "the resources do not say the sizes of the job, or not the same ones: give them with "
            "the recording"
        )
        raise InvalidMetadataError(message, code="metadata.missing")
    return SessionMeta(known)


def _steps(spans: list[tuple[_Rank, _Span]]) -> Mapping[int, tuple[_Span, ...]]:
    """Return the steps of each rank by start."""
    found: dict[int, list[_Span]] = {}
    for who, span in spans:
        if span.name == STEP and span.step is not None:
            found.setdefault(who.rank, []).append(span)
    return {rank: tuple(sorted(steps, key=_start)) for rank, steps in found.items()}


def _start(span: _Span) -> int:
    return span.start


def _step_of(span: _Span, steps: tuple[_Span, ...]) -> int | None:
    if span.step is not None:
        return span.step
    place = bisect_right(steps, span.start, key=_start) - 1
    return steps[place].step if place >= 0 and span.start <= steps[place].end else None


def _add(rows: Rows, who: _Rank, span: _Span, step: int, sizes: Sizes) -> None:
    inner = sizes.tp * sizes.cp
    rows.add(
        _OPERATIONS[span.name],
        span.start,
        span.end - span.start,
        event=span.event,
        rank=who.rank,
        # Megatron's order: tensor ranks first, stages last.
        dp=who.rank // inner % sizes.dp if who.dp is None else who.dp,
        pp=who.rank // (inner * sizes.dp) if who.pp is None else who.pp,
        step=step,
        mb=ABSENT if span.microbatch is None else span.microbatch,
        mc=ABSENT if span.chunk is None else span.chunk,
    )
