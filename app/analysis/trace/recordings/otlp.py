"""Decoder of Megatron-LM's OpenTelemetry spans (`megatron.core.telemetry`) in OTLP.

Each rank is a resource, with the attributes ``dl.rank``, ``dl.world_size`` and the sizes and ranks
of each parallel dimension. Times are host times of issuing the work, not device times; the decoded
metadata say so. Span names are those of the main branch and of earlier releases:
``megatron/training/training.py`` and ``docs/user-guide/observability/span-groups.md`` of
NVIDIA/Megatron-LM (pull request 6385).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.analysis.trace.limits import Limits, refuse_body
from app.analysis.trace.metadata import Unmapped, total
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CHECKPOINT,
    EVALUATION,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
    SessionMeta,
    Sizes,
)
from app.analysis.trace.recordings.events import Event
from app.analysis.trace.recordings.labels import (
    LabelKind,
    OwnRange,
    OwnRanges,
    OwnRangesReader,
    join_ranges,
)
from app.analysis.trace.recordings.otlp_resources import (
    Batch,
    Resource,
    attributes_of,
    first_of,
    json_batches,
    resource_of,
    with_hosts,
)
from app.analysis.trace.recordings.recording import Recording, Rows
from app.errors import BodyTooLargeError, InvalidMetadataError

PREFIX: Final = "megatron."
STEPS: Final = frozenset({"megatron.train_step", "megatron.train.iteration"})
# Name of the span around the first step of a process, in which it compiles, captures graphs and
# connects.
FIRST_STEP: Final = "megatron.train.first_iteration"
WHY_ODD: Final = "Megatron-LM marks it as the first one of its process"
OPERATIONS: Final[Mapping[str, str]] = {
    "megatron.microbatch.forward": FORWARD_COMPUTE,
    "megatron.microbatch.backward": BACKWARD_COMPUTE,
    "megatron.p2p.send_forward": FORWARD_SEND,
    "megatron.p2p.recv_forward": FORWARD_RECV,
    "megatron.p2p.send_backward": BACKWARD_SEND,
    "megatron.p2p.recv_backward": BACKWARD_RECV,
    "megatron.grad_sync.finish": GRADS_REDUCE_SCATTER,
    "megatron.optimizer_step": OPTIMIZER,
    "megatron.train.iteration.optimizer": OPTIMIZER,
}
# Span name → type of work between steps; only the outermost of nested spans counts.
BETWEEN: Final[Mapping[str, str]] = {
    "megatron.evaluate": EVALUATION,
    "megatron.save_checkpoint": CHECKPOINT,
    "megatron.checkpoint.exposed_save": CHECKPOINT,
    "megatron.checkpoint.save": CHECKPOINT,
}
READ: Final = frozenset({*OPERATIONS, *BETWEEN, *STEPS, FIRST_STEP})
# Names of spans that only group the spans of operations.
AROUND: Final = frozenset(
    {
        "megatron.pretrain",
        "megatron.train",
        "megatron.forward_backward",
        "megatron.train.iteration.forward_backward",
    }
)

MICROBATCH_GROUP: Final = "MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch"
ALL_RANKS: Final = "MEGATRON_OTEL_RANK_STRATEGY=all_ranks"
STEP_GROUP: Final = "MEGATRON_OTEL_SPAN_GROUPS=per_step"
STEP_REMEDY: Final = "label the spans of steps, or capture the step in their names"
_MAX_SPANS: Final = 1_000_000
# _MOST_OTHERS: most names of other programs' spans that are counted; _NAMED, _NAME_CHARS: most of
# them that a refusal lists, and the characters of each
_MOST_OTHERS: Final = 1000
_NAMED: Final = 5
_NAME_CHARS: Final = 60

Lost = Counter[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class _Span:
    """A span of an operation or of a step; times in ns."""

    rank: int
    name: str
    start: int
    end: int
    microbatch: int | None
    chunk: int | None
    step: int | None
    event: int
    own: OwnRange | None = None  # match with a label of the job

    @property
    def is_step(self) -> bool:
        """Whether the span is a whole step with a known number."""
        if self.own is not None:
            return self.own.label is None and self.step is not None
        return self.name in STEPS and self.step is not None


@dataclass(frozen=True, slots=True)
class _Spans:
    """Spans of a recording's operations and steps, and its resources by rank."""

    spans: list[_Span]
    resources: dict[int, Resource]
    sizes: frozenset[Sizes | None]
    lost: Lost
    of_megatron: bool  # whether any span is of Megatron-LM
    others: Counter[str]  # number of spans of other programs by name


