"""Kineto: what the profiler of PyTorch writes, one JSON file a rank, in one pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.limits import MAX_WORLD, Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.json_items import Field, Item, read_items
from app.analysis.trace.recordings.labels import LOADER_PREFIX, OWN_PREFIX, TORCH_PREFIX
from app.analysis.trace.recordings.profiler.groups import Group
from app.analysis.trace.recordings.profiler.reader import ATTACH, Advice, decode_scan
from app.analysis.trace.recordings.profiler.scan import (
    Scan,
    Span,
    Work,
    collective_of,
    plain_name,
)
from app.analysis.trace.recordings.recording import Recording
from app.analysis.trace.recordings.values import NS_PER_US, Event, event_of

EVENTS: Final = "traceEvents"
DISTRIBUTED: Final = "distributedInfo"

_ANNOTATIONS: Final = frozenset({"user_annotation", "cpu_op", "Operator"})
_LAUNCHES: Final = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime"})
_KERNELS: Final = frozenset({"kernel", "Kernel"})
# The process group of each backend writes one when the work is done.
_BACKEND: Final = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):(\w+)(?: \d+->\d+)?")
_OPTIMIZER: Final = "Optimizer.step#"
_MAX_GROUPS: Final = 4096
# Ranks of a group that are written as one text.
_MAX_RANKS_TEXT: Final = 1 << 20
_MAX_DIGITS: Final = 12
_CHECKED_EVERY: Final = 256
_ADVICE: Final = Advice(
    no_labels=(
        "no range is labelled as an operation: Schedule1F1B, ScheduleGPipe and loops without a "
        f"pipeline are not labelled by PyTorch. {ATTACH[:1].upper()}{ATTACH[1:]}, which labels "
        'them, or with torch.profiler.record_function("paceline:fwd:mb=0")'
    ),
    unknown_rank=(
        "the recording does not say which rank it is of: start the profiler after "
        "torch.distributed.init_process_group, which writes distributedInfo"
    ),
    no_kernel="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
)


def decode_kineto(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode and check a Kineto file.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    meta : SessionMeta or None
        What is given with it: the sizes, where process groups have no names that say them.
    part : bool
        It is one rank of several.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, BodyTooLargeError
        See `scan_kineto` and `decode_scan`.
    """
    return decode_scan(scan_kineto(body, limits), meta, limits, _ADVICE, part=part)


def scan_kineto(body: Path | bytes, limits: Limits) -> Scan:
    """Read a Kineto file.

    Raises
    ------
    InvalidTraceError
        The text is no JSON, or an event is not as the profiler writes it, with its position.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    found = Scan()
    for part in read_items(body, limits, frozenset({EVENTS})):
        if isinstance(part, Item):
            _take(found, part)
            if part.index % _CHECKED_EVERY == 0:
                found.check_counts(limits)
        else:
            _take_field(found, part)
    found.check_counts(limits)
    return found


def _take(found: Scan, item: Item) -> None:
    event = event_of(item.index, item.value)
    if event.fields.get("ph") != "X":
        return
    category = event.text("cat")
    if category in _ANNOTATIONS:
        _take_annotation(found, event)
    elif category in _LAUNCHES:
        number = event.args.optional_integer("correlation")
        if number is not None:
            found.launches.add(event.nanoseconds("ts", NS_PER_US), number)
    elif category in _KERNELS:
        _take_kernel(found, event)


def _take_annotation(found: Scan, event: Event) -> None:
    name = event.text("name")
    if name.startswith((TORCH_PREFIX, OWN_PREFIX, LOADER_PREFIX, "ProfilerStep#")):
        found.take_range(name, _span(event))
    elif name.startswith(_OPTIMIZER):
        found.optimizers.append(_span(event))
    elif backend := _BACKEND.fullmatch(name):
        found.works.append(_work(backend[1], event.args, _span(event), on_device=False))
    else:
        number = event.args.optional_integer("External id")
        if number is not None:
            found.operators.add(event.nanoseconds("ts", NS_PER_US), number)


def _take_kernel(found: Scan, event: Event) -> None:
    args, span = event.args, _span(event)
    work = -1
    collective = collective_of(event.text("name"))
    if collective is not None:
        work = len(found.works)
        name = args.text("Collective name") or collective
        found.works.append(_work(name, args, span, on_device=True))
    found.kernels.add(span, _number(args, "correlation"), _number(args, "External id"), work)


def _work(name: str, args: Event, span: Span, *, on_device: bool) -> Work:
    return Work(
        plain_name(name),
        args.text("Process Group Name"),
        args.text("Process Group Description"),
        args.optional_integer("Seq"),
        span,
        on_device,
    )


def _number(args: Event, key: str) -> int:
    number = args.optional_integer(key)
    return -1 if number is None else number


def _span(event: Event) -> Span:
    start = event.nanoseconds("ts", NS_PER_US)
    duration = event.duration_ns("dur", NS_PER_US) if "dur" in event.fields else 0
    return Span(start, start + duration, event.index)


def _take_field(found: Scan, part: Field) -> None:
    if part.name == "baseTimeNanoseconds":
        if isinstance(part.value, bool) or not isinstance(part.value, int):
            refuse_body("wrong_type", "baseTimeNanoseconds is not an integer")
        if abs(part.value) >= 1 << 62:
            refuse_body("time_overflow", "baseTimeNanoseconds is beyond all times")
        found.base_ns = part.value
    elif part.name == "host_name" and isinstance(part.value, str):
        found.host = part.value
    elif part.name == "deviceProperties" and isinstance(part.value, list) and part.value:
        first = part.value[0]
        name = first.get("name") if isinstance(first, dict) else None
        found.gpu = name if isinstance(name, str) else None
    elif part.name == DISTRIBUTED and isinstance(part.value, dict):
        info = Event(0, part.value)
        found.rank = info.optional_integer("rank")
        found.world = info.optional_integer("world_size")
        found.groups = _groups(part.value.get("pg_config"))


def _groups(config: Any) -> list[Group]:  # noqa: ANN401 - what a user wrote
    if isinstance(config, dict):
        config = list(config.values())
    if not isinstance(config, list):
        return []
    if len(config) > _MAX_GROUPS:
        refuse_body("bad_event", f"{DISTRIBUTED} lists over {_MAX_GROUPS} process groups")
    groups = []
    for one in config:
        if not isinstance(one, dict):
            continue
        ranks = _ranks(one.get("ranks"))
        name, description = one.get("pg_name", ""), one.get("pg_desc", "")
        if not (isinstance(ranks, list) and isinstance(name, str) and isinstance(description, str)):
            continue
        if all(type(rank) is int and 0 <= rank < MAX_WORLD for rank in ranks):
            groups.append(Group(name, description, tuple(ranks)))
    return groups


def _ranks(said: Any) -> Any:  # noqa: ANN401 - what a user wrote
    """Return the ranks of a group as a list where they are one as text, or numbered by a map."""
    if isinstance(said, str) and len(said) <= _MAX_RANKS_TEXT:
        numbers = said.strip("[]() ").split(",")
        return [int(number) for number in numbers] if all(map(_is_rank, numbers)) else None
    if isinstance(said, dict) and all(map(_is_rank, said)):
        in_order = all(type(place) is int for place in said.values())
        return [int(rank) for rank in (sorted(said, key=said.__getitem__) if in_order else said)]
    return said


def _is_rank(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdecimal() and len(text) <= _MAX_DIGITS
