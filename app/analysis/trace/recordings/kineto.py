"""Kineto: what the profiler of PyTorch writes, one JSON file a rank, in one pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files.names import UNNAMED, FileNames
from app.analysis.trace.recordings.files.processes import Processes
from app.analysis.trace.recordings.json_items import Field, Item, read_items
from app.analysis.trace.recordings.kineto_batches import Batches, Kind
from app.analysis.trace.recordings.labels import LOADER_PREFIX, OWN_PREFIX, TORCH_PREFIX
from app.analysis.trace.recordings.own.ranges import OwnRanges
from app.analysis.trace.recordings.profiler.header import EVENTS, take_header
from app.analysis.trace.recordings.profiler.labelled import ATTACH, Advice
from app.analysis.trace.recordings.profiler.reader import decode_scan
from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Issue,
    Mark,
    Scan,
    Span,
    Work,
    collective_of,
    plain_name,
)
from app.analysis.trace.recordings.recording import Recording, joined_recordings
from app.analysis.trace.recordings.values import NS_PER_US, Event, event_of

_ANNOTATIONS: Final = frozenset({"user_annotation", "cpu_op", "Operator"})
_OWN: Final = "user_annotation"
# The same ranges on the device's track: from the first to the last kernel that they launched.
_OWN_ON_DEVICE: Final = "gpu_user_annotation"
_OPERATORS: Final = frozenset({"cpu_op", "Operator"})
_LAUNCHES: Final = frozenset(
    {
        *("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver"),
        *("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"),
    }
)
# What occupies a stream of the device.
_ACTIVITIES: Final = {
    **dict.fromkeys(("kernel", "Kernel"), Activity.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), Activity.COPY),
    **dict.fromkeys(("gpu_memset", "Memset"), Activity.SET),
}
# The process group of each backend writes one when the work is done.
_BACKEND: Final = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):(\w+)(?: \d+->\d+)?")
_STEP: Final = "ProfilerStep#"
_OPTIMIZER: Final = "Optimizer.step#"
# What autograd does for one node of its graph.
_GRADIENT: Final = "autograd::engine::evaluate_function"
# Calls of process groups: by PyTorch's dispatcher, and for each backend's own record.
_ISSUED: Final = "c10d::"
_COMMUNICATES: Final = "record_param_comms"
# Ranges that frameworks and people name, by which a step is told apart without labels.
_MARKS: Final = (
    "DistributedDataParallel.forward",
    "FSDP::",
    "FullyShardedDataParallel.",
    "Optimizer.zero_grad#",
    "## ",
    # of `ScheduleGPipe`, which have a microbatch's number
    "Forward ",
    "Backward ",
)
# Ranges that are kept as objects.
_ALONE: Final = (
    TORCH_PREFIX,
    OWN_PREFIX,
    LOADER_PREFIX,
    _STEP,
    _OPTIMIZER,
    _ISSUED,
    _COMMUNICATES,
    *_MARKS,
)
_KIND_OF_ACTIVITY: Final = {
    Activity.KERNEL: Kind.KERNEL,
    Activity.COPY: Kind.COPY,
    Activity.SET: Kind.SET,
}
_CHECKED_EVERY: Final = 256
_ADVICE: Final = Advice(
    no_labels=(
        "no range is labelled as an operation, and no training of data-parallel ranks without a "
        "pipeline is seen: Schedule1F1B is not labelled by PyTorch, and without CPU activities "
        f"there is no backward. {ATTACH[:1].upper()}{ATTACH[1:]}, which labels "
        'them, or with torch.profiler.record_function("paceline:fwd:mb=0")'
    ),
    unknown_rank=(
        "the recording does not say which rank it is of: start the profiler after "
        "torch.distributed.init_process_group, which writes distributedInfo"
    ),
    no_kernel="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
)


def decode_kineto(  # noqa: PLR0913 - what is known about a file
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    own: OwnRanges | None = None,
    names: FileNames = UNNAMED,
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
    own : OwnRanges, optional
        What the job calls ranges of its own.
    names : FileNames
        What the names of the session's files say, where the file does not say it itself.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, BodyTooLargeError
        See `scan_kineto` and `decode_scan`.
    """
    processes = Processes()
    scan = scan_kineto(body, limits, own, processes)
    if len(processes.stepping) > 1:
        return _decode_ranks(body, meta, limits, own, processes)
    if scan.rank is None:
        scan.rank = names.rank
    if scan.world is None:
        scan.world = names.world
    return decode_scan(scan, meta, limits, _ADVICE, part=part)