def decode_otlp(  # noqa: PLR0913 - a sender's facts about a body
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    protobuf: bool,
    own: OwnRanges | None = None,
) -> Recording:
    """Decode OpenTelemetry spans of Megatron-LM, or spans with labels of the job.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    meta : SessionMeta or None
        The session's metadata; required where the resources lack sizes.
    protobuf : bool
        The body is OTLP's protobuf; else its JSON.
    own : OwnRanges, optional
        The job's labels for spans of its own.

    Raises
    ------
    InvalidTraceError
        `trace.no_microbatches`: no span is an operation of a microbatch; `trace.unknown_rank`. Also
        the errors of `json_batches`, `protobuf_batches`, `Event` and `Rows.trace`.
    InvalidMetadataError
        `metadata.missing`: the job's sizes are unknown.
    """
    reader = None if own is None else own.reader()
    if protobuf:
        # Imported here because building the message classes is slow.
        from app.analysis.trace.recordings.otlp_protobuf import protobuf_batches  # noqa: PLC0415

        batches = protobuf_batches(body, limits, READ if own is None else None)
    else:
        batches = json_batches(body, limits)
    recorded = _read(batches, reader)
    if reader is not None and not any(span.own for span in recorded.spans):
        reader.refuse_all()
    if not any(_computes(span) for span in recorded.spans):
        _refuse_others(recorded)
        refuse_body(
            "no_microbatches",
            "there are no spans of microbatches: switch their group on with "
            f"{MICROBATCH_GROUP}, and let every rank export with {ALL_RANKS}",
        )
    if meta is None:
        sizes = next(iter(recorded.sizes)) if len(recorded.sizes) == 1 else None
        if sizes is None:
            message = (
                "the resources do not say the sizes of the job, or not the same ones: give them "
                "with the recording"
            )
            raise InvalidMetadataError(message, code="metadata.missing")
        meta = SessionMeta(sizes)
    by_rank: dict[int, list[_Span]] = {}
    for span in sorted(recorded.spans, key=_start):
        by_rank.setdefault(span.rank, []).append(span)
    rows = Rows(limits)
    odd: dict[int, str] = {}
    for rank, spans in by_rank.items():
        odd |= _add_rank(rows, recorded.resources[rank], spans, meta.sizes, recorded.lost)
    meta = replace(
        with_hosts(meta, recorded.resources),
        odd_steps={**odd, **meta.odd_steps},
        extra={**meta.extra, "clock": "host"},
    )
    lost = [Unmapped(what, count, remedy) for (what, remedy), count in recorded.lost.items()]
    if reader is not None:
        lost += reader.unmapped()
    return Recording(rows.trace(meta, part=part), total(lost))


def _refuse_others(recorded: _Spans) -> None:
    """Refuse a body without spans, or of spans of which none is of Megatron-LM."""
    if not (recorded.spans or recorded.lost or recorded.of_megatron):
        refuse_body("no_microbatches", "there are no spans in the file")
    if recorded.of_megatron or not recorded.others:
        return
    listed = ", ".join(
        f"{name[:_NAME_CHARS]!r} ({count})" for name, count in recorded.others.most_common(_NAMED)
    )
    more = len(recorded.others) - _NAMED
    listed += f" and {more} more" if more > 0 else ""
    refuse_body(
        "no_labels",
        f"the spans are {listed}, and none is of Megatron-LM, whose names are known. A labels file "
        "(--labels) says which names are steps and which are operations, a metadata file (--meta) "
        "the sizes of the job",
    )


def _computes(span: _Span) -> bool:
    if span.own is not None:
        return span.own.label is not None and span.own.label.kind is LabelKind.COMPUTE
    return span.name in OPERATIONS and "microbatch" in span.name


def _read(batches: Iterable[Batch], reader: OwnRangesReader | None) -> _Spans:
    """Return the spans of operations and steps; count all other spans."""
    spans: list[_Span] = []
    resources: dict[int, Resource] = {}
    sizes: set[Sizes | None] = set()
    lost: Lost = Counter()
    others: Counter[str] = Counter()
    of_megatron = False
    for batch in batches:
        named = [(span, span.text("name")) for span in batch.spans]
        of_megatron = of_megatron or any(name.startswith(PREFIX) for _, name in named)
        wanted: list[tuple[Event, str, OwnRange | None]] = []
        for span, name in named:
            own = None if reader is None else reader.find(name, span.index)
            if own is not None or name in READ:
                wanted.append((span, name, own))
            elif name not in AROUND:
                # Spans of other programs have many different names, so they are counted together.
                known = name.startswith(PREFIX)
                lost[f"spans {name[:80] if known else 'of other programs'}", None] += 1
                if not known and (name in others or len(others) < _MOST_OTHERS):
                    others[name] += 1
                if reader is not None:
                    reader.miss(name)
        if wanted:
            who = resource_of(batch.resource)
            resources[who.rank] = who
            sizes.add(who.sizes)
            spans += [_span(who.rank, *span) for span in wanted]
        if len(spans) > _MAX_SPANS:
            message = f"there are over {_MAX_SPANS} spans"
            raise BodyTooLargeError(message, code="body.too_many_rows")
    return _Spans(spans, resources, frozenset(sizes), lost, of_megatron, others)


