"""Kineto: the JSON file that the PyTorch profiler writes for each rank, read in one pass.

The fields before the events name the rank and its process groups. A file merged for a viewer
holds several ranks, each as processes whose number or name has the rank (``[Rank 3] 4711``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.limits import MAX_WORLD, Limits, refuse_body
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import UNNAMED, FileNames, rank_in
from app.analysis.trace.recordings.json_events import (
    NS_PER_US,
    Event,
    Field,
    Item,
    event_of,
    read_items,
)
from app.analysis.trace.recordings.kineto_columns import Batches, Kind
from app.analysis.trace.recordings.labels import LOADER_PREFIX, OWN_PREFIX, TORCH_PREFIX, OwnRanges
from app.analysis.trace.recordings.profiler.labelled_pipeline import ATTACH, Advice
from app.analysis.trace.recordings.profiler.process_groups import Group
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

# ---- Files in which the recordings of several ranks were put together, each as processes of its ow
#
# Scripts that merge the files of ranks for a viewer put the rank into the number of a process
# (``[Rank 3] 4711``, ``4711_rank3``) or into its name (``process_name``, ``process_labels``).


# A viewer shows some dozens; a machine has thousands.
_MOST: Final = 100_000
_NAMES: Final = ("process_name", "process_labels")
_FIRST: Final = re.compile(r"\[(?:R|rank)?[ =]?([0-9]{1,7})\]", re.IGNORECASE)


@dataclass(slots=True)
class Processes:
    """What a recording says about its processes."""

    # Those that take steps of training, in the order of the recording.
    stepping: dict[object, None] = field(default_factory=dict)
    _rank_of: dict[object, int] = field(default_factory=dict)

    def name(self, event: Event) -> None:
        """Take an event of metadata (``"ph": "M"``)."""
        if event.fields.get("name") not in _NAMES or len(self._rank_of) >= _MOST:
            return
        args = event.args.fields
        said = _rank_said(str(args.get("name", args.get("labels", ""))))
        if said is not None:
            self._rank_of.setdefault(_key(event), said)

    def step(self, event: Event) -> None:
        """Take a range that is a step of training."""
        if len(self.stepping) < _MOST:
            self.stepping.setdefault(_key(event))

    def rank_of(self, event: Event) -> int | None:
        """Return the rank that an event is of, None where nothing says it."""
        key = _key(event)
        if key not in self._rank_of and isinstance(key, str):
            said = _rank_said(key)
            if said is not None and len(self._rank_of) < _MOST:
                self._rank_of[key] = said
        return self._rank_of.get(key)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the processes that take steps.

        Raises
        ------
        InvalidTraceError
            `trace.several_ranks`: one does not say its rank, or two say the same.
        """
        found = [self.rank_of(Event(0, {"pid": key})) for key in self.stepping]
        ranks = sorted({rank for rank in found if rank is not None})
        if len(ranks) < len(found):
            refuse_body(
                "several_ranks",
                f"{len(found)} processes take steps, and their numbers or names do not say which "
                "rank each is: send the file of each rank as the profiler wrote it",
            )
        return tuple(ranks)


def _key(event: Event) -> object:
    process = event.fields.get("pid")
    return process if isinstance(process, int | str) else str(process)


def _rank_said(text: str) -> int | None:
    said = rank_in(text)
    if said is None and (found := _FIRST.search(text)) is not None:
        return int(found[1])
    return said


# ---- What a profiler's file says of itself before its events: whose it is, and its process groups


EVENTS: Final = "traceEvents"
DISTRIBUTED: Final = "distributedInfo"
_MAX_GROUPS: Final = 4096
# Ranks of a group that are written as one text.
_MAX_RANKS_TEXT: Final = 1 << 20
_MAX_DIGITS: Final = 12


def take_header(found: Scan, part: Field) -> None:
    """Take a field of the file other than its events.

    Raises
    ------
    InvalidTraceError
        `trace.bad_event`, `trace.wrong_type`, `trace.time_overflow`.
    """
    if part.name == EVENTS:
        refuse_body("bad_event", f"{EVENTS} is no array of events")
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


# ---- Kineto: what the profiler of PyTorch writes, one JSON file a rank, in one pass ------------


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