def _decode_ranks(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    own: OwnRanges | None,
    processes: Processes,
) -> Recording:
    """Decode a file in which the recordings of several ranks were put together."""
    scans = {rank: Scan(own=None if own is None else own.reader()) for rank in processes.ranks()}
    whole = Scan()
    for each in read_items(body, limits, frozenset({EVENTS})):
        if isinstance(each, Field):
            take_header(whole, each)
            continue
        rank = processes.rank_of(event_of(each.index, each.value))
        if rank in scans:
            _take(scans[rank], each)
            if each.index % _CHECKED_EVERY == 0:
                scans[rank].check_counts(limits)
    found = []
    for rank, scan in scans.items():
        scan.base_ns, scan.gpu, scan.rank = whole.base_ns, whole.gpu, rank
        scan.world = len(scans) if whole.world is None else whole.world
        # What the file says about itself was said by one of the ranks.
        parts = [group for group in whole.groups if 1 < len(group.ranks) < scan.world]
        if all(rank in group.ranks for group in parts):
            scan.groups = whole.groups
        else:
            scan.others_groups = whole.groups
        found.append(decode_scan(scan, meta, limits, _ADVICE, part=True))
    return joined_recordings(found)


def scan_kineto(
    body: Path | bytes,
    limits: Limits,
    own: OwnRanges | None = None,
    processes: Processes | None = None,
) -> Scan:
    """Read a Kineto file; `processes` learns who takes steps, and what processes are called.

    Raises
    ------
    InvalidTraceError
        The text is no JSON, or an event is not as the profiler writes it, with its position.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    found = Scan(own=None if own is None else own.reader())

    def take_batch(lines: str, count: int, index: int) -> bool:
        found.check_counts(limits)
        return batches(lines, count, index)

    batches = Batches(found, _kind_of, lambda item: _take(found, item, processes))
    # Patterns of the job's own look at every range.
    many = take_batch if own is None else None
    for part in read_items(body, limits, frozenset({EVENTS}), batches=many):
        if isinstance(part, Item):
            _take(found, part, processes)
            if part.index % _CHECKED_EVERY == 0:
                found.check_counts(limits)
        else:
            take_header(found, part)
    found.check_counts(limits)
    return found


def _take(found: Scan, item: Item, processes: Processes | None = None) -> None:
    event = event_of(item.index, item.value)
    phase = event.fields.get("ph")
    if phase == "M" and processes is not None:
        processes.name(event)
    if phase != "X":
        return
    category = event.text("cat")
    if category in _ANNOTATIONS:
        if processes is not None and event.text("name").startswith(_STEP):
            processes.step(event)
        _take_annotation(found, event, category)
    elif category in _LAUNCHES:
        number = event.args.optional_identifier("correlation")
        if number is not None:
            found.launches.add(event.nanoseconds("ts", NS_PER_US), number, _thread(found, event))
    elif category in _ACTIVITIES:
        _take_kernel(found, event, _ACTIVITIES[category])
    elif category == _OWN_ON_DEVICE:
        found.take_own(event.text("name"), _span(event), on_device=True)


def _kind_of(category: str, name: str) -> Kind:
    """Return how `_take` takes an event, by its category and its name."""
    if category in _LAUNCHES:
        return Kind.LAUNCH
    activity = _ACTIVITIES.get(category)
    if activity is not None:
        collective = activity is Activity.KERNEL and collective_of(name) is not None
        return Kind.ALONE if collective else _KIND_OF_ACTIVITY[activity]
    if category not in _ANNOTATIONS:
        return Kind.NOT
    if name.startswith(_ALONE) or _BACKEND.fullmatch(name):
        return Kind.ALONE
    if name.startswith(_GRADIENT):
        return Kind.GRADIENT
    return Kind.OPERATOR if category in _OPERATORS else Kind.RANGE


def _take_annotation(found: Scan, event: Event, category: str) -> None:
    name = event.text("name")
    if found.own is not None and found.take_own(name, _span(event)):
        return
    if name.startswith((TORCH_PREFIX, OWN_PREFIX, LOADER_PREFIX, _STEP)):
        found.take_range(name, _span(event), _thread(found, event))
        return
    if name.startswith(_OPTIMIZER):
        found.optimizers.append(_span(event))
    elif backend := _BACKEND.fullmatch(name):
        found.works.append(_work(backend[1], event.args, _span(event), on_device=False))
        return
    elif found.own is not None and category == _OWN:
        found.own.miss(name)
    _take_called(found, event, category)


def _take_called(found: Scan, event: Event, category: str) -> None:
    """Take what the host called, or a framework's own range."""
    name = event.text("name")
    number = event.args.optional_identifier("External id")
    thread = _thread(found, event)
    if name.startswith(_GRADIENT):
        found.gradients.add(_span(event), thread)
        found.take_operator(_span(event), thread)
    elif name.startswith((_ISSUED, _COMMUNICATES)):
        found.issues.append(_issue(name, event, thread))
    elif name.startswith((_OPTIMIZER, *_MARKS)):
        found.marks.append(Mark(name, _span(event), thread))
    elif category in _OPERATORS:
        found.take_operator(_span(event), thread)
    if number is not None and not name.startswith(_OPTIMIZER):
        found.operators.add(event.nanoseconds("ts", NS_PER_US), number, thread)