def _span(rank: int, span: Event, name: str, own: OwnRange | None) -> _Span:
    start = span.nanoseconds("startTimeUnixNano", 1)
    end = span.nanoseconds("endTimeUnixNano", 1)
    if own is not None:
        mb, mc = (None, None) if own.label is None else (own.label.mb, own.label.mc)
        return _Span(rank, name, start, end, mb, mc, own.step, span.index, own)
    attributes = attributes_of(span)
    return _Span(
        rank,
        name,
        start,
        end,
        first_of(attributes, "megatron.microbatch_id", "dl.microbatch_id"),
        first_of(attributes, "megatron.model_chunk_id", "megatron.virtual_pipeline_rank"),
        first_of(attributes, "megatron.iteration", "dl.iteration"),
        span.index,
    )


def _add_rank(
    rows: Rows, who: Resource, spans: list[_Span], sizes: Sizes, lost: Lost
) -> Mapping[int, str]:
    """Add the operations of one rank, whose spans are sorted by start.

    Returns
    -------
    dict of int to str
        Steps that are excluded from verdicts, with the reason: the first step of a process, which
        compiles and connects.
    """
    steps = [span for span in spans if span.is_step]
    if not steps:
        # Steps that a label marks without a number are numbered from 0.
        unnumbered = [span for span in spans if span.own is not None and span.own.label is None]
        steps = [replace(span, step=number) for number, span in enumerate(unnumbered)]
    _add_own(rows, who, [span for span in spans if span.own is not None], steps, sizes, lost)
    spans = [span for span in spans if span.own is None]
    for span in spans:
        if span.name not in OPERATIONS:
            continue
        step = span.step if span.step is not None else _step_around(span, steps)
        if step is None:
            lost["operations outside of a step", STEP_GROUP] += 1
        else:
            _add(rows, OPERATIONS[span.name], who, span, step, sizes)
    _add_between(rows, who, spans, steps, sizes, lost)
    odd: dict[int, str] = {}
    for span in spans:
        if span.name != FIRST_STEP:
            continue
        # The span of a process's first step begins shortly before the span of the step inside it.
        inside = (step.step for step in steps if span.start <= step.start <= span.end)
        number = next(inside, None) if span.step is None else span.step
        if number is not None:
            odd[number] = WHY_ODD
    return odd


def _add_between(  # noqa: PLR0913, PLR0917 - facts of the rank
    rows: Rows, who: Resource, spans: list[_Span], steps: list[_Span], sizes: Sizes, lost: Lost
) -> None:
    """Add the operations between steps from the outermost spans."""
    until: dict[str, int] = {}
    for span in spans:
        op = BETWEEN.get(span.name)
        if op is None or span.start < until.get(op, span.start):
            continue
        until[op] = span.end
        before = bisect_right(steps, span.start, key=_start) - 1
        step = steps[before].step if before >= 0 else None
        if step is None:
            lost["operations before the first step", None] += 1
        else:
            _add(rows, op, who, span, step, sizes)


def _add_own(  # noqa: PLR0913, PLR0917 - facts of the rank
    rows: Rows, who: Resource, spans: list[_Span], steps: list[_Span], sizes: Sizes, lost: Lost
) -> None:
    """Add the operations of spans that the job's labels match; join the spans of a computation."""
    labelled = [(span, span.own.label) for span in spans if span.own and span.own.label]
    numbers = [
        span.step if span.step is not None else _step_around(span, steps) for span, _ in labelled
    ]
    parts = join_ranges([label for _, label in labelled], numbers)
    inside = {part for joined in parts.values() for part in joined}
    for place, ((span, label), step) in enumerate(zip(labelled, numbers, strict=True)):
        if step is None:
            lost["operations outside of a step", STEP_REMEDY] += 1
        elif place in parts or place not in inside:
            end = max(labelled[part][0].end for part in parts.get(place, [place]))
            _add(rows, label.op, who, replace(span, end=end), step, sizes)


def _start(span: _Span) -> int:
    return span.start


def _step_around(span: _Span, steps: list[_Span]) -> int | None:
    place = bisect_right(steps, span.start, key=_start) - 1
    return steps[place].step if place >= 0 and span.start <= steps[place].end else None


def _add(  # noqa: PLR0913, PLR0917 - facts of the operation
    rows: Rows, op: str, who: Resource, span: _Span, step: int, sizes: Sizes
) -> None:
    inner = sizes.tp * sizes.cp
    rows.add(
        op,
        span.start,
        span.end - span.start,
        event=span.event,
        rank=who.rank,
        # Megatron's rank order: tensor ranks vary fastest, pipeline stages slowest.
        dp=who.rank // inner % sizes.dp if who.dp is None else who.dp,
        pp=who.rank // (inner * sizes.dp) if who.pp is None else who.pp,
        step=step,
        mb=span.microbatch,
        mc=span.chunk,
    )