def _take_kernel(found: Scan, event: Event, activity: Activity) -> None:
    args, span = event.args, _span(event)
    work = -1
    collective = collective_of(event.text("name")) if activity is Activity.KERNEL else None
    if collective is not None:
        work = len(found.works)
        name = args.text("Collective name") or collective
        found.works.append(_work(name, args, span, on_device=True))
    correlation, external = _number(args, "correlation"), _number(args, "External id")
    device, stream = args.fields.get("device"), args.fields.get("stream")
    at = found.thread(("stream", _named(device), _named(stream)))
    found.kernels.add(span, correlation, external, work, at, activity)


def _thread(found: Scan, event: Event) -> int:
    process, thread = event.fields.get("pid"), event.fields.get("tid")
    return found.thread((_named(process), _named(thread)))


def _named(value: Any) -> int | str:  # noqa: ANN401 - what a user wrote
    return value if isinstance(value, int | str) else str(value)


def _work(name: str, args: Event, span: Span, *, on_device: bool) -> Work:
    return Work(
        plain_name(name),
        args.text("Process Group Name"),
        args.text("Process Group Description"),
        args.optional_integer("Seq"),
        span,
        on_device,
        _number(args, "correlation"),
        _number(args, "External id"),
        args.optional_integer("Group size"),
        _peer(args),
    )


def _issue(name: str, event: Event, thread: int) -> Issue:
    args = event.args
    said = args.text("Collective name") or name.removeprefix(_ISSUED)
    return Issue(
        plain_name(said),
        args.text("Process Group Name"),
        args.text("Process Group Description"),
        args.optional_integer("Seq"),
        _span(event),
        thread,
        _number(args, "External id"),
        args.optional_integer("Group size"),
        _peer(args),
    )


def _peer(args: Event) -> int | None:
    ends = (args.optional_integer(key) for key in ("Dst Rank", "Src Rank"))
    # PyTorch writes -1 for the end that is the rank itself.
    return next((rank for rank in ends if rank is not None and rank >= 0), None)


def _number(args: Event, key: str) -> int:
    number = args.optional_identifier(key)
    return -1 if number is None else number


def _span(event: Event) -> Span:
    start = event.nanoseconds("ts", NS_PER_US)
    duration = event.duration_ns("dur", NS_PER_US) if event.fields.get("dur") is not None else 0
    return Span(start, start + duration, event.index)
